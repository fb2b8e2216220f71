"""Mounts and links, on this host's own file systems and on one made for the test; STOR judges the map."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.bringup.instruments.mounts import disks
from contracts.spec import Refused
from contracts.spec.storage import mount_of, parse_mountinfo, resolved
from tests_unit._parties.running import invoked

MOUNTINFO = Path("/proc/self/mountinfo")


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of its own, with a second one over a part of it; in memory, since a disk cannot be had."""
    point = tmp_path_factory.mktemp("volumes") / "my data"
    point.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "rankproof", str(point)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"mounting needs root: {made.stderr.strip()}")
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)


def test_the_mount_of_a_path_equals_the_kernels(volume: Path) -> None:
    mounts = parse_mountinfo(MOUNTINFO.read_text())
    for path in ("/", "/proc", str(volume), str(volume.parent)):
        device = Path(path).stat().st_dev
        assert mount_of(path, mounts).device == f"{os.major(device)}:{os.minor(device)}"
    assert mount_of(f"{volume}/below", mounts).point == str(volume)


def test_a_bind_mount_of_the_root_volume_is_the_root_volume(volume: Path, tmp_path: Path) -> None:
    (volume / "bound").mkdir()
    subprocess.run(["mount", "--bind", str(tmp_path), str(volume / "bound")], check=True)
    try:
        mounts = parse_mountinfo(MOUNTINFO.read_text())
        assert mount_of(str(volume / "bound"), mounts).device == mount_of(str(tmp_path), mounts).device
        assert mount_of(str(volume / "bound"), mounts).device != mount_of(str(volume), mounts).device
    finally:
        subprocess.run(["umount", str(volume / "bound")], check=True)


def test_a_mount_covered_by_a_later_one_is_not_used(volume: Path) -> None:
    (volume / "inner/deep").mkdir(parents=True)
    inner, deep = str(volume / "inner"), str(volume / "inner/deep")
    for point in (deep, inner):  # the deeper one first, so that the second covers it
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "rankproof", point], check=True)
    try:
        text = MOUNTINFO.read_text()
        assert len([line for line in text.splitlines() if line.split()[4].endswith("/inner/deep")]) == 1
        assert mount_of(deep, parse_mountinfo(text)).point == inner
    finally:
        subprocess.run(["umount", inner], check=True)
        subprocess.run(["umount", deep], check=True)


def test_links_are_followed_as_the_kernel_follows_them(tmp_path: Path) -> None:
    (tmp_path / "real/below").mkdir(parents=True)
    (tmp_path / "one").symlink_to("real/below")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    (tmp_path / "real/up").symlink_to("..")
    for path in ("one", "two", "two/..", "one/../below/.", "real/up/two/../../real", "./real//up/one", "two/nothing"):
        here = f"{tmp_path}/{path}"
        host = disks([here])
        assert resolved(here, host.links) == os.path.realpath(here)
        assert (os.path.realpath(here) in host.directories) == Path(here).is_dir()


def test_a_cycle_of_symbolic_links_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    host = disks([str(tmp_path / "a/x")])
    assert host.directories == frozenset()
    with pytest.raises(Refused, match="form a cycle"):
        resolved(str(tmp_path / "a/x"), host.links)


def test_the_storage_command_refuses_directories_on_the_root_volume(tmp_path: Path) -> None:
    for name in ("durable", "scratch", "receipts", "data"):
        (tmp_path / name).mkdir()
    lines = [f'{name} = "{tmp_path}/{name}"' for name in ("durable", "scratch", "receipts", "data")]
    (tmp_path / "map.toml").write_text("\n".join([*lines, 'data_volume = "/"']))
    environment = {"TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/scratch/run-1/i", "TRITON_CACHE_DIR": ""}
    done = invoked("storage", tmp_path / "map.toml", "--run", "run-1", "--json", env=environment, code=1)
    found = {(each["promise"], each["field"]) for each in json.loads(done.stdout)["findings"]}
    assert {("STOR-02", "data"), ("STOR-03", "TRITON_CACHE_DIR")} <= found


def test_the_storage_command_accepts_scratch_and_data_in_memory_but_nothing_durable(
    volume: Path, tmp_path: Path
) -> None:
    for name in ("durable", "scratch", "receipts", "data"):
        (volume / name).mkdir()
    (tmp_path / "friendly").symlink_to(volume / "data")
    lines = [f'{name} = "{volume}/{name}"' for name in ("durable", "scratch", "receipts")]
    lines += [f'data = "{tmp_path}/friendly"', f'data_volume = "{volume}"']
    (tmp_path / "map.toml").write_text("\n".join(lines))
    done = invoked("storage", tmp_path / "map.toml", "--json")
    found = [(each["field"], each["problem"]) for each in json.loads(done.stdout)["findings"]]
    assert [field for field, _ in found] == ["durable", "receipts"]
    assert all("lies in memory (tmpfs)" in problem for _, problem in found)

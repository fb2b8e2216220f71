"""Mounts, links and caches: on this host's own file systems, on one made for the test, and on text that is none."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st

from contracts.bringup.commands.storage import check_storage
from contracts.bringup.instruments.mounts import disks
from contracts.spec.errors import Refused
from contracts.spec.installation import Disks, StorageMap
from contracts.spec.storage import cache_directories, mount_of, parse_mountinfo, resolved, storage_findings, within

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


def test_the_mount_of_a_path_is_that_of_the_kernel(volume: Path) -> None:
    mounts = parse_mountinfo(MOUNTINFO.read_text())
    for path in ("/", "/proc", str(volume), str(volume.parent)):
        device = Path(path).stat().st_dev
        mount = mount_of(path, mounts)
        assert mount.device == f"{os.major(device)}:{os.minor(device)}"
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


def test_what_a_later_mount_covers_cannot_be_seen(volume: Path) -> None:
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


def test_a_circle_of_links_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    host = disks([str(tmp_path / "a/x")])
    assert host.directories == frozenset()
    with pytest.raises(Refused, match="form a cycle"):
        resolved(str(tmp_path / "a/x"), host.links)


MAP = StorageMap(durable="/v/durable", scratch="/v/scratch", receipts="/v/receipts", data="/v/data", data_volume="/v")
TABLE = """\
1 1 0:1 / / rw - rootfs rootfs rw
28 1 259:2 / / rw,relatime shared:1 master:2 - ext4 /dev/root rw,discard
40 28 259:5 / /v rw,relatime - xfs /dev/disk\\040one rw
22 28 0:21 / /proc rw - proc proc rw
"""
GOOD = Disks(mountinfo=TABLE, directories=frozenset({"/v/durable", "/v/scratch", "/v/receipts", "/v/data"}))


def test_the_map_that_is_mutated_below_is_a_good_one() -> None:
    assert storage_findings(MAP, GOOD) == ()


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        ({"scratch": "/v/durable"}, "/v/durable is scratch /v/durable"),
        ({"receipts": "/v/scratch/r"}, "/v/scratch/r lies in scratch /v/scratch"),
    ],
)
def test_places_that_are_one_or_lie_in_one_another_are_told_apart(moved: dict[str, str], said: str) -> None:
    places = GOOD.directories | frozenset(moved.values())
    found = storage_findings(replace(MAP, **moved), replace(GOOD, directories=places))
    assert [said in each.problem for each in found if each.promise == "STOR-01"] == [True]


@given(st.text(max_size=200))
def test_no_text_passes_for_a_mount_table(text: str) -> None:
    assert storage_findings(MAP, replace(GOOD, mountinfo=text))


@given(st.integers(0, len(TABLE)), st.integers(0, 12), st.text("0123456789 -:/rwv\n", max_size=6))
def test_a_damaged_mount_table_passes_only_where_the_volume_is_still_the_same(at: int, cut: int, put: str) -> None:
    damaged = TABLE[:at] + put + TABLE[at + cut :]
    if storage_findings(MAP, replace(GOOD, mountinfo=damaged)):
        return
    # Nothing found: then, read by eye, a line still puts a device that is not the root's at /v.
    lines = [line.split() for line in damaged.splitlines()]
    assert all(len(words) >= 9 and "-" in words for words in lines)
    seen = {words[2] for words in lines if words[4] == "/v"}
    roots = {words[2] for words in lines if words[4] == "/"}
    assert seen - roots


@given(st.sampled_from(range(len(TABLE.splitlines()))))
def test_a_table_with_one_line_missing_is_no_pass_unless_the_line_says_nothing_of_the_places(gone: int) -> None:
    lines = TABLE.splitlines(keepends=True)
    found = storage_findings(MAP, replace(GOOD, mountinfo="".join(lines[:gone] + lines[gone + 1 :])))
    assert bool(found) == (gone in (1, 2))


PARTS = st.lists(st.sampled_from(["a", "ab", "b", "a b"]), max_size=4)


@given(PARTS, PARTS)
def test_a_path_is_within_another_by_its_components(inner: list[str], outer: list[str]) -> None:
    paths = ["/" + "/".join(parts) for parts in (inner, outer)]
    assert within(*paths) == (inner[: len(outer)] == outer)


@given(st.text(max_size=30), st.text(max_size=30))
def test_two_runs_never_share_a_cache(one: str, other: str) -> None:
    assume(one != other)
    places = []
    for run in (one, other):
        try:
            places.append(cache_directories(MAP, run))
        except Refused:
            return
    assert all(within(path, MAP.scratch) for caches in places for path in caches.values())
    assert not any(within(mine, theirs) for mine in places[0].values() for theirs in places[1].values())


def test_the_command_refuses_a_map_on_the_root_volume(tmp_path: Path) -> None:
    for name in ("durable", "scratch", "receipts", "data"):
        (tmp_path / name).mkdir()
    lines = [f'{name} = "{tmp_path}/{name}"' for name in ("durable", "scratch", "receipts", "data")]
    (tmp_path / "map.toml").write_text("\n".join([*lines, 'data_volume = "/"']))
    environment = {"TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/scratch/run-1/i", "TRITON_CACHE_DIR": ""}
    done = CliRunner().invoke(check_storage, [str(tmp_path / "map.toml"), "--run", "run-1", "--json"], env=environment)
    assert done.exit_code == 1, done.output
    found = {(each["promise"], each["field"]) for each in json.loads(done.stdout)["findings"]}
    assert {("STOR-02", "data"), ("STOR-03", "TRITON_CACHE_DIR")} <= found


def test_the_command_takes_scratch_and_data_in_memory_and_nothing_durable(volume: Path, tmp_path: Path) -> None:
    for name in ("durable", "scratch", "receipts", "data"):
        (volume / name).mkdir()
    (tmp_path / "friendly").symlink_to(volume / "data")
    lines = [f'{name} = "{volume}/{name}"' for name in ("durable", "scratch", "receipts")]
    lines += [f'data = "{tmp_path}/friendly"', f'data_volume = "{volume}"']
    (tmp_path / "map.toml").write_text("\n".join(lines))
    done = CliRunner().invoke(check_storage, [str(tmp_path / "map.toml"), "--json"])
    found = [(each["field"], each["problem"]) for each in json.loads(done.stdout)["findings"]]
    assert [field for field, _ in found] == ["durable", "receipts"]
    assert all("lies in memory (tmpfs)" in problem for _, problem in found)

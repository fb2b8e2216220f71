"""The reference's checkpoints over drawn states, over worlds of several ranks, and over processes."""

import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from benchmarks._covering import covering
from contracts.law.checkpoint.combined import AXES, DROPPED, ROWS
from contracts.law.checkpoint.resume import SHORT
from contracts.spec import codec
from contracts.spec.errors import Refused
from contracts.spec.training import Session, Step
from contracts.stacks.reference.checkpoint import manifest as manifests
from contracts.stacks.reference.checkpoint import rng_state
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints, State
from contracts.stacks.reference.checkpoint.filesystem import Disk
from contracts.stacks.reference.checkpoint.manifest import Manifest, Piece, StoredTensor
from contracts.stacks.reference.stack import Reference

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool)


@st.composite
def _tensors(draw: st.DrawFn) -> dict[str, Tensor]:
    shapes = draw(st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=4))
    return {
        f"t.{number}": (100 * torch.randn(shape)).to(draw(st.sampled_from(DTYPES)))
        for number, shape in enumerate(shapes)
    }


def _blank(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(each) for name, each in tensors.items()}


@settings(max_examples=25)
@given(tensors=_tensors(), file_bytes=st.integers(1, 200))
def test_any_state_comes_back_from_files_of_any_size(tensors: dict[str, Tensor], file_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept = Checkpoints(folder, file_bytes=file_bytes)
        kept.save(State(step=3, tensors=tensors))
        target = _blank(tensors)
        kept.load(target)
    assert all(torch.equal(target[name], each) for name, each in tensors.items())


def test_a_view_is_saved_without_what_it_is_a_view_of(tmp_path: Path) -> None:
    large = torch.randn(1000, 100)
    views = {"row": large[3:4], "column": large[:, 7], "turned": large[:4, :5].T}
    kept = Checkpoints(tmp_path)
    kept.save(State(step=1, tensors=views))
    held = sum(each.numel() * each.itemsize for each in views.values())
    shards = sum(path.stat().st_size for path in tmp_path.rglob("*.bin"))
    assert shards < held + 100, f"{shards} bytes for {held}"
    target = _blank(views)
    kept.load(target)
    assert all(torch.equal(target[name], each) for name, each in views.items())


def test_a_folder_that_is_not_there_holds_nothing_and_the_first_save_makes_it(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path / "run-1" / "checkpoints")
    assert kept.latest() is None
    kept.save(State(step=1, tensors={"w": torch.ones(2)}))
    assert kept.latest() == 1


def test_a_step_is_not_written_over(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    kept.save(State(step=1, tensors={"w": torch.ones(2)}))
    with pytest.raises(Refused, match=r"step = 1: is in .* already"):
        kept.save(State(step=1, tensors={"w": torch.zeros(2)}))


def test_what_has_no_form_on_the_disk_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"complex64.*has no form"):
        Checkpoints(tmp_path).save(State(step=1, tensors={"w": torch.ones(2, dtype=torch.complex64)}))
    assert not list(tmp_path.iterdir())


def test_the_next_wait_raises_the_error_of_a_failed_background_save(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    for _ in range(2):
        kept.save_later(State(step=1, tensors={"w": torch.ones(2)}))
    with pytest.raises(Refused, match="step = 1"):
        kept.wait()
    kept.wait()


def test_a_manifest_whose_pieces_do_not_cover_a_tensor_is_not_written() -> None:
    """What a rank that died did not write would come back as what lay in memory."""
    piece = Piece(offsets=(0, 0), sizes=(2, 3), file="shard-00000-00000.bin", start=0)
    lacking = Manifest(
        step=1, save="a", recipe="", position={}, files={},
        tensors={"w": StoredTensor(dtype="float32", shape=(4, 3), pieces=(piece,))},
    )  # fmt: skip
    with pytest.raises(Refused, match=r"w = \(4, 3\): is not covered"):
        manifests.to_text(lacking)


def test_generators_continue_where_they_were() -> None:
    numpy = pytest.importorskip("numpy")

    def draw() -> tuple[object, ...]:
        return random.gauss(0, 1), random.random(), torch.randn(3).tolist(), numpy.random.standard_normal(3).tolist()

    random.gauss(0, 1)  # a second number waits in two of them
    numpy.random.standard_normal(1)
    states = rng_state.capture()
    first = draw()
    draw()
    rng_state.restore(states)
    assert draw() == first


WHOLE = {
    "experts.w1": torch.arange(12 * 3 * 2, dtype=torch.float32).reshape(12, 3, 2),
    "uneven": torch.arange(5 * 2, dtype=torch.float64).reshape(5, 2),
    "columns": torch.arange(3 * 7).reshape(3, 7),
    "step": torch.tensor(4.0),
}
SHARDED = {"experts.w1": Shard(0), "uneven": Shard(0), "columns": Shard(1)}


def _rank(rank: int, world: int, folder: str, meeting: str, saves: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    kept = Checkpoints(folder, file_bytes=40)
    values = WHOLE if saves else _blank(WHOLE)
    local = {
        name: distribute_tensor(each.clone(), mesh, [SHARDED.get(name, Replicate())]) for name, each in values.items()
    }
    if saves:
        kept.save(State(step=7, tensors=local, position={"sample": 3}))
    else:
        state = kept.load(local)
        for name, each in local.items():
            assert isinstance(each, DTensor)
            assert torch.equal(each.full_tensor(), WHOLE[name]), name
        assert state.position == {"sample": 3}
    dist.destroy_process_group()


def _world(world: int, folder: Path, saves: bool) -> None:
    context = multiprocessing.get_context("fork")
    meeting = str(folder.parent / f"meeting-{world}-{saves}")
    ranks = [context.Process(target=_rank, args=(rank, world, str(folder), meeting, saves)) for rank in range(world)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads, from Python 3.12 on
        for each in ranks:
            each.start()
    for each in ranks:
        each.join(60)
    codes = [each.exitcode for each in ranks]
    for each in ranks:
        each.kill()
    assert codes == [0] * world


def test_shards_of_three_ranks_are_read_by_one_and_by_two(tmp_path: Path) -> None:
    """12 experts over 3 ranks, 5 rows over 3, and the ranks' files are twelve and more."""
    folder = tmp_path / "kept"
    folder.mkdir()
    _world(3, folder, saves=True)
    assert len(list(folder.rglob("shard-*.bin"))) > 10
    target = _blank(WHOLE)
    Checkpoints(folder).load(target)
    assert all(torch.equal(target[name], each) for name, each in WHOLE.items())
    _world(2, folder, saves=False)


RESUMED = """
import sys
import torch
from contracts.spec import codec
from contracts.spec.training import Session
from contracts.stacks.reference.stack import Reference
torch.set_num_threads(int(sys.argv[1]))  # sums of two threads round otherwise than those of one
session = codec.loads(Session, sys.stdin.read())
print(codec.dumps(Reference().train(session).steps[-1]))
"""


@pytest.mark.slow
def test_a_run_resumes_in_another_process(tmp_path: Path) -> None:
    """Nothing but the files goes from one process to the other."""
    last = Session(recipe=SHORT, steps=5, observe=frozenset({"weights", "optimizer", "buffers"}), at=frozenset({5}))
    whole = Reference().train(last).steps[-1]
    Reference().train(replace(last, steps=3, save=str(tmp_path), save_at=frozenset({3})))
    words = codec.dumps(replace(last, steps=2, load=str(tmp_path)))
    said = subprocess.run(
        [sys.executable, "-c", RESUMED, str(torch.get_num_threads())],
        input=words,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert codec.loads(Step, said.stdout) == whole


def test_the_rows_of_combined_runs_are_the_covering_array_of_their_axes() -> None:
    assert [row.split() for row in ROWS] == [[*row] for row in covering(AXES)]
    assert [row.split() for row in DROPPED] == [[*row] for row in covering(AXES, strength=1)]


def test_what_a_disk_wrote_is_synced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing sync, or one before the last bytes left the process, shows only when the power fails."""
    synced: dict[int, int] = {}

    def noted(handle: int) -> None:
        seen = os.fstat(handle)
        synced[seen.st_ino] = seen.st_size

    monkeypatch.setattr(os, "fsync", noted)
    disk, file = Disk(), tmp_path / "file"
    disk.write(file, [b"one part", b"and another"])
    disk.sync(tmp_path)
    assert synced[file.stat().st_ino] == len(b"one partand another")
    assert tmp_path.stat().st_ino in synced

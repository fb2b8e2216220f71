"""What the reference's checkpoints hold, refuse and sync, and the covering array of their combined runs."""

import os
from pathlib import Path

import pytest
import torch

from benchmarks._covering import covering
from contracts.law.checkpoint.combined import AXES, DROPPED, ROWS
from contracts.spec import Refused
from contracts.stacks.reference.checkpoint import manifest as manifests
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints, State
from contracts.stacks.reference.checkpoint.filesystem import Disk
from contracts.stacks.reference.checkpoint.manifest import Manifest, Piece, StoredTensor


def test_a_view_is_saved_without_the_rest_of_its_storage(tmp_path: Path) -> None:
    large = torch.randn(1000, 100)
    views = {"row": large[3:4], "column": large[:, 7], "turned": large[:4, :5].T}
    kept = Checkpoints(tmp_path)
    kept.save(State(step=1, tensors=views))
    held = sum(each.numel() * each.itemsize for each in views.values())
    shards = sum(path.stat().st_size for path in tmp_path.rglob("*.bin"))
    assert shards < held + 100, f"{shards} bytes for {held}"
    target = {name: torch.zeros_like(each) for name, each in views.items()}
    kept.load(target)
    assert all(torch.equal(target[name], each) for name, each in views.items())


def test_a_missing_checkpoint_folder_is_empty_and_the_first_save_creates_it(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path / "run-1" / "checkpoints")
    assert kept.latest() is None
    kept.save(State(step=1, tensors={"w": torch.ones(2)}))
    assert kept.latest() == 1


def test_saving_a_step_that_is_already_there_is_refused(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    kept.save(State(step=1, tensors={"w": torch.ones(2)}))
    with pytest.raises(Refused, match=r"step = 1: is in .* already"):
        kept.save(State(step=1, tensors={"w": torch.zeros(2)}))


def test_a_value_that_cannot_be_saved_is_refused_before_anything_is_written(tmp_path: Path) -> None:
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


def test_the_combined_runs_cover_every_pair_of_features() -> None:
    assert [row.split() for row in ROWS] == [[*row] for row in covering(AXES)]
    assert [row.split() for row in DROPPED] == [[*row] for row in covering(AXES, strength=1)]


def test_every_file_of_a_save_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

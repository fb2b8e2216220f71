"""A writer that knows of no faults meets them in a fork of this process."""

import tempfile
from pathlib import Path

import torch

from contracts.spec import WriteFault
from contracts.stacks.kit.checkpoints import changed, module_with


def test_a_simulated_crash_can_stop_a_write_after_each_change_and_within_a_file(tmp_path: Path) -> None:
    seen = []
    for boundary in range(1, 7):
        folder = tmp_path / str(boundary)
        folder.mkdir()

        def write(folder: Path = folder) -> None:
            (folder / "part").write_bytes(b"12345678")
            (folder / "part").rename(folder / "whole")

        written = changed(write, WriteFault(dies_after=boundary), (OSError,))
        held = {path.name: path.stat().st_size for path in folder.iterdir()}
        seen.append((written.ending, written.boundaries, held))
    died = [("died", 1, {"part": 0}), ("died", 2, {"part": 4}), ("died", 3, {"part": 8}), ("died", 4, {"whole": 8})]
    assert seen == [*died, *[("done", 4, {"whole": 8})] * 2]


def test_a_file_that_tempfile_makes_in_a_folder_has_boundaries_too(tmp_path: Path) -> None:
    """`tempfile` opens the folder, with an opener that makes the file."""

    def write() -> None:
        with tempfile.NamedTemporaryFile(dir=tmp_path, delete=False) as file:
            file.write(b"12345678")

    written = changed(write, WriteFault(dies_after=2), (OSError,))
    assert (written.ending, [path.stat().st_size for path in tmp_path.iterdir()]) == ("died", [4])


def test_torch_save_can_be_stopped_in_the_middle_of_a_file(tmp_path: Path) -> None:
    written = changed(lambda: torch.save({"w": torch.ones(3)}, tmp_path / "w"), WriteFault(dies_after=2), ())
    assert written.ending == "died"
    assert 0 < (tmp_path / "w").stat().st_size < 1000


def test_a_full_disk_is_a_refusal_that_says_so(tmp_path: Path) -> None:
    written = changed(lambda: _write(tmp_path / "w"), WriteFault(room=4), (OSError,))
    assert (written.ending, (tmp_path / "w").stat().st_size) == ("refused", 4)
    assert "File too large" in written.words


def _write(path: Path) -> None:
    path.write_bytes(b"12345678")


def test_a_module_made_from_tensors_has_their_names() -> None:
    given = {"w": torch.zeros(()), "layers.1.b/c": torch.arange(3), "layers.1.d": torch.ones(2, dtype=torch.bool)}
    held = module_with(given).state_dict()
    assert {name: each.tolist() for name, each in held.items()} == {name: each.tolist() for name, each in given.items()}

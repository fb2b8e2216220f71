"""Another process answers what forks after this one has used CUDA."""

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
from contracts.instruments import accelerator, numerics
from contracts.spec import Snapshot, WriteFault
from contracts.stacks import without_cuda
from contracts.stacks.reference.stack import Reference


def test_a_crash_in_a_save_is_the_same_in_a_process_without_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    state = Snapshot(step=3, tensors=numerics.arrays({"w": torch.arange(64.0)}), recipe="a")
    fault = WriteFault(dies_after=2)
    here = Reference().write_checkpoint(str(tmp_path / "here"), state, 64, fault)
    assert (here.ending, without_cuda._other.cache_info().currsize) == ("died", 0)
    monkeypatch.setattr(accelerator, "used", lambda: True)
    assert Reference().write_checkpoint(str(tmp_path / "there"), state, 64, fault) == here
    assert without_cuda._other.cache_info().currsize == 1
    for faults, ending in (({1: WriteFault(dies_after=1)}, "died"), ({1: WriteFault(room=0)}, "refused"), ({}, "done")):
        assert Reference().write_on_ranks(str(tmp_path / "ranks"), state, 2, faults)[1].ending == ending
    assert Reference().latest_checkpoint(str(tmp_path / "ranks")) == 3
    monkeypatch.setenv(without_cuda.SERVED, "1")
    monkeypatch.setattr(without_cuda, "_other", None)
    assert Reference().write_checkpoint(str(tmp_path / "served"), state, 64, fault) == here


def test_what_a_package_answers_in_a_fork_comes_from_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    party = Reference()
    monkeypatch.setattr(without_cuda, "_other", lambda process, stack: SimpleNamespace(write_checkpoint=lambda: stack))
    for name, used, expected in (
        ("write_checkpoint", True, "contracts.stacks.reference.stack:Reference"),
        ("write_checkpoint", False, "here"),
        ("load_checkpoint", True, "here"),
    ):
        monkeypatch.setattr(accelerator, "used", lambda used=used: used)
        assert without_cuda.unforked(party, name, lambda: "here")() == expected

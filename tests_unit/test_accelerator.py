"""Nobody asks CUDA for a device in a process that forks, and a fork that could not use one sees none."""

import os
import subprocess
from pathlib import Path

import pytest

from contracts.instruments import accelerator
from contracts.instruments.accelerator import Card
from tests_unit._parties.running import write

ROOT = Path(__file__).parents[1]
FOR_CUDA = sorted(ROOT.glob(".venv-torch-*/bin/python"))

SMI = """#!/bin/sh
[ "$2" = 3 ] || [ "$2" = GPU-3f ] || { echo "No devices were found"; exit 6; }
echo "NVIDIA H200, rev 2, 9.0"
"""


@pytest.mark.parametrize(("which", "found"), [("3", True), ("GPU-3f", True), ("MIG-3f", False), ("0", False)])
def test_the_named_card_is_the_visible_one(
    which: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"nvidia-smi": SMI}, mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert accelerator._of_the_command(which) == (Card("NVIDIA H200, rev 2", (9, 0)) if found else None)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert accelerator._of_the_command(which) is None


def _run(script: str, *, cards: int, nvml: str, at: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A script in a build of torch for CUDA that sees so many cards."""
    if not FOR_CUDA:
        pytest.skip("no build of torch for CUDA is here (`make torch TORCH=2.11.0`)")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'benchmarks/card'}:{ROOT}:{at}", "RANKPROOF_CARD": str(cards),
                   accelerator.NVML: nvml}  # fmt: skip
    environment.pop(accelerator.VISIBLE, None)
    return subprocess.run((str(FOR_CUDA[0]), "-W", "ignore", "-c", script), env=environment, capture_output=True,
                          text=True, timeout=280, check=False)  # fmt: skip


COMPILED = """
import torch, torch._inductor.compile_fx
from contracts.stacks.forked_call import in_a_fork
print(in_a_fork(lambda: "forked"))
"""


@pytest.mark.parametrize(("nvml", "said"), [("1", "forked\n"), ("0", "")])
def test_a_fork_after_a_device_was_used_ends_the_process(nvml: str, said: str) -> None:
    done = _run(COMPILED, cards=0, nvml=nvml)
    assert done.stdout == said, done.stderr
    assert ("forked from one that had asked CUDA" in done.stderr) == (nvml == "0")
    assert ("exit code 70" in done.stderr) == (nvml == "0")


TRAINED = """
import torch
from contracts.instruments import accelerator
from contracts.stacks.forked_call import in_a_fork

(torch.ones(2, requires_grad=True) * 2).sum().backward()

def used():
    try:
        return str(torch.cuda.get_device_capability())
    except RuntimeError as error:
        return str(error)[:24]

def seen():
    return f"{torch.cuda.is_available()} {torch.cuda.device_count()} {torch.accelerator.is_available()}"

def hidden():
    accelerator.hide()
    return seen()

print(seen(), in_a_fork(used), in_a_fork(hidden), accelerator.first(), sep="; ")
"""


def test_a_fork_that_hides_its_devices_sees_none_after_a_backward_pass() -> None:
    done = _run(TRAINED, cards=1, nvml="1")
    assert done.stdout.split("; ") == [
        "True 1 False", "Cannot re-initialize CUD", "False 0 False",
        "Card(name='NVIDIA H200 (imitated)', capability=(9, 0))\n",
    ], done.stderr  # fmt: skip


ASKED = """
import os
from contracts.stacks.reference.answers import forked_interpreter
asked = {"words": ["told", "argument"], "said": "standard input", "environment": dict(os.environ), "folder": None}
print(forked_interpreter.run(asked, seconds=200))
"""
TOLD = """
import sys, torch
print(sys.argv[1:], input(), torch.cuda._is_in_bad_fork(), "contracts" in sys.modules)
"""


@pytest.mark.parametrize(("nvml", "forked"), [("1", True), ("0", False)])
def test_a_module_runs_in_a_new_interpreter_if_a_fork_would_lose_the_device(
    nvml: str, forked: bool, tmp_path: Path
) -> None:
    (tmp_path / "told.py").write_text(TOLD)
    done = _run(ASKED, cards=1, nvml=nvml, at=tmp_path)
    assert f"['argument'] standard input False {forked}" in done.stdout, done.stdout + done.stderr


TOUCHING = """
import torch
from contracts.stacks.reference.stack import Reference
from tests_unit._parties.running import write

if torch.cuda.is_available():
    torch.cuda.init()


class Touching(Reference):
    name = "touching"
"""


def test_a_stack_that_initialises_cuda_on_import_can_be_judged(tmp_path: Path) -> None:
    (tmp_path / "touching.py").write_text(TOUCHING)
    words = ["check", "--with", "none", "--stack", "touching:Touching", "--device", "cpu", "--report", str(tmp_path),
             "--profile", "CKPT-03a[first],CKPT-03d[the-first-of-two],CKPT-01l,ENV-09b"]  # fmt: skip
    done = _run(f"import sys; from contracts.harness.cli import main; main({words})", cards=1, nvml="1", at=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CONFORMANT: touching" in done.stdout

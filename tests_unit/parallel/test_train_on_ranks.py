"""The trainer's command on several ranks: killed, and resumed on others, it ends where one rank ends undisturbed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from contracts.harness.child_process import descendants
from contracts.harness.torchrun import environment
from contracts.instruments import numerics
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints, State
from tests_unit._parties.running import ran

pytestmark = pytest.mark.torchrun

SMALL = ("--recipe", "tiny-nam56r", "--set", "dtype=fp32", "--set", "seq_length=32", "--set", "batch.total=4",
         "--set", "batch.micro=1", "--set", "checkpoint.interval=2")  # fmt: skip
PATIENCE_S = 240
ADAM = 1e-4  # of a weight's length: a step divides by the root of a gradient's square, so that 5e-7 is 1e-5 in places


def _command(ranks: int, *words: str) -> tuple[str, ...]:
    trainer = ("-m", "contracts.stacks.reference.train", *SMALL, *words)
    if ranks == 1:
        return (sys.executable, *trainer)
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    return (sys.executable, *launcher, *trainer)


def _run(ranks: int, *words: str) -> None:
    ran(_command(ranks, *words), env=environment(), limit_s=PATIENCE_S, code=0)


def _worker(launcher: int, rank: int) -> int:
    """The process of a rank."""
    for pid in descendants(launcher):
        if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return pid
    raise AssertionError(f"torchrun has no rank {rank}")


def _killed_after_a_save(folder: Path, ranks: int, *words: str) -> None:
    """Start a run and kill its last rank as soon as there is a checkpoint."""
    with subprocess.Popen(_command(ranks, *words), env=environment(), stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:  # fmt: skip
        try:
            deadline = time.monotonic() + PATIENCE_S
            while Checkpoints(folder).latest() is None:
                assert running.poll() is None, f"the run ended with {running.returncode} before its first checkpoint"
                assert time.monotonic() < deadline, "no checkpoint came"
                time.sleep(0.1)
            os.kill(_worker(running.pid, ranks - 1), signal.SIGKILL)
            assert running.wait(PATIENCE_S) != 0, "a rank was killed, and the run ended with 0"
        finally:
            for pid in descendants(running.pid) if running.poll() is None else ():
                os.kill(pid, signal.SIGKILL)
            running.kill()


def _held(folder: Path, step: int) -> State:
    kept = Checkpoints(folder)
    manifest = kept.opened(step)
    blank = {name: torch.zeros(held.shape, dtype=getattr(torch, held.dtype)) for name, held in manifest.tensors.items()}
    return kept.load(blank, recipe=manifest.recipe, step=step)


def _furthest(got: State, want: State) -> tuple[float, str]:
    """The weight that differs most from another state's, and by how much of its length."""
    names = [name for name in want.tensors if name.startswith("weights/")]
    return max((numerics.distances(got.tensors[name], want.tensors[name])["L2"].relative, name) for name in names)


def test_a_killed_run_continues_on_other_ranks_as_if_uninterrupted(tmp_path: Path) -> None:
    """Four ranks of tp 2 and ep 2, one of them killed; then two that shard over data; and one, undisturbed."""
    folder, alone = tmp_path / "run" / "checkpoints", tmp_path / "alone" / "checkpoints"
    save = ("--save", str(tmp_path / "run"))
    _killed_after_a_save(folder, 4, *save, "--tp", "2", "--ep", "2", "--steps", "50")
    reached = Checkpoints(folder).latest()
    last = reached + 2
    _run(2, *save, "--steps", str(last), "--resume")
    _run(1, "--save", str(tmp_path / "alone"), "--steps", str(last))
    got, want = _held(folder, last), _held(alone, last)
    assert got.position["consumed"] == want.position["consumed"] == 4 * last
    assert _furthest(got, want) < (ADAM, "")
    assert _furthest(_held(folder, reached), want) > (100 * ADAM, ""), "the steps after the resume moved nothing"

"""The reference's answers about a training run that is observed."""

import atexit
import functools
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from contracts.spec.interpreter import python
from contracts.stacks.line_process import without_launcher
from contracts.stacks.reference.answers.observed_ranks import Job

PATIENCE_S = 120.0
SCRIPT = Path(__file__).parents[1] / "training" / "small_script.py"
RUNS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "judged": (2, ()),
    "one-rank": (1, ("--dropout", "0")), "spread": (2, ("--dropout", "0")),
    "whole": (1, ("--steps", "3", "--save", "{file}")), "resumed": (1, ("--steps", "3", "--resume", "{file}")),
    "plain": (1, ()), "recomputed": (1, ("--recompute",)),
}  # fmt: skip
"""Each run of the script: its ranks and its arguments."""


class ObservingAnswers:
    """The answer of `Reference` on this subject. A mutant edits the script: `edits` are words and what stands there
    instead."""

    edits: Mapping[str, str] = {}

    def trace(self, run: str = "judged") -> str:
        text = SCRIPT.read_text(encoding="utf-8")
        for old, new in self.edits.items():
            if text.count(old) != 1:
                raise AssertionError(f"{old!r} stands {text.count(old)} times in {SCRIPT.name}, expected once")
            text = text.replace(old, new)
        file = Path(_observed(text, "whole")).parent / "state.pt" if run == "resumed" else None
        return _observed(text, run, file)


@functools.cache
def _observed(text: str, run: str, file: Path | None = None) -> str:
    """Run a script on ranks of this machine and observe it; a script that fails leaves its trace all the same."""
    world, words = RUNS[run]
    folder = Path(tempfile.mkdtemp(prefix="rankproof-trace-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "train.py").write_text(text, encoding="utf-8")
    told = [word.format(file=file or folder / "state.pt") for word in words]
    codes = observe(folder, ("train.py", *told), folder / "trace", world)
    if -signal.SIGABRT in codes or not (folder / "trace").exists():
        said = [each.read_text(errors="replace")[-3000:] for each in sorted(folder.glob("stderr-*"))]
        raise RuntimeError(f"the script ended with {codes}, hung or unobserved: {' '.join(said)}")
    return str(folder / "trace")


def observe(folder: Path, words: Sequence[str], trace: Path, ranks: int, *, seconds: float = PATIENCE_S) -> list[int]:
    """Run a script, with its arguments, on ranks that observe it. The output of each is in `folder`, in `stderr-RANK`,
    and where it was if it did not end.

    Returns:
        The exit codes of the ranks.
    """
    server = _server(os.getpid())
    assert server.stdin is not None
    assert server.stdout is not None
    job = Job(words=[*words], folder=str(folder), trace=str(trace), ranks=ranks, seconds=seconds)
    try:
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        answered = server.stdout.readline()
    except BaseException:  # a deadline, say: the next answer would be this one
        _end(server)
        _server.cache_clear()
        raise
    if not answered:
        _server.cache_clear()
        raise RuntimeError(f"who runs scripts on ranks ended with {server.wait()}")
    codes: list[int] = json.loads(answered)
    return codes


@functools.cache
def _server(process: int) -> subprocess.Popen[str]:
    """The script runner of this process, which ends with it; forks start their own."""
    command = python("-m", "contracts.stacks.reference.answers.observed_ranks")
    environment = {"OMP_NUM_THREADS": "1", **without_launcher(os.environ)}
    server = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[str]) -> None:
    server.kill()
    server.communicate()

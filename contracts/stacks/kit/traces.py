"""Observed runs of a stack's own training script: what an adapter answers to `trace`."""

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contracts.spec import NotOffered
from contracts.spec.interpreter import python
from contracts.stacks.line_process import without_launcher

SCRIPTS = Path(__file__).parents[1] / "scripts"
LIMIT_S = 240.0
"""Of one run with all its ranks; the slowest, which imports a whole stack on each of two ranks, takes 30."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """One run of a script.

    Args:
        words: the script and its arguments. `{kept}` becomes a folder that the runs of a stack share.
        ranks: how many torchrun starts.
        options: of `observe`. `{before}` becomes the trace of the run that came first.
        before: the run that must come first, "" for none.
    """

    words: tuple[str, ...]
    ranks: int = 1
    options: tuple[str, ...] = ()
    before: str = ""


def observed(who: str, runs: Mapping[str, Script], run: str) -> str:
    """The folder with the trace of one of a stack's runs. Each run is made once in a process, and kept until it ends.

    Raises:
        NotOffered: for a run that is none of `runs`.
        RuntimeError: where nothing was observed, with the last words of the ranks.
    """
    if run not in runs:
        raise NotOffered(f"{who}: its script has no run {run!r}")
    return _observed(tuple(runs.items()), run)


@functools.cache
def _observed(runs: tuple[tuple[str, Script], ...], run: str) -> str:
    script = dict(runs)[run]
    before = _observed(runs, script.before) if script.before else ""
    folder = _folder(os.getpid())
    places, trace = {"kept": str(folder / "kept"), "before": before}, folder / run
    observing = python("-W", "ignore", "-m", "rankproof", "observe", "--out", str(trace))
    launcher = python("-m", "torch.distributed.run", "--standalone", "--no-python", f"--nproc-per-node={script.ranks}")
    words = [each.format(**places) for each in (*script.options, *script.words)]
    outside = without_launcher(os.environ)
    ended = subprocess.run(
        [*launcher, *observing, *words], cwd=SCRIPTS, capture_output=True, text=True, errors="replace",
        env={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **outside, "PYTHONPATH": _importable(outside)},
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    if not trace.exists():
        raise RuntimeError(f"nothing was observed of {' '.join(script.words)}: {ended.stderr.strip()[-2000:]}")
    return str(trace)


@functools.cache
def _folder(process: int) -> Path:
    """Where the traces of a process lie; a fork has its own."""
    folder = Path(tempfile.mkdtemp(prefix="rankproof-traces-"))
    (folder / "kept").mkdir()

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def _importable(environment: Mapping[str, str]) -> str:
    """The path on which ranks find this package, wherever this process found it."""
    return os.pathsep.join(filter(None, (str(Path(__file__).parents[3]), environment.get("PYTHONPATH", ""))))

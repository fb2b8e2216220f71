"""What the reference answers about a training run that is observed."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "training" / "small_script.py"
RUNS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "judged": (2, ()),
    "one-rank": (1, ("--dropout", "0")), "spread": (2, ("--dropout", "0")),
    "whole": (1, ("--steps", "3", "--save", "{file}")), "resumed": (1, ("--steps", "3", "--resume", "{file}")),
    "plain": (1, ()), "recomputed": (1, ("--recompute",)),
}  # fmt: skip
"""Each run of the script: its ranks and its arguments."""
PATIENCE_S = 240.0


class ObservingAnswers:
    """The answer of `Reference` on this subject. A mutant edits the script: `edits` are words and what stands there
    instead."""

    QUESTIONS: frozenset[str] = frozenset({"trace"})
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
    script = folder / "train.py"
    script.write_text(text, encoding="utf-8")
    outside = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    kept = {k: v for k, v in os.environ.items() if k not in outside and not k.startswith("TORCHELASTIC_")}
    ranks = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", "--no-python")
    # -P: a folder `contracts/` of whoever runs this is not the suite
    command = (*ranks, sys.executable, "-P", "-m", "contracts.observe", "--out", str(folder / "trace"), str(script),
               *(word.format(file=file or folder / "state.pt") for word in words))  # fmt: skip
    done = subprocess.run(
        command, cwd=folder, env={"OMP_NUM_THREADS": "1", **kept}, stdin=subprocess.DEVNULL, capture_output=True,
        timeout=PATIENCE_S, check=False, text=True, errors="replace",
    )  # fmt: skip
    if not (folder / "trace").exists():
        raise RuntimeError(f"nothing was observed: {done.stderr[-2000:]}")
    return str(folder / "trace")

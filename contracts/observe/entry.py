"""Runs a script as if it had been started directly, and observes it."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from contracts.spec.errors import Refusals


def run(
    words: Sequence[str], out: Path, *, module: bool = False, steps: int = 3, perturb: int | None = None,
    collectives: bool = True,
) -> None:  # fmt: skip
    """Run `words`, a script (or, with `module`, the name of a module) and its arguments, as `__main__`.

    Whatever ends the script ends this call: SystemExit and every other exception pass through, and the trace says so.

    Raises:
        Refused: where there is no such script, or the trace cannot be written; the script was not run.
    """
    found = Refusals()
    found.unless(steps >= 1, "steps", steps, "must be at least 1", "leave it out for 3")
    found.unless(module or Path(words[0]).is_file(), "script", words[0], "is no file", "give a script, or -m MODULE")
    found.raise_any()

    from contracts import observe
    from contracts.observe.recorder import Recorder  # imports torch, which a command that is refused does not need
    from contracts.observe.trace import Writer

    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    about = {"run": f"{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{attempt}", **versions(), "perturb": perturb}
    writer = Writer(out, rank, world, words, about)
    recorder = Recorder(writer, steps, perturb=perturb, collectives=collectives)
    observe.ACTIVE.append(recorder)
    sys.argv = list(words)
    sys.path[0] = os.getcwd() if module else str(Path(words[0]).resolve().parent)
    make_way(Path(sys.path[0]))
    recorder.start()
    error = ""
    try:
        if module:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        error = "" if ended.code in (None, 0) else f"SystemExit: {ended.code}"
        raise
    except BaseException as ended:
        error = f"{type(ended).__name__}: {ended}"
        raise
    finally:
        recorder.close(error)


def versions() -> dict[str, str]:
    import torch

    return {"torch": torch.__version__, "device": "cuda" if torch.cuda.is_available() else "cpu"}


def make_way(folder: Path) -> None:
    """Leave the name `contracts` to a package of the script's own.

    Everything that the recorder needs is imported by now, and stays alive without its place in `sys.modules`.
    """
    own = folder / "contracts"
    if not own.is_dir() or own.resolve() == Path(__file__).resolve().parents[1]:
        return
    for name in [each for each in sys.modules if each.partition(".")[0] == "contracts"]:
        del sys.modules[name]

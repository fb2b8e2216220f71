"""Runs a script as if it had been started directly, and observes it."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts import observe
from contracts.observe.started import Options, observed
from contracts.spec import launchers
from contracts.spec.errors import Refusals, Refused

if TYPE_CHECKING:
    from contracts.observe.merged import Whole
    from contracts.observe.recorder import Recorder


class Script:
    """A script with its arguments; with `module`, the name of a module and its arguments."""

    def __init__(self, words: Sequence[str], *, module: bool = False) -> None:
        self.words, self.module = tuple(words), module
        self.recorder: Recorder | None = None
        self.options: Options | None = None

    def observe(self, options: Options) -> None:
        """Begin the trace of this rank. What torchrun starts again has a folder of its own beside `out`. A rank that no
        launcher has started is known by its process group, when it makes its first step.

        Raises:
            Refused: where there is no such script, or the trace cannot be written; nothing was run.
        """
        found = Refusals()
        out, steps, lender = options.out, options.steps, options.lender
        found.unless(steps >= 1, "steps", steps, "must be at least 1", "leave it out for 3")
        known = self.module or Path(self.words[0]).is_file()
        found.unless(known, "script", self.words[0], "is no file", "give a script, or -m MODULE")
        lent = _lent(lender, found) if lender is not None else None
        found.raise_any()

        from contracts.observe.recorder import Recorder  # torch, which a command that is refused does not need
        from contracts.observe.trace import Writer, refuse_traces

        launched = _grouped() or ("RANK" in os.environ and not (options.started and multiprocessing.parent_process()))
        if not launched and not options.started and not any(map(launchers.names_rank, os.environ)):
            refuse_traces(out)
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        run = f"{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{attempt}"
        out = out if attempt == "0" else out.with_name(f"{out.name}-restart-{attempt}")
        writer = Writer(
            out, *_place(), self.words,
            {"run": run, "perturb": options.perturb, "shims": options.shims, "lent": lent is not None,
             "torch": _torch()}, place=None if launched else _place,
        )  # fmt: skip
        self.options = None if launched and not options.started else options
        self.recorder = Recorder(
            writer, steps, perturb=options.perturb, collectives=options.collectives, keep=options.keep,
            full=options.full, lent=lent, stops=options.stops,
        )  # fmt: skip

    def run(self) -> None:
        """Run the script as `__main__`. Whatever ends it ends this call, and the trace says what that was."""
        sys.argv = list(self.words)
        folder = Path.cwd() if self.module else Path(self.words[0]).resolve().parent
        sys.path[: not sys.flags.safe_path] = [str(folder)]  # instead of where this command lies, if that stands there
        with self.observing():
            make_way(folder)
            if self.module:
                runpy.run_module(self.words[0], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(self.words[0], run_name="__main__")

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Observe what runs inside, and the ranks that it starts itself if no launcher has started this one."""
        if self.recorder is not None:
            observe.ACTIVE.append(self.recorder)
            self.recorder.start()
        error, others = "", []
        try:
            with ExitStack() as stack:
                if self.options is not None:
                    own = observed(self.words, module=self.module, options=self.options, rank=Rank)
                    others = stack.enter_context(own)
                yield
        except SystemExit as ended:
            error = "" if ended.code in (None, 0) else f"SystemExit: {ended.code}"
            raise
        except BaseException as ended:
            error = f"{type(ended).__name__}: {ended}"
            raise
        finally:
            if self.recorder is not None:
                observe.ACTIVE.remove(self.recorder)
                self.recorder.close(error, is_rank=not others)


@dataclass(frozen=True, kw_only=True)
class Rank:
    """What a process of multiprocessing does, observed."""

    target: Callable[..., Any]
    script: tuple[str, ...]
    module: bool
    options: Options

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        script = Script(self.script, module=self.module)
        script.observe(replace(self.options, started=True))
        with script.observing():
            return self.target(*arguments, **named)


@contextmanager
def observing(
    out: Path | str, *, steps: int = 3, collectives: bool = True, keep_weights: bool = False, full: Sequence[str] = (),
    weights_from: Path | str | None = None,
) -> Iterator[None]:  # fmt: skip
    """Observe what this process trains inside, as `rankproof observe` observes a script: in a notebook, or where a
    launcher of its own has started the ranks. Each rank calls it with one folder; models are best built inside.

    Raises:
        Refused: where the trace cannot be written, or holds one already.
    """
    script = Script(sys.argv[:1] or ("notebook",), module=True)
    lender = Path(weights_from) if weights_from is not None else None
    script.observe(Options(out=Path(out), steps=steps, collectives=collectives, keep=keep_weights, full=tuple(full),
                           lender=lender))  # fmt: skip
    script.options = None  # what this process starts is no run of its script
    with script.observing():
        yield


def make_way(folder: Path) -> None:
    """Leave the name `contracts` to a package of the script's own, and no word of this suite in its way.

    Everything that the recorder needs is imported by now, and stays alive without its place in `sys.modules`.
    """
    own = folder / "contracts"
    if not own.is_dir() or own.resolve() == Path(__file__).resolve().parents[1]:
        return
    for name in [each for each in sys.modules if each.partition(".")[0] == "contracts"]:
        del sys.modules[name]


def _lent(folder: Path, found: Refusals) -> Mapping[str, Whole]:
    """The weights that a trace kept from before its first step."""
    from contracts.observe.merged import Merged
    from contracts.observe.trace import read

    try:
        merged = Merged(read(folder))
        weights = merged.tensors("weight", 1)
    except Refused as error:
        found.extend(error)
        return {}
    kept = {name: each for name, each in weights.items() if each.kept is not None}
    problem = f"kept {len(kept)} of {len(weights)} weights"
    found.unless(0 < len(kept) == len(weights), "weights-from", str(folder), problem, "record it with --keep-weights")
    # a stage of a pipeline has a parameter of its own where one rank ties two
    pairs = (pair for _, line in merged.lines("tied") for pair in itertools.permutations(line["names"], 2))
    return {**{other: kept[one] for one, other in pairs if one in kept}, **kept}


def _grouped() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def _place() -> tuple[int, int]:
    """The number of this rank and how many there are: as the process group says, or the launcher."""
    import torch.distributed as dist

    if _grouped():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _torch() -> str:
    import torch

    return torch.__version__

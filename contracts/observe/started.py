"""Ranks that a script starts itself, as torch.multiprocessing.spawn and Lightning's launcher do: they are observed too.

A process of multiprocessing whose function is not the standard library's or a data loader's is observed, and so is a
command that runs the script again. A process that makes no step writes no trace.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_NOT_RANKS = ("multiprocessing.", "concurrent.", "torch.utils.data.", "joblib.")
_FLAGS = frozenset({"-u", "-B", "-O", "-OO", "-P", "-s", "-q", "-v"})
"""Of Python, without a value."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a run is observed: the options of `rankproof observe`."""

    out: Path
    steps: int = 3
    perturb: int | None = None
    collectives: bool = True
    keep: bool = False
    full: tuple[str, ...] = ()
    lender: Path | None = None
    shims: str = ""
    stack: str | None = None
    started: bool = False
    stops: bool = False

    def words(self) -> Iterator[str]:
        """The same on a command line."""
        yield from ("--out", str(self.out.resolve()), "--steps", str(self.steps))
        lender = self.lender and self.lender.resolve()
        for name, value in (("--perturb", self.perturb), ("--weights-from", lender), ("--on-cpu", self.stack)):
            yield from () if value is None else (name, str(value))
        yield from (word for each in self.full for word in ("--full", each))
        yield from ["--keep-weights"] * self.keep + ["--no-collectives"] * (not self.collectives)
        yield from ["--stop"] * self.stops


@contextmanager
def observed(
    script: Sequence[str], *, module: bool, options: Options, rank: Callable[..., Callable[..., Any]]
) -> Iterator[list[str]]:
    """Observe what the script starts meanwhile; the list names it. `rank` makes a process of multiprocessing observed.

    If the script has a package `contracts` of its own, its processes could not import this one, and are let be.
    """
    found: list[str] = []
    popen, start = subprocess.Popen.__init__, BaseProcess.start

    def make(process: Any, args: Any, *more: Any, **named: Any) -> None:
        again = _again(args, script, module=module, options=options)
        found.extend(again[:1])
        popen(process, again or args, *more, **named)

    def begin(process: Any) -> None:
        target = process._target  # private, of every process; Python 3.8 - 3.14
        importable = sys.modules.get(__name__) is not None and sys.modules[__name__].observed is observed
        if importable and callable(target) and not f"{target.__module__}.".startswith(_NOT_RANKS):
            found.append(process.name)
            process._target = rank(target=target, script=tuple(script), module=module, options=options)
        start(process)

    patched: tuple[tuple[Any, str, Any, Any], ...] = (
        (subprocess.Popen, "__init__", make, popen), (BaseProcess, "start", begin, start)
    )  # fmt: skip
    for owner, name, new, _ in patched:
        setattr(owner, name, new)
    try:
        yield found
    finally:
        for owner, name, _, before in patched:
            setattr(owner, name, before)


def _again(args: Any, script: Sequence[str], *, module: bool, options: Options) -> list[str]:
    """The command that observes a script where it is started again; nothing if `args` do something else."""
    if not isinstance(args, (list, tuple)) or not all(isinstance(each, (str, os.PathLike)) for each in args):
        return []
    python, *rest = [os.fspath(each) for each in args] or [""]
    flags = []
    while rest and rest[0] in _FLAGS:
        flags.append(rest.pop(0))
    named = rest[1:] if rest[:1] == ["-m"] else []
    same = named[:1] == [script[0]] if module else rest and Path(rest[0]).resolve() == Path(script[0]).resolve()
    if not same or Path(python).resolve() != Path(sys.executable).resolve():
        return []
    return [python, *flags, "-m", "rankproof", "observe", "--started", *options.words(), *rest]

"""Stacks that are bad in one way each: every way in which a party can fail the gate instead of a promise.

Each is loaded by name (`--stack tests_unit._parties.bad:Hangs`). What is not broken in them is the reference's.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from contracts.spec import Degrees, Layout, NotOffered, Recipe, Topology
from contracts.stacks.reference.stack import Reference
from tests_unit._parties.hostile import raises


class Bare:
    """Who it is, and one question that it claims."""

    name = "bad"
    version = "1"
    layouts: frozenset[Layout] = frozenset({"own-axis", "borrowed"})
    labels: Mapping[str, str] = {}
    offers = frozenset({"blocks"})


class RaisesOnEverything(Reference):
    def __getattribute__(self, name: str) -> Any:
        if name in type(self).offers:
            raise ZeroDivisionError("integer division by zero")
        return super().__getattribute__(name)


class AnswersNan(Reference):
    def preset(self, name: str, acknowledge: tuple[str, ...]) -> Recipe:
        recipe = super().preset(name, acknowledge)
        optim = replace(recipe.optim)
        object.__setattr__(optim, "lr", float("nan"))
        object.__setattr__(recipe, "optim", optim)
        return recipe


class AnswersATypeOfItsOwn(Reference):
    """Has all the right fields, but the type is not the protocol's."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Any:
        class Topology:
            pass

        mine = Topology()
        vars(mine).update(vars(super().topology(degrees, world, layout)))
        return mine


def _retries_for_ever(pattern: str, depth: int) -> Any:
    """Swallows whatever wakes it."""
    while True:
        try:
            time.sleep(60)
        except Exception:
            continue


def _crashes_natively(pattern: str, depth: int) -> Any:
    """What a wrong pointer in a kernel does."""
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    ctypes.string_at(0)


BUILT: dict[str, Callable[..., Any]] = {
    "CannotBeBuilt": raises(RuntimeError("no driver on this machine")),
    "HangsWhenBuilt": lambda: time.sleep(60),
    "LeavesWhenBuilt": raises(SystemExit(0)),
}
"""Class → what it does while it is built."""
ASKED: dict[str, Callable[..., Any]] = {
    "DeclinesEverything": raises(NotOffered("not today")),
    "AnswersNone": lambda pattern, depth: None,
    "AnswersText": lambda pattern, depth: "ablock" * depth,  # a sequence of strings, and no tuple of block names
    "NestsWrongly": lambda pattern, depth: (("ablock",) * depth,),
    "Hangs": lambda pattern, depth: time.sleep(60),
    "RetriesForEver": _retries_for_ever,
    "TimesOutItself": raises(TimeoutError("the rendezvous did not answer")),  # its own, and not the gate's deadline
    "AssertsItself": raises(AssertionError("depth is 52, expected 13")),
    "LeavesWhenAsked": raises(SystemExit(0)),
    "SkipsWhenAsked": raises(pytest.skip.Exception("no GPU here")),  # which no `except Exception` sees
    "EndsTheSession": raises(pytest.exit.Exception("enough", returncode=0)),
    "Interrupts": raises(KeyboardInterrupt()),
    "EndsItsProcess": lambda pattern, depth: os._exit(0),
    "CrashesNatively": _crashes_natively,
}
"""Class → its answer to `blocks`, the one question that it claims."""
SAYS: dict[str, dict[str, Any]] = {
    "ClaimsWhatItLacks": {},  # it has no method `blocks`
    "ClaimsNothing": {"offers": frozenset()},
    "OffersAList": {"offers": [*Bare.offers]},
    "OffersWhatNobodyAsks": {"offers": frozenset({"blocks", "bloks"})},
    "HasNoName": {"name": ""},
}
"""Class → what it says of itself."""


def _answering(answer: Callable[..., Any]) -> dict[str, Any]:
    return {"blocks": lambda self, pattern, depth: answer(pattern, depth)}


for _name, _built in BUILT.items():
    globals()[_name] = type(_name, (Reference,), {"__init__": lambda self, built=_built: built()})
for _name, _said in (SAYS | {name: _answering(answer) for name, answer in ASKED.items()}).items():
    globals()[_name] = type(_name, (Bare,), _said)


class DoesNotClaim(Reference):
    """Answers `stages` rightly and does not say so."""

    offers = Reference.offers - {"stages"}


class IsKilledHalfway(Reference):
    """The second case of a run never comes back: the machine was taken away."""

    asked = 0

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        type(self).asked += 1
        if type(self).asked > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().topology(degrees, world, layout)


class EndsAWorker(Reference):
    """Ends whichever process asks it about a world of 72 ranks: one item of TOPO-02."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        if world == 72:
            os._exit(0)
        return super().topology(degrees, world, layout)


class Prints(Reference):
    """Correct, and talks on standard output all the time, past Python's own as well."""

    def __init__(self) -> None:
        sys.stdout.write("loading weights: 100 %\n")
        os.write(1, b"NCCL INFO bootstrap\n")

    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        sys.stdout.write('{"word": "conformant"}\n')
        return super().blocks(pattern, depth)


class IsNoStack:
    """Nothing of what a party says of itself."""


class ForgetsPipeline(Reference):
    """Correct in everything but TOPO-02: data parallelism does not know of the pipeline."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        built = super().topology(degrees, world, layout)
        return replace(built, dp=built.dp * degrees.pp) if degrees.pp > 1 else built


class RightAndHonest(Reference):
    """The control: what the gate lets through."""

    name = "right"

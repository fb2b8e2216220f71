"""Stacks that are bad in one way each: every way in which a party can fail the gate instead of a promise.

Each is loaded by name (`--stack tests_unit._parties.bad:Hangs`). What is not broken in them is the reference's.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from contracts.spec import Degrees, Layout, NotOffered, Recipe, Topology
from contracts.stacks.reference.stack import Reference


class Bare:
    """Who it is, and one question that it claims."""

    name = "bad"
    version = "1"
    layouts: frozenset[Layout] = frozenset({"own-axis", "borrowed"})
    labels: Mapping[str, str] = {}
    offers = frozenset({"blocks"})


class CannotBeBuilt(Reference):
    def __init__(self) -> None:
        raise RuntimeError("no driver on this machine")


class HangsWhenBuilt(Reference):
    def __init__(self) -> None:
        time.sleep(60)


class LeavesWhenBuilt(Reference):
    def __init__(self) -> None:
        raise SystemExit(0)


class RaisesOnEverything(Reference):
    def __getattribute__(self, name: str) -> Any:
        if name in type(self).offers:
            raise ZeroDivisionError("integer division by zero")
        return super().__getattribute__(name)


class ClaimsWhatItLacks(Bare):
    """Says it answers `blocks` and has no such method."""


class DeclinesEverything(Bare):
    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        raise NotOffered("not today")


class DoesNotClaim(Reference):
    """Answers `stages` rightly and does not say so."""

    offers = Reference.offers - {"stages"}


class ClaimsNothing(Bare):
    offers = frozenset()


class AnswersNan(Reference):
    def preset(self, name: str, acknowledge: tuple[str, ...]) -> Recipe:
        recipe = super().preset(name, acknowledge)
        optim = replace(recipe.optim)
        object.__setattr__(optim, "lr", float("nan"))
        object.__setattr__(recipe, "optim", optim)
        return recipe


class AnswersNone(Bare):
    def blocks(self, pattern: str, depth: int) -> Any:
        return None


class AnswersText(Bare):
    """A string is a sequence of strings, and no tuple of block names."""

    def blocks(self, pattern: str, depth: int) -> Any:
        return "ablock" * depth


class NestsWrongly(Bare):
    def blocks(self, pattern: str, depth: int) -> Any:
        return (tuple("ablock" for _ in range(depth)),)


class AnswersATypeOfItsOwn(Reference):
    """Has all the right fields, but the type is not the protocol's."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Any:
        class Topology:
            pass

        mine = Topology()
        vars(mine).update(vars(super().topology(degrees, world, layout)))
        return mine


class Hangs(Bare):
    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        time.sleep(60)
        return ()


class RetriesForEver(Bare):
    """Hangs and swallows whatever wakes it."""

    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        while True:
            try:
                time.sleep(60)
            except Exception:
                continue


class TimesOutItself(Bare):
    """Its own time-out is its own failure and not the gate's deadline."""

    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        raise TimeoutError("the rendezvous did not answer")


class AssertsItself(Bare):
    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        assert depth < 0, "depth is 52, expected 13"
        return ()


class LeavesWhenAsked(Bare):
    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        raise SystemExit(0)


class SkipsWhenAsked(Bare):
    """Under pytest a skip is an outcome of its own, which no `except Exception` sees."""

    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        pytest.skip("no GPU here")


class EndsTheSession(Bare):
    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        pytest.exit("enough", returncode=0)


class Interrupts(Bare):
    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        raise KeyboardInterrupt


class EndsItsProcess(Bare):
    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        os._exit(0)


class CrashesNatively(Bare):
    """What a wrong pointer in a kernel does."""

    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        ctypes.string_at(0)
        return ()


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


class OffersAList(Bare):
    offers: Any = [*Bare.offers]  # noqa: RUF012  # the mutable value is the fault


class OffersWhatNobodyAsks(Bare):
    offers = frozenset({"blocks", "bloks"})


class HasNoName(Bare):
    name = ""


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

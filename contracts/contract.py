"""What a promise is: an id, a statement, the questions it asks, cases worked out by hand, and a check that judges.

A contract is a plain function over a stack. Its docstring is the promise (first paragraph) and the story behind it
(the rest). A promise that cannot be tested yet is declared with `untested`, so that it stands in every report instead
of being forgotten. A mutant is a stack broken in one place, which proves that a promise can fail for declared words.

Ids are permanent. A row of the law may be split (`PAT-04a`); a retired id is never given again.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from contracts.spec.stack import questions
from contracts.spec.topology import Layout

Tier = Literal["unit", "gpu", "dist"]
TIERS: tuple[Tier, ...] = ("unit", "gpu", "dist")

_ID = re.compile(r"[A-Z]+-\d{2}[a-z]?")
_Check = TypeVar("_Check", bound=Callable[..., None])
_Class = TypeVar("_Class", bound=type)


@dataclass(frozen=True, kw_only=True)
class Contract:
    """One promise with its cases.

    Args:
        id: `FAMILY-NN`, with a letter where a row of the law is split.
        check: `check(stack, *case)`; raises AssertionError with the values when the promise is broken.
        asks: the questions it puts to a stack. One that the stack does not offer may be answered by an assisting
            party (a launcher's parser, say); at least one must be answered by the stack itself.
        cases: name → arguments, literals worked out by hand.
        source: where the promise comes from.
        layout: the parallel layout it is about; None when it is about any or none.
        slow: whether a case takes more than some seconds (a compiler that starts cold). `pytest -m unit` leaves those
            to `pytest -m slow`, and the profile `dist4` to `dist`; the other profiles plan them.
    """

    id: str
    check: Callable[..., None]
    asks: tuple[str, ...]
    cases: Mapping[str, tuple[Any, ...]]
    source: str
    tier: Tier
    layout: Layout | None = None
    slow: bool = False

    @property
    def family(self) -> str:
        return self.id.split("-")[0]

    @property
    def of_the_court(self) -> bool:
        """Whether it is a promise of the gate itself, put to the court instead of the stack under test."""
        return all(questions()[asked].of_the_court for asked in self.asks)

    @property
    def of_numbers(self) -> bool:
        """Whether it asks for tensors, so that judging it loads torch."""
        return any(questions()[asked].of_numbers for asked in self.asks)

    def ranks(self, case: str) -> int:
        """How many ranks judge a case: in tier dist the argument `world` of the check, else one.

        A promise of the gate itself starts the ranks that it needs, and is put by one.
        """
        if self.tier != "dist" or self.of_the_court:
            return 1
        world = inspect.signature(self.check).bind(None, *self.cases[case]).arguments["world"]
        assert isinstance(world, int)
        return world

    @property
    def promise(self) -> str:
        """The statement: the first paragraph of the check's docstring, on one line."""
        return _paragraphs(self.check)[0]

    @property
    def story(self) -> str:
        """Why the promise exists: the rest of the docstring."""
        return "\n\n".join(_paragraphs(self.check)[1:])

    @property
    def subject(self) -> str:
        """The file it stands in: `mesh_sizes` for `contracts/checks/topology/mesh_sizes.py`."""
        return self.check.__module__.rsplit(".", 1)[-1]


@dataclass(frozen=True, kw_only=True)
class Untested:
    """A promise that no contract judges yet, with the reason."""

    id: str
    promise: str
    why: str
    tier: Tier

    @property
    def family(self) -> str:
        return self.id.split("-")[0]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A party broken in one place. It must violate `of` in `case` with the words `says`; a crash is no kill."""

    of: str
    case: str
    says: str
    make: type
    bugs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.make.__name__

    @property
    def story(self) -> str:
        return inspect.getdoc(self.make) or ""


class Law:
    """Every promise and every counterexample, in the order in which they were read."""

    def __init__(self) -> None:
        self.contracts: dict[str, Contract] = {}
        self.untested: dict[str, Untested] = {}
        self.mutants: list[Mutant] = []

    def ids(self) -> Iterator[str]:
        """Every id that stands in the law, tested or not."""
        yield from self.contracts
        yield from self.untested

    def add(self, entry: Contract | Untested) -> None:
        if not _ID.fullmatch(entry.id):
            raise AssertionError(f"{entry.id!r} is not an id of the form FAMILY-NN or FAMILY-NNa")
        if entry.id in self.contracts or entry.id in self.untested:
            raise AssertionError(f"{entry.id} is given twice; ids are permanent")
        if isinstance(entry, Untested):
            self.untested[entry.id] = entry
        else:
            self.contracts[entry.id] = entry

    def mutants_of(self, contract_id: str) -> list[Mutant]:
        return [mutant for mutant in self.mutants if mutant.of == contract_id]


LAW = Law()


def contract(
    id: str,
    *,
    asks: str | tuple[str, ...],
    cases: Mapping[str, Any],
    source: str,
    tier: Tier = "unit",
    layout: Layout | None = None,
    slow: bool = False,
) -> Callable[[_Check], _Check]:
    """Enter a check into the law.

    A case that is not a tuple is its only argument. An unknown question, an empty case table or a check without a
    docstring is an error here, at import, and not a contract that never runs.
    """
    asked = (asks,) if isinstance(asks, str) else asks
    table = {name: case if isinstance(case, tuple) else (case,) for name, case in cases.items()}
    unknown = set(asked) - questions().keys()
    if unknown or not asked:
        raise AssertionError(f"{id} asks {sorted(unknown) or 'nothing'}; questions are {', '.join(questions())}")
    if not table:
        raise AssertionError(f"{id} has no case, so it could never fail")

    def enter(check: _Check) -> _Check:
        if not check.__doc__:
            raise AssertionError(f"{id} has no docstring: it is the promise")
        entry = Contract(
            id=id, check=check, asks=asked, cases=table, source=source, tier=tier, layout=layout, slow=slow
        )
        if tier == "dist" and not entry.of_the_court and "world" not in inspect.signature(check).parameters:
            raise AssertionError(f"{id} is judged by several ranks; its parameter `world` must say by how many")
        LAW.add(entry)
        return check

    return enter


def untested(id: str, promise: str, *, why: str, tier: Tier = "unit") -> None:
    """Declare a promise that is not judged yet. It is shown in every report and is never a pass."""
    LAW.add(Untested(id=id, promise=promise, why=why, tier=tier))


def mutant(*, of: str, case: str, says: str, bugs: tuple[str, ...] = ()) -> Callable[[_Class], _Class]:
    """Enter a counterexample: a class that makes a broken party when called without arguments."""

    def enter(make: _Class) -> _Class:
        if not says or not make.__doc__:
            raise AssertionError(f"mutant {make.__name__} of {of} needs the words it provokes and a docstring")
        LAW.mutants.append(Mutant(of=of, case=case, says=says, make=make, bugs=bugs))
        return make

    return enter


def _paragraphs(function: Callable[..., None]) -> list[str]:
    text = inspect.getdoc(function) or ""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text)]

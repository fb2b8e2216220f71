"""Contracts: an id, a statement, the questions it asks, cases worked out by hand, and a check.

A contract is a plain function over a stack. Its docstring is the statement (first paragraph; `promise` in code) and the
story behind it (the rest). A contract that cannot be checked yet is declared with `untested`, so that every report
shows it. A mutant is a stack with one deliberate bug. It proves that the contract can fail, with the declared words.
The law is the set of all contracts and mutants.

Ids are permanent. A contract may be split (`PAT-04a`); a retired id is never used again.
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
    """One contract with its cases.

    Args:
        id: `FAMILY-NN`, with a letter if the contract was split.
        check: `check(stack, *case)`; raises AssertionError with the values when the contract is violated.
        asks: the questions that it asks a stack. An assistant (a launcher's parser, say) may answer a question that the
            stack does not offer; the stack itself must answer at least one.
        cases: name → arguments, literals worked out by hand.
        source: where the requirement comes from.
        layout: the parallel layout it is about; None when it is about any or none.
        slow: whether a case takes more than some seconds (a cold compiler). `pytest -m unit` leaves those to
            `pytest -m slow`, and the profile `dist4` leaves them to `dist`; the other profiles include them.
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
        """Whether it is a contract of the gate itself, which judges the suite (`Court`) instead of the stack."""
        return all(questions()[asked].of_the_court for asked in self.asks)

    @property
    def of_numbers(self) -> bool:
        """Whether it asks for tensors, so that its check needs torch."""
        return any(questions()[asked].of_numbers for asked in self.asks)

    def ranks(self, case: str) -> int:
        """How many ranks judge a case: in tier dist the argument `world` of the check, otherwise one.

        A contract of the gate itself has one, which starts the ranks that it needs.
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
        """Why the contract exists: the rest of the docstring."""
        return "\n\n".join(_paragraphs(self.check)[1:])

    @property
    def subject(self) -> str:
        """The name of its file: `mesh_sizes` for `contracts/checks/topology/mesh_sizes.py`."""
        return self.check.__module__.rsplit(".", 1)[-1]


@dataclass(frozen=True, kw_only=True)
class Untested:
    """A requirement without a check, with the reason."""

    id: str
    promise: str
    why: str
    tier: Tier

    @property
    def family(self) -> str:
        return self.id.split("-")[0]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A stack with one deliberate bug. It must violate `of` in `case` with the words `says`; a crash is not a kill."""

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
    """Every contract and every mutant, in the order of their imports."""

    def __init__(self) -> None:
        self.contracts: dict[str, Contract] = {}
        self.untested: dict[str, Untested] = {}
        self.mutants: list[Mutant] = []

    def ids(self) -> Iterator[str]:
        """Every id, checked or untested."""
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
    """Register a check as a contract.

    A case that is not a tuple is the only argument. An unknown question, an empty case table or a check without a
    docstring is an error at import; otherwise the contract would silently never run.
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
    """Declare a contract without a check. Every report shows it, and it is never a pass."""
    LAW.add(Untested(id=id, promise=promise, why=why, tier=tier))


def mutant(*, of: str, case: str, says: str, bugs: tuple[str, ...] = ()) -> Callable[[_Class], _Class]:
    """Register a mutant: a class that makes a broken stack when called without arguments."""

    def enter(make: _Class) -> _Class:
        if not says or not make.__doc__:
            raise AssertionError(f"mutant {make.__name__} of {of} needs the words it provokes and a docstring")
        LAW.mutants.append(Mutant(of=of, case=case, says=says, make=make, bugs=bugs))
        return make

    return enter


def _paragraphs(function: Callable[..., None]) -> list[str]:
    text = inspect.getdoc(function) or ""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text)]

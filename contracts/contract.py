"""Contracts: an id, a statement, the questions it asks, cases worked out by hand, and a check.

A contract is a plain function over a stack. Its docstring is the statement (first paragraph; `promise` in code) and the
reasons for it (the rest). A contract that cannot be checked yet is declared with `untested`, so that every report
shows it. A mutant is a stack with one deliberate bug. It proves that the contract can fail, with the declared words.
The law is the set of all contracts and mutants.

Ids are permanent. A contract may be split (`PAT-04a`); a retired id is never used again.
"""

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from contracts.spec import CONVENTIONS, FEATURES, Execution, Layout, Recipe, questions, rungs, stepped_down
from contracts.spec.needs import features

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
        leaner: `case@rung` → arguments, the same cases on leaner recipes (`contracts.spec.ladder`), richest first.
        needs: case → features that a stack must have besides what the recipe and the execution of the case show.
        sheds: features that a case has beside its recipe, and that its leaner rungs do without.
        float32: whether its cases in float64 are put in float32 to a stack without float64.
        conventions: those whose declared choice its check follows (`contracts.spec.conventions`).
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
    leaner: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    needs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    sheds: frozenset[str] = frozenset()
    conventions: tuple[str, ...] = ()
    float32: bool = False

    @property
    def asked(self) -> Mapping[str, tuple[Any, ...]]:
        """Every case, each with its rungs after it: name → arguments."""
        return {name: arguments for case in self.cases for name, arguments in self._ladder(case)}

    def rungs(self, case: str) -> tuple[str, ...]:
        """The names of a case on its leaner rungs, richest first."""
        return tuple(name for name, _ in self._ladder(case))[1:]

    def leanest(self, case: str) -> str:
        """The name of a case on its leanest rung; the case itself where it has none.

        Not the plain one, which is for a stack that has none of the others.
        """
        return [name for name in (case, *self.rungs(case)) if not name.endswith("@plain")][-1]

    def _ladder(self, case: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
        yield case, self.cases[case]
        yield from ((name, each) for name, each in self.leaner.items() if name.partition("@")[0] == case)

    def features(self, name: str) -> frozenset[str]:
        """What a stack must have to be asked a case, on the rung that its name says."""
        case, _, rung = name.partition("@")
        found = set(self.needs.get(case, ())) | (set() if rung else self.sheds)
        arguments = (self.leaner if rung else self.cases)[name]
        among = (getattr(each, "execution", each) for each in arguments)  # a lane has one
        execution = next((each for each in among if isinstance(each, Execution)), None)
        for recipe in (each for each in arguments if isinstance(each, Recipe)):
            found |= features(recipe, execution, trains="train" in self.asks)
        return frozenset(found)

    @property
    def family(self) -> str:
        return self.id.split("-")[0]

    @property
    def of_numbers(self) -> bool:
        """Whether it asks for tensors, so that its check needs torch."""
        return any(questions()[asked].of_numbers for asked in self.asks)

    def ranks(self, case: str) -> int:
        """How many ranks judge a case: in tier dist the argument `world` of the check, otherwise one."""
        if self.tier != "dist":
            return 1
        world = inspect.signature(self.check).bind(None, *self.asked[case]).arguments["world"]
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
        """The name of its file: `mesh_sizes` for `contracts/law/topology/mesh_sizes.py`."""
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
    leanest: str | None = None
    """The words on the leanest rung of the case: None for the same, empty where the rung lacks what the bug is in."""

    @property
    def name(self) -> str:
        return self.make.__name__

    @property
    def story(self) -> str:
        return inspect.getdoc(self.make) or ""


class Law:
    """Contracts and mutants; in `LAW` those that were imported, of the ids that there are (`known`)."""

    def __init__(self) -> None:
        self.known: tuple[str, ...] = ()
        self.contracts: dict[str, Contract] = {}
        self.untested: dict[str, Untested] = {}
        self.mutants: list[Mutant] = []

    def ids(self) -> Iterator[str]:
        """Every id, checked or untested, imported or not."""
        yield from dict.fromkeys((*self.known, *self.contracts, *self.untested))

    def arrange(self, known: tuple[str, ...]) -> None:
        """Put everything in the order of these ids, and mutants of one id in that of their files, whatever was imported
        first."""
        self.known = known
        place = {id: at for at, id in enumerate(self.ids())}
        for id in place:
            if id in self.contracts:
                self.contracts[id] = self.contracts.pop(id)
            elif id in self.untested:
                self.untested[id] = self.untested.pop(id)
        self.mutants.sort(key=lambda each: (place.get(each.of, len(place)), each.make.__module__))

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

    def unguarded(self) -> tuple[str, ...]:
        """The contracts without a mutant, and those without one on any leanest rung, if a case has one."""
        tried = {(each.of, "@" in each.case) for each in self.tried()}
        return tuple(
            id for id, each in self.contracts.items()
            if not {(id, False), (id, True)} & tried
            or (any("@" in each.leanest(case) for case in each.cases) and (id, True) not in tried)
        )  # fmt: skip

    def tried(self) -> Iterator[Mutant]:
        """Every mutant in its case, and again on the leanest rung of that case."""
        for mutant in self.mutants:
            yield mutant
            known = mutant.of in self.contracts and mutant.case in self.contracts[mutant.of].cases
            lean = self.contracts[mutant.of].leanest(mutant.case) if known else mutant.case
            if lean != mutant.case and mutant.leanest != "":
                yield replace(mutant, case=lean, says=mutant.leanest or mutant.says, leanest=None)


LAW = Law()
_AS_GIVEN = frozenset({"load_checkpoint", "trace"})


def contract(
    id: str,
    *,
    asks: str | tuple[str, ...],
    cases: Mapping[str, Any],
    source: str,
    tier: Tier = "unit",
    layout: Layout | None = None,
    slow: bool = False,
    needs: Collection[str] | Mapping[str, Collection[str]] | None = None,
    sheds: Collection[str] = (),
    conventions: tuple[str, ...] = (),
    float32: bool | None = None,
) -> Callable[[_Check], _Check]:
    """Register a check as a contract.

    A case that is not a tuple is the only argument. An unknown question, an empty case table or a check without a
    docstring is an error at import; otherwise the contract would silently never run.

    With `needs` the contract is asked on leaner recipes as well: it names the features without which it has no subject
    (`contracts.spec.abilities`), of all cases or case by case; `()` where any model will do. The rungs of a case are
    derived from its recipe. A contract whose other arguments depend on the recipe has its rungs written out, under
    names `case@rung`. `sheds` are the features, such as packed rows, that its cases have beside their recipes and its
    rungs do without. A contract of one process is put in `float32` to a stack without float64 unless it says False:
    files are asked to keep what they are given, and a script has the dtypes that it has.
    """
    asked = (asks,) if isinstance(asks, str) else asks
    written = {name: case if isinstance(case, tuple) else (case,) for name, case in cases.items()}
    table = {name: case for name, case in written.items() if "@" not in name}
    wanted = _needs(id, needs, table, sheds)
    unknown = {*conventions} - CONVENTIONS.keys()
    if unknown:
        raise AssertionError(f"{id} follows {sorted(unknown)}; conventions are {', '.join(CONVENTIONS)}")
    unknown = set(asked) - questions().keys()
    if unknown or not asked:
        raise AssertionError(f"{id} asks {sorted(unknown) or 'nothing'}; questions are {', '.join(questions())}")
    if not table:
        raise AssertionError(f"{id} has no case, so it could never fail")

    narrows = tier == "unit" and not {*asked} & _AS_GIVEN

    def enter(check: _Check) -> _Check:
        if not check.__doc__:
            raise AssertionError(f"{id} has no docstring: it is the promise")
        entry = Contract(
            id=id, check=check, asks=asked, cases=table, source=source, tier=tier, layout=layout, slow=slow,
            leaner=_leaner(written, wanted, frozenset(sheds)), needs=wanted, sheds=frozenset(sheds),
            conventions=conventions, float32=narrows if float32 is None else float32,
        )  # fmt: skip
        if tier == "dist" and "world" not in inspect.signature(check).parameters:
            raise AssertionError(f"{id} is judged by several ranks; its parameter `world` must say by how many")
        LAW.add(entry)
        return check

    return enter


def _needs(
    id: str, needs: Collection[str] | Mapping[str, Collection[str]] | None, cases: Collection[str],
    sheds: Collection[str],
) -> dict[str, frozenset[str]]:  # fmt: skip
    """The needs of each case; empty for a contract without a ladder."""
    if needs is None:
        return {}
    of = needs if isinstance(needs, Mapping) else {"": needs}
    found = {case: frozenset(of.get(case, of.get("", ()))) for case in cases}
    unknown = set(sheds).union(*of.values()) - FEATURES.keys() | of.keys() - {"", *cases}
    if unknown:
        raise AssertionError(f"{id} needs {', '.join(sorted(unknown))}, which is neither a feature nor a case")
    return found


def _leaner(
    written: Mapping[str, tuple[Any, ...]], needs: Mapping[str, frozenset[str]], sheds: frozenset[str]
) -> dict[str, tuple[Any, ...]]:
    """`case@rung` → arguments: those written out, or else derived from the first recipe of the case.

    If two cases come down to the same question, it is asked of the case that has fewer rungs.
    """
    ladders = {case: _ladder(case, written, needs[case], sheds) for case in needs}
    taken = [] if sheds else [_nameless(arguments) for case, arguments in written.items() if case in needs]
    for case in sorted(ladders, key=lambda each: len(ladders[each])):
        for name, arguments in tuple(ladders[case].items()):
            if _nameless(arguments) in taken:
                del ladders[case][name]
            taken.append(_nameless(arguments))
    return {name: arguments for ladder in ladders.values() for name, arguments in ladder.items()}


def _nameless(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_unnamed(each) if isinstance(each, Recipe) else each for each in arguments)


_unnamed = functools.cache(functools.partial(replace, name=""))


def _ladder(
    case: str, written: Mapping[str, tuple[Any, ...]], needs: frozenset[str], sheds: frozenset[str]
) -> dict[str, tuple[Any, ...]]:
    """The rungs of one case, richest first."""
    found = {name: each for name, each in written.items() if name.startswith(f"{case}@")}
    arguments = written[case]
    first = next((each for each in arguments if isinstance(each, Recipe)), None)
    if first is None or any("@" in name for name in written):
        return found
    for rung in rungs(first, needs, sheds=sheds):
        lean = tuple(stepped_down(each, rung, needs) if isinstance(each, Recipe) else each for each in arguments)
        recipes = [each for each in _nameless(lean) if isinstance(each, Recipe)]
        if all(one != other for one, other in itertools.combinations(recipes, 2)):
            found[f"{case}@{rung}"] = lean
    return found


def untested(id: str, promise: str, *, why: str, tier: Tier = "unit") -> None:
    """Declare a contract without a check. Every report shows it, and it is never a pass."""
    LAW.add(Untested(id=id, promise=promise, why=why, tier=tier))


def mutant(
    *, of: str, case: str, says: str, bugs: tuple[str, ...] = (), leanest: str | None = None
) -> Callable[[_Class], _Class]:
    """Register a mutant: a class that makes a broken stack when called without arguments.

    It is tried on the leanest rung of its case too. `leanest` gives the words that it provokes there, where they are
    others, and is empty where the rung has nothing that the bug could be in.
    """

    def enter(make: _Class) -> _Class:
        if not says or not make.__doc__:
            raise AssertionError(f"mutant {make.__name__} of {of} needs the words it provokes and a docstring")
        LAW.mutants.append(Mutant(of=of, case=case, says=says, make=make, bugs=bugs, leanest=leanest))
        return make

    return enter


def _paragraphs(function: Callable[..., None]) -> list[str]:
    text = inspect.getdoc(function) or ""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text)]

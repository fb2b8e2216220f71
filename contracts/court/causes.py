"""Causes: results that say the same, but for numbers and names, shown once with all their cases.

One wrong line of a stack violates dozens of items, and one failed import leaves thousands not run. A reader wants the
few things that are wrong, so every report shows causes and lists the items of each.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from contracts.spec import BLOCKS
from contracts.spec.records import Outcome, Result, Run

HEADINGS: Mapping[Outcome, str] = {
    "violated": "Violated",
    "broken": "Broken (the suite or the adapter failed; this says nothing about the contract)",
    "not run": "Not run",
    "deviates": "Deviates, as declared",
    "untested": "Untested (no check exists yet)",
    "not offered": "Not offered by this stack",
    "holds": "Holds",
}
"""The outcomes in reading order."""
DETAILED: frozenset[Outcome] = frozenset({"violated", "broken", "not run", "deviates"})
_BY_QUESTION: frozenset[Outcome] = frozenset({"violated", "deviates"})

_LETTERS = "".join(BLOCKS)
_COMPARED = 4000  # characters; what is longer differs at its beginning
_NUMBER = r"(?:(?<!\w)[-+])?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_VALUE = re.compile(
    r"(?P<place>[\w./~+-]*\w\.\w+:\d+\b)"  # file.py:27 is where the fault is: it stays
    r"|(?P<address>\b0x[0-9a-fA-F]+)"
    r"|(?P<quoted>(?<!\w)'[^'\n]*'(?!\w)|\"[^\"\n]*\"|`[^`\n]*`)"
    rf"|(?P<pattern>\b[{_LETTERS}|]{{3,}}\b)"
    r"|(?P<tensor>\b\w+(?:\.\w+)+(?= (?:differs|has shape|is not finite)))"
    rf"|(?P<number>{_NUMBER}|[-+]?\b(?:inf|nan)\b)"
)
_SERIES = re.compile(r"#(?:, ?#)+")
_DISTANCE = re.compile(r"\b(?:L#|largest|row) error\b")
_MORE = re.compile(r"; (?:and # more\b|gradients made before the first, which agree: #)")

_APART = re.compile(
    r"(?P<tensor>[\w.]+) differs: (?:(?P<kind>L2|largest|row) error (?P<error>[\d.e+-]+|inf)|(?P<unequal>[^;]*))"
)
_LAYER = re.compile(r"\blayers?\.(\d+)\.?")


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Results of one outcome that say the same. `skeleton` is what they share: their words without the values."""

    outcome: Outcome
    questions: tuple[str, ...]
    skeleton: str
    results: tuple[Result, ...]

    @property
    def words(self) -> str:
        return self.results[0].words

    @property
    def ids(self) -> tuple[str, ...]:
        """The contracts, in the order of the plan."""
        return tuple(dict.fromkeys(result.id for result in self.results))


@dataclass(frozen=True, kw_only=True)
class Apart:
    """A tensor that differs, as the words of a result say. `error` is relative; None if no distance is reported."""

    tensor: str
    error: float | None
    result: Result

    @property
    def layer(self) -> int | None:
        found = _LAYER.search(self.tensor)
        return int(found[1]) if found else None

    @property
    def kind(self) -> str:
        """The tensor's name without its layer."""
        return _LAYER.sub("", self.tensor)


def causes(run: Run, results: Iterable[Result]) -> list[Cause]:
    """The causes of everything that does not hold: outcomes in reading order, within each the largest cause first."""
    found: dict[tuple[Outcome, tuple[str, ...], str], list[Result]] = {}
    for result in results:
        if result.outcome != "holds":
            asked = _questions(run, result) if result.outcome in _BY_QUESTION else ()
            found.setdefault((result.outcome, asked, skeleton(result.words)), []).append(result)
    order = [*HEADINGS]
    told = [
        Cause(outcome=outcome, questions=asked, skeleton=shape, results=tuple(group))
        for (outcome, asked, shape), group in found.items()
    ]
    return sorted(told, key=lambda cause: (order.index(cause.outcome), -len(cause.results)))


def by_outcome(found: Iterable[Cause]) -> dict[Outcome, list[Cause]]:
    """Causes by outcome, in reading order; an outcome without a cause is left out."""
    grouped: dict[Outcome, list[Cause]] = {}
    for cause in found:
        grouped.setdefault(cause.outcome, []).append(cause)
    return grouped


@lru_cache(maxsize=65536)
def skeleton(words: str) -> str:
    """Words without their values: numbers, quoted words, addresses, patterns, and the names of tensors that differ.

    A place such as `fork.py:27` stays, because two lines of code are two causes.
    """
    text = _VALUE.sub(lambda found: found[0] if found.lastgroup == "place" else "#", words[:_COMPARED])
    text = _DISTANCE.sub("error", _MORE.sub("", _SERIES.sub("#", text)))
    return "; ".join(dict.fromkeys(text.split("; ")))


def apart(results: Iterable[Result]) -> Iterator[Apart]:
    """The tensors that the words of these results say differ."""
    for result in results:
        yield from _named(result.words, result)


def apart_by_rank(result: Result) -> Iterator[tuple[int, Apart]]:
    """The tensors that each of several ranks found to differ, with the rank."""
    for told in result.on_ranks:
        for each in told.violations:
            yield from ((rank, found) for found in _named(each.words, result) for rank in told.ranks)


def _named(words: str, result: Result) -> Iterator[Apart]:
    for found in _APART.finditer(words) if "differs: " in words else ():
        if found["kind"] or "." in found["tensor"]:
            yield Apart(tensor=found["tensor"], error=float(found["error"]) if found["kind"] else None, result=result)


def _questions(run: Run, result: Result) -> tuple[str, ...]:
    """What was asked; what the contract asks, where the result does not say."""
    if result.answered:
        return tuple(sorted(result.answered))
    statement = run.plan.promises.get(result.id)
    return statement.asks if statement else ()

"""What a change does: the records of its base and of its head, judged by the same plan.

The verdict is about the change. Violations of both sides are counted, so that they do not hide new ones, and need no
declaration. An item that cannot be judged at the head, or is violated there and could not be judged at the base,
leaves the verdict incomplete: an adapter that does not find its way proves nothing about the change.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from contracts.court.causes import Cause, causes
from contracts.court.deviations import masked
from contracts.court.verdict import told
from contracts.court.wording import counted, items, rerun
from contracts.spec import refuse
from contracts.spec.records import EXIT_CODES, Result, Run, Violation, Word

Kind = Literal["new", "worse", "lost", "unknown", "both", "better", "hold", "neither"]
KINDS: Mapping[Kind, str] = {
    "new": "Violated at the head and not at the base",
    "worse": "Violated on both sides, with a larger error at the head",
    "lost": "Judged or broken at the base, and no longer offered at the head",
    "unknown": "Not judged on one side",
    "better": "Violated at the base, and holds at the head",
    "both": "Violated on both sides",
    "hold": "Holds at the head",
    "neither": "Judged on neither side",
}
"""What an item says about a change, in reading order."""
_TOLD: tuple[Kind, ...] = ("new", "worse", "lost", "unknown", "better")
_JUDGED = ("holds", "violated")
_NUMBER = r"[-+]?(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|inf|nan)"
_ERROR = re.compile(rf"error (?P<error>{_NUMBER}) over (?P<tolerance>{_NUMBER})(?: \([^)]*\); (?P<got>{_NUMBER}) at )?")
_RAISED = re.compile(r": [\w.]*(?:Error|Exception)\b:.*", re.DOTALL)
_MEASURE = re.compile(r"(?:L2|largest) error ")
_FOLDER = re.compile(r"\b(checkpoints|rankproof|titan)-[a-z0-9_]{8}\b")  # tempfile's names of the suite's own
_ROUNDINGS = 10.0  # times the tolerance: what another order of additions can move, and more
_PRINTED = 1e-5  # of a value: it is told with six digits
_CAUSES, _ITEMS = 8, 6


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One item on both sides; None where a side has not planned it."""

    base: Result | None
    head: Result | None

    @property
    def kind(self) -> Kind:
        was, now = (each.outcome if each is not None else "not run" for each in (self.base, self.head))
        if now == "violated" and was == "violated":
            return self._both()
        if now == "violated":
            return "new" if was == "holds" else "unknown"
        if now == "holds":
            return "better" if was == "violated" else "hold"
        if now == "not offered" and was in (*_JUDGED, "broken"):
            return "lost"
        return "unknown" if was in _JUDGED else "neither"

    def _both(self) -> Kind:
        assert self.base is not None
        assert self.head is not None
        kinds = {_kind(_stated(was), _stated(now)) for was, now in _by_rank(self.base, self.head)}
        return next(kind for kind in ("new", "worse", "both") if kind in kinds)

    @property
    def shown(self) -> Result:
        """The side that is shown: the head's words, or the base's where the head has none."""
        found = self.head if self.head is not None else self.base
        assert found is not None
        return found


def pairs(base: Run, head: Run) -> list[Pair]:
    """Every item that either side has planned, in the order of the head's plan.

    Raises:
        Refused: for two records that are not of one stack, profile, device and number of ranks.
    """
    for field in ("profile", "ranks", "device"):
        was, now = getattr(base.header, field), getattr(head.header, field)
        if was != now:
            raise refuse(f"head.{field}", now, f"is not the base's, {was}", "judge both sides by the same options")
    was, now = ({each.item: each for each in run.results} for run in (base, head))
    planned = dict.fromkeys([*head.plan.items, *base.plan.items])
    missing = {item: Result(id=item.id, case=item.case, outcome="not run", words="no result came") for item in planned}
    sides = ({**{i: missing[i] for i in run.plan.items}, **came} for run, came in ((base, was), (head, now)))
    of_base, of_head = sides
    return [Pair(base=of_base.get(item), head=of_head.get(item)) for item in planned]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What a change does, item by item."""

    base: Run
    head: Run
    of: Mapping[Kind, tuple[Pair, ...]]

    @property
    def word(self) -> Word:
        if self.of["new"] or self.of["worse"] or self.of["lost"]:
            return "violated"
        if self.of["unknown"]:
            return "incomplete"
        return "conformant" if self.of["hold"] or self.of["both"] or self.of["better"] else "nothing ran"

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.word]

    @property
    def headline(self) -> str:
        counts = ", ".join(f"{len(found)} {_SHORT[kind]}" for kind, found in self.of.items() if found)
        sides = " → ".join(told(run.header.subject) for run in (self.base, self.head))
        return f"{self.word.upper()}: the change {sides}, profile {self.head.header.profile} ({counts or 'no result'})"


_SHORT: Mapping[Kind, str] = {
    "new": "new", "worse": "worse", "lost": "lost", "unknown": "not judged on one side", "better": "better",
    "both": "violated on both sides", "hold": "hold", "neither": "judged on neither side",
}  # fmt: skip


def difference(base: Run, head: Run) -> Difference:
    """What is different between the records of two sides."""
    found: dict[Kind, list[Pair]] = {kind: [] for kind in KINDS}
    for pair in pairs(base, head):
        found[pair.kind].append(pair)
    return Difference(base=base, head=head, of={kind: tuple(each) for kind, each in found.items()})


def lines(change: Difference) -> list[str]:
    """The difference in words: what is new first, with the numbers of both sides; what both violate is a count."""
    found = []
    for kind in _TOLD:
        if change.of[kind]:
            found += [f"{KINDS[kind]}: {counted(len(change.of[kind]), 'item')}", *_told(change, change.of[kind])]
    for kind in ("both", "neither"):
        if change.of[kind]:
            number = len(_causes(change, change.of[kind]))
            found.append(f"{KINDS[kind]}: {counted(len(change.of[kind]), 'item')}, {counted(number, 'cause')}")
    return [*found, change.headline]


def as_json(change: Difference) -> dict[str, object]:
    """The difference for a script: every item that is shown, with the outcome and the words of both sides."""
    sides = {"base": change.base.header, "head": change.head.header}
    return {
        "word": change.word, "exit_code": change.exit_code, "headline": change.headline,
        **{name: told(header.subject) for name, header in sides.items()},
        "counts": {kind: len(found) for kind, found in change.of.items()},
        "items": [{"item": str(pair.shown.item), "kind": kind, "base": _side(pair.base), "head": _side(pair.head)}
                  for kind in (*_TOLD, "both") for pair in change.of[kind]],
    }  # fmt: skip


def _side(result: Result | None) -> dict[str, str] | None:
    return None if result is None else {"outcome": result.outcome, "words": result.words}


def _told(change: Difference, found: Iterable[Pair]) -> list[str]:
    by_item = {pair.shown.item: pair for pair in found}
    told = []
    grouped = _causes(change, by_item.values())
    for cause in grouped[:_CAUSES]:
        first = by_item[cause.results[0].item]
        told.append(f"  {items(cause, _ITEMS)}")
        told += [f"    {name}  {_words(each)}" for name, each in (("base", first.base), ("head", first.head))]
        told.append(f"    rerun {rerun(change.head, first.shown)}")
    left = len(grouped) - _CAUSES
    return [*told, *([f"  … and {counted(left, 'cause')} more"] if left > 0 else [])]


def _causes(change: Difference, found: Iterable[Pair]) -> list[Cause]:
    """By what the head says; what holds there by what the base said."""
    shown = [pair.base if pair.head is not None and pair.head.outcome == "holds" else pair.shown for pair in found]
    return causes(change.head, [each for each in shown if each is not None])


def _words(result: Result | None) -> str:
    if result is None:
        return "not planned"
    return result.outcome if not result.words else f"{result.outcome}: {' '.join(result.words.split())}"


def _by_rank(base: Result, head: Result) -> list[tuple[tuple[Violation, ...], tuple[Violation, ...]]]:
    """The violations of each rank at the base and at the head. The first rank to diverge differs from run to run, and
    a rank that another one ended has nothing to compare."""
    of_base = {rank: each.violations for each in base.on_ranks for rank in each.ranks}
    found = [
        (of_base[rank], each.violations)
        for each in head.on_ranks
        for rank in each.ranks
        if each.violations and rank in of_base
    ]
    return found or [(base.parts, head.parts)]


def _kind(was: list[Violation], now: list[Violation]) -> Literal["new", "worse", "both"]:
    alike = [[each for each in was if _said(each) == _said(part)] for part in now]
    if not all(alike):
        return "new"
    further = (all(_further(each, part) for each in found) for found, part in zip(alike, now, strict=True))
    return "worse" if any(further) else "both"


def _stated(parts: Iterable[Violation]) -> list[Violation]:
    """What a check states, without the words of an exception that it quotes, the measure of an error and the names of
    temporary folders: all can be others in the next run of one program."""
    return [
        replace(part, words=_FOLDER.sub(r"\1-#", _MEASURE.sub("error ", _RAISED.sub("", part.words)))) for part in parts
    ]


def _said(part: Violation) -> Violation:
    """What is wrong, whatever its numbers are."""
    return replace(part, words=masked(part.words))


def _further(base: Violation, head: Violation) -> bool:
    """Whether an answer is further off, by more than another order of additions can move it, or no number any more.
    Without an error it is enough that the numbers differ: what is counted, and not computed, has no last digits."""
    was, now = ([*_ERROR.finditer(each.words)] for each in (base, head))
    if not now or len(was) != len(now):
        return base.words != head.words
    return any(_grown(one, other) for one, other in zip(was, now, strict=True))


def _grown(was: re.Match[str], now: re.Match[str]) -> bool:
    """An error of two digits can go up by a rounding: then the value that is shown is the same."""
    before, after = float(was["error"]), float(now["error"])
    if math.isnan(after) or math.isnan(before):
        return math.isnan(after) and not math.isnan(before)
    same = was["got"] and now["got"] and math.isclose(float(was["got"]), float(now["got"]), rel_tol=_PRINTED)
    return after - before > _ROUNDINGS * float(now["tolerance"]) and not same

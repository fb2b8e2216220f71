"""How much of a plan a stack answers, by family, and why it does not answer the rest. Drawn only from a verdict."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from contracts.court.promises import PROMISES
from contracts.spec import LACKS, Lack, refuse
from contracts.spec.records import Item, Plan, Result, Run, Verdict

ANSWERED = ("holds", "violated", "deviates")
_LOST = ("not run", "broken")
NOT_HELD_AGAINST: tuple[Lack, ...] = ("stack", "device")
"""What the stack or the device lacks is no gap of the adapter or of the suite."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """The cases of a family, or of all: planned, and what became of them.

    `counts` has the outcomes `holds`, `violated`, `deviates`, the kinds of reason of what is not offered (`LACKS`), and
    `not run` and `broken`. They add up to `planned`.
    """

    planned: int
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def answered(self) -> int:
        return sum(self.counts[each] for each in ANSWERED)

    @property
    def possible(self) -> int:
        """Planned, less what the stack or the device lacks."""
        return self.planned - sum(self.counts[each] for each in NOT_HELD_AGAINST)

    @property
    def coverage(self) -> float | None:
        """Answered over possible; None where nothing is possible."""
        return self.answered / self.possible if self.possible else None


@dataclass(frozen=True, kw_only=True)
class Part:
    """What is counted of a run: a profile, and what it plans."""

    profile: str
    plan: Plan


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """The coverage of one run."""

    subject: str
    profile: str
    families: dict[str, Share]
    total: Share

    def as_json(self) -> dict[str, object]:
        return {
            "subject": self.subject,
            "profile": self.profile,
            "total": _json(self.total),
            "families": {name: _json(share) for name, share in self.families.items()},
        }


def coverage(run: Run, judged: Verdict, part: Part | None = None) -> Coverage:
    """The coverage of a run, or of a part of it.

    Contracts without a check are left out, and so is what an older record judged of the suite itself: no stack answers
    them. A case that is asked on several rungs (`tp2-sp@pairs`) counts once, by the best that became of it.

    Raises:
        Refused: where the run did not plan all of the part.
    """
    wanted = None if part is None else {_as_written(item) for item in part.plan.items}
    if part is not None and wanted is not None:
        gone = [str(item) for item in wanted - {_as_written(item) for item in run.plan.items}]
        if gone:
            first = ", ".join(sorted(gone)[:3]) + (" …" if len(gone) > 3 else "")
            problem = f"has items that the record did not plan, {len(gone)}: {first}"
            raise refuse("profile", part.profile, problem, "leave it out, or judge the stack anew")
    best: dict[Item, str] = {}
    for result in judged.results:
        item, became = _as_written(Item(id=result.id, case=result.case)), _became(result)
        if result.outcome == "untested" or result.id in PROMISES or (wanted is not None and item not in wanted):
            continue
        if item not in best or _ORDER.index(became) < _ORDER.index(best[item]):
            best[item] = became
    names = dict.fromkeys(item.id.partition("-")[0] for item in best)
    families = {name: _share(best[item] for item in best if item.id.partition("-")[0] == name) for name in names}
    profile = judged.profile if part is None else part.profile
    return Coverage(subject=judged.subject, profile=profile, families=families, total=_share(best.values()))


def _as_written(item: Item) -> Item:
    """The item without its rung."""
    return Item(id=item.id, case=item.case.partition("@")[0])


_ORDER = (*("violated", "deviates", "holds"), *("broken", "not run"), *("case", "adapter", "device", "stack"))
"""Best first: an answer, then what is held against the stack. A violation on one rung is not outdone by another."""


def _became(result: Result) -> str:
    # An older record has no kinds: what it does not offer is held against the adapter.
    return result.lack or "adapter" if result.outcome == "not offered" else result.outcome


def _share(became: Iterable[str]) -> Share:
    found = Counter(became)
    return Share(planned=found.total(), counts={each: found[each] for each in (*ANSWERED, *LACKS, *_LOST)})


def _json(share: Share) -> dict[str, object]:
    return {
        "planned": share.planned,
        **share.counts,
        "answered": share.answered,
        "possible": share.possible,
        "coverage": None if share.coverage is None else round(share.coverage, 4),
    }


_HEADS = (*ANSWERED, *LACKS, *_LOST)


def table(found: Coverage) -> str:
    """The coverage as text: a row a family, then the total and how it is counted."""
    rows = [["", "planned", *_HEADS, "coverage"]]
    for name, share in (*found.families.items(), ("all", found.total)):
        rows.append([name, str(share.planned), *(str(share.counts[each] or "") for each in _HEADS), _percent(share)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    total = found.total
    told = "; ".join(f"{kind}: {words}" for kind, words in LACKS.items())
    less = total.planned - total.possible
    return "\n".join([
        f"{found.subject}, profile {found.profile}",
        *lines,
        f"coverage: {total.answered} answered of {total.possible} ({total.planned} planned, less {less} that the "
        f"stack or this device lacks): {_percent(total)}",
        f"not offered, by kind of reason. {told}",
    ]) + "\n"  # fmt: skip


def _percent(share: Share) -> str:
    return "-" if share.coverage is None else f"{100 * share.coverage:.0f} %"

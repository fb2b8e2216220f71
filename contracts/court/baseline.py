"""An earlier run as the baseline of a later one: like is compared with like, and anything else is refused. What is new,
fixed, lost and slower is shown; what is lost is red as well (`contracts.court.verdict`). One that was wanted and is not
there leaves the verdict incomplete."""

from dataclasses import dataclass

from contracts.court.promises import PROMISES
from contracts.court.verdict import JUDGED, OWED
from contracts.spec import Refusals
from contracts.spec.records import Baseline, Before, Header, Result, Run, Verdict


def unlike(earlier: Header, name: str, profile: str, ranks: int, device: str) -> None:
    """Refuse an earlier run that cannot be compared with one of this stack, profile, device and number of ranks.

    Raises:
        Refused: with everything in which they differ.
    """
    found = Refusals()
    pairs = (
        ("stack", earlier.subject.name, name),
        ("profile", earlier.profile, profile),
        ("ranks", earlier.ranks, ranks),
        ("device", earlier.device or "not recorded", device or "not recorded"),
    )
    for field, there, now in pairs:
        found.unless(there == now and there != "not recorded", f"baseline.{field}", there,
                     f"is not the {field} of this run, {now!r}",
                     "give a record of the same stack, profile, ranks and device, made by this suite")  # fmt: skip
    found.raise_any()


def baseline(earlier: Run, judged: Verdict, of: Header) -> Baseline:
    """The items that a run with the header `of` must judge because an earlier run did; `judged` is the verdict on that
    one.

    Items of the suite itself in an older record (`contracts.court.promises`) are asked of no stack.

    Raises:
        Refused: when the two cannot be compared, or nothing was judged there.
    """
    unlike(earlier.header, of.subject.name, of.profile, of.ranks, of.device)
    items = tuple(each.item for each in judged.results if each.outcome in OWED and each.id not in PROMISES)
    if not items:
        found = Refusals()
        found.add("baseline", str(judged.word), "judged nothing, so nothing can be lost", "give another record")
        found.raise_any()
    begun, suite = earlier.header.started, earlier.header.revision
    return Baseline(
        of=f"the baseline ({judged.subject}, suite {suite}, {begun})",
        judged=items,
        before={str(each.item): Before(outcome=each.outcome, seconds=each.seconds) for each in judged.results},
    )


def missing(where: str, why: str) -> Baseline:
    """The baseline of a run that was to be compared with a record, and there is none."""
    return Baseline(of=where, judged=(), missing=why)


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is different from the baseline.

    Args:
        new: what is violated or broken now and was not there.
        fixed: what was violated or broken there and holds now, by name.
        lost: what was judged or broken there and is not judged now, by name, with the outcome now ("not planned"
            without one).
        slower: what takes `RATIO` times as long and `FLOOR_S` longer, with the seconds there. It is shown and never
            red: a machine may be busy.
    """

    of: str
    new: tuple[Result, ...]
    fixed: tuple[str, ...]
    lost: tuple[tuple[str, str], ...]
    slower: tuple[tuple[Result, float], ...]

    @property
    def headline(self) -> str:
        parts = (("new", self.new), ("fixed", self.fixed), ("lost", self.lost), ("slower", self.slower))
        return f"Compared with {self.of}: {', '.join(f'{len(found)} {word}' for word, found in parts)}"

    def told(self, limit: int) -> list[tuple[str, str]]:
        """The items of each kind, in words; those over the limit are counted."""
        found = (
            ("new", [str(each.item) for each in self.new]),
            ("fixed", list(self.fixed)),
            ("lost", [f"{item} ({why} now)" for item, why in self.lost]),
            ("slower", [f"{each.item} {before:.2g} s → {each.seconds:.2g} s" for each, before in self.slower]),
        )
        more = [(word, items[:limit], len(items) - limit) for word, items in found if items]
        return [(word, ", ".join(items) + (f" and {left} more" if left > 0 else "")) for word, items, left in more]


RATIO, FLOOR_S = 2.0, 1.0
_RED = ("violated", "broken")


def change(run: Run, judged: Verdict) -> Change | None:
    """What is different from the baseline of a run; None where it has none, or one of an older suite."""
    if run.baseline is None or not run.baseline.before:
        return None
    before, now = run.baseline.before, {str(each.item): each for each in judged.results}
    both = [(each, before[item]) for item, each in now.items() if item in before]
    slower = [
        (each, was.seconds) for each, was in both
        if {each.outcome, was.outcome} <= JUDGED and each.seconds >= was.seconds * RATIO
        and each.seconds - was.seconds >= FLOOR_S
    ]  # fmt: skip
    return Change(
        of=run.baseline.of,
        new=tuple(
            each for item, each in now.items()
            if each.outcome in _RED and (item not in before or before[item].outcome not in _RED)
        ),
        fixed=tuple(str(each.item) for each, was in both if was.outcome in _RED and each.outcome == "holds"),
        lost=tuple(
            (item, now[item].outcome if item in now else "not planned")
            for item in map(str, run.baseline.judged)
            if item not in now or now[item].outcome in ("not offered", "not run", "untested")
        ),
        slower=tuple(sorted(slower, key=lambda each: each[1] - each[0].seconds)),
    )  # fmt: skip

"""An earlier run as the baseline of a later one: like is compared with like, and anything else is refused."""

from __future__ import annotations

from contracts.court.verdict import JUDGED
from contracts.spec.errors import Refusals
from contracts.spec.records import Baseline, Header, Run, Verdict


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
    """What a run with the header `of` must judge because an earlier run did; `judged` is the verdict on that one.

    Raises:
        Refused: when the two cannot be compared, or nothing was judged there.
    """
    unlike(earlier.header, of.subject.name, of.profile, of.ranks, of.device)
    items = tuple(result.item for result in judged.results if result.outcome in JUDGED)
    if not items:
        found = Refusals()
        found.add("baseline", str(judged.word), "judged nothing, so that nothing can be lost", "give another record")
        found.raise_any()
    begun, suite = earlier.header.started, earlier.header.revision
    return Baseline(of=f"the baseline ({judged.subject}, suite {suite}, {begun})", judged=items)

"""A gate that is split over machines: which share of the plan one of them judges, and one record of all their records.

Every share plans the whole and judges a part, so that no share is conformant by itself, and what nobody judged is
missing in the merged record as well.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from contracts.spec import Refusals, refuse
from contracts.spec.records import Header, Item, Run


def share(items: Sequence[Item], shard: str) -> list[Item]:
    """The items of `I/N`, every Nth of the plan: cases of one contract take about as long.

    Raises:
        Refused: for anything but a number and the count of shares.
    """
    part, _, count = shard.partition("/")
    if not (part.isdecimal() and count.isdecimal() and 1 <= int(part) <= int(count)):
        raise refuse("shard", shard, "is no share", "give I/N: 1/3, 2/3 and 3/3 are all of it")
    return list(items[int(part) - 1 :: int(count)])


def merged(runs: Sequence[Run]) -> Run:
    """One run of the results of several.

    Raises:
        Refused: where they are not of one plan, suite, stack and device, or an item was judged by two of them; every
            difference at once.
    """
    first, found = runs[0], Refusals()
    for number, run in enumerate(runs[1:], start=2):
        pairs = {**_same(run.header), "plan": run.plan, "deviations": run.deviations, "baseline": run.baseline}
        wanted = {**_same(first.header), "plan": first.plan, "deviations": first.deviations, "baseline": first.baseline}
        for field, value in pairs.items():
            problem = f"is not that of record 1, {wanted[field]!r}"
            found.unless(value == wanted[field], f"record {number}.{field}", value, problem, "merge shares of one run")
    results = [each for run in runs for each in run.results]
    twice = [str(item) for item, count in Counter(each.item for each in results).items() if count > 1]
    remedy = "give each share once, and no run of the whole plan"
    found.unless(not twice, "records", ", ".join(twice[:3]), f"{len(twice)} items were judged twice", remedy)
    found.raise_any()
    at = {item: number for number, item in enumerate(first.plan.items)}
    return replace(
        first,
        header=replace(first.header, started=min(run.header.started for run in runs)),
        results=tuple(sorted(results, key=lambda each: at.get(each.item, len(at)))),
        unclaimed=tuple(dict.fromkeys(each for run in runs for each in run.unclaimed)),
        kills=tuple(dict.fromkeys(each for run in runs for each in run.kills)),
        unfit=tuple(dict.fromkeys(each for run in runs for each in run.unfit)),
        cut_off=any(run.cut_off for run in runs),
    )


def _same(header: Header) -> dict[str, object]:
    """What must be equal in all shares. Folders and machines may differ, the code that answered may not."""
    subject = header.subject
    return {
        "suite": f"{header.suite} {header.revision}", "profile": header.profile, "device": header.device,
        "ranks": f"{header.ranks} {header.backend}", "stack": f"{subject.name} {subject.version}",
        "origin": subject.origin, "offers": subject.offers, "conventions": dict(subject.conventions),
        "code": sorted({each.code for each in subject.answering}),
    }  # fmt: skip

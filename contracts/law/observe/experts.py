"""The experts to which tokens were routed, what counted them, what that does to the choice (OBS-14), and what arrives
(OBS-18).
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from contracts.contract import contract
from contracts.law.observe._trace import RUN, none_of, observed
from contracts.observe.merged import Merged
from contracts.spec import NotOffered, Observing


@contract("OBS-14", asks="trace", cases=RUN, source="F11", slow=True)
def experts_are_counted_as_their_tokens_were_routed(stack: Observing) -> None:
    """A router never gives a token the same expert twice. In each step a rank's counter of assignments grows by those
    that its routers made; if it moves a bias, it starts the next step at zero. A selection bias is the same on every
    rank, and falls for experts with more assignments than the mean of all ranks against those with fewer.

    An assignment that is counted twice, or only on one rank, balances another load than the experts have.
    """
    merged = observed(stack)
    if not any(merged.lines("routed", step) for step in range(1, merged.steps + 1)):
        raise NotOffered("no module returned a choice of experts beside its scores", "case")
    none_of(_miscounted(merged), "no buffer counts the assignments of a router, and none biases its choice")


def _miscounted(merged: Merged) -> Iterator[str]:
    for step in range(1, merged.steps + 1):
        for rank, line in merged.lines("routed", step):
            if line["twice"]:
                yield (
                    f"step {step}: {line['name']} gives {line['twice']} of {line['tokens']} tokens the same expert "
                    f"twice on rank {rank.rank}"
                )
        yield from _counters(merged, step)
        yield from _biases(merged, step)


def _counters(merged: Merged, step: int) -> Iterator[str]:
    before = {(rank.rank, line["name"]): line["values"] for rank, line in merged.lines("counter", step)}
    biased = {line["name"].rpartition(".")[0] for _, line in merged.lines("bias", step)
              if _deltas(merged, line["name"], step)}  # fmt: skip
    for rank, line in merged.lines("counted", step):
        name, old = line["name"], before.get((rank.rank, line["name"]))
        if old is None or line["again"]:
            continue
        if step > 1 and any(old) and name.rpartition(".")[0] in biased:
            yield f"step {step}: {name} begins with {sum(old):g} assignments on rank {rank.rank}, which no step counted"
        grown = [new - was for new, was in zip(line["values"], old, strict=True)]
        routed = _routed(merged, name, step, len(grown), rank.rank)
        at = next((at for at, (one, other) in enumerate(zip(grown, routed, strict=True)) if one != other), None)
        yield from [""] * any(routed)
        if any(routed) and at is not None:
            yield (
                f"step {step}: {name} counts {sum(grown):g} assignments on rank {rank.rank}, {grown[at]:g} of them to "
                f"expert {at}; its routers made {sum(routed)}, {routed[at]} of them to it"
            )


def _biases(merged: Merged, step: int) -> Iterator[str]:
    again = {line["name"].rpartition(".")[0] for _, line in merged.lines("counted", step) if line["again"]}
    counters = {line["name"].rpartition(".")[0] for _, line in merged.lines("counted", step)}
    names = dict.fromkeys(line["name"] for _, line in merged.lines("bias", step + 1))
    for name in names:
        held = [(rank.rank, line["values"]) for rank, line in merged.lines("bias", step + 1) if line["name"] == name]
        unlike = [rank for rank, values in held if values != held[0][1]]
        yield from [""] * (len(held) > 1)
        if unlike:
            yield f"step {step}: {name} differs on rank {unlike[0]} from rank {held[0][0]}"
            continue
        owner, moved = name.rpartition(".")[0], _deltas(merged, name, step)
        load = _routed(merged, name, step, len(held[0][1]))
        mean = sum(load) / max(1, len(load))
        over, under = ([at for at, each in enumerate(load) if sign * (each - mean) > 0] for sign in (1, -1))
        if owner in again or not over:
            continue
        if not moved:
            if owner in counters:
                had = f"expert {over[0]} has {load[over[0]]} of {sum(load)} assignments"
                yield f"step {step}: {name} stands still; {had}"
            continue
        yield ""
        worst, best = max(over, key=moved.__getitem__), min(under, key=moved.__getitem__)
        if moved[worst] >= moved[best]:
            yield (
                f"step {step}: {name} moves by {moved[worst]:g} for expert {worst}, which has {load[worst]} "
                f"assignments of all ranks, and by {moved[best]:g} for expert {best}, which has {load[best]}; the mean "
                f"is {mean:g}"
            )


def _deltas(merged: Merged, name: str, step: int) -> list[float]:
    """By how much a bias moved in a step, by expert; empty where it stood still."""
    old, new = (
        next((list[float](line["values"]) for _, line in merged.lines("bias", at) if line["name"] == name), [])
        for at in (step, step + 1)
    )
    moved = [its - was for its, was in zip(new, old, strict=False)]
    return moved if any(moved) else []


@contract("OBS-18", asks="trace", cases=RUN, source="F11", slow=True)
def each_assignment_reaches_an_expert_or_is_reported_as_dropped(stack: Observing) -> None:
    """Every assignment that a router makes in a step, on all ranks, reaches an expert, or the script reports that it
    was dropped (`observe.dropped(n)`).

    A dispatch that loses rows leaves their tokens without an expert, and the loss finite.
    """
    none_of(_lost(observed(stack)), "no module beside a router is given rows for each expert")


def _lost(merged: Merged) -> Iterator[str]:
    for step in range(1, merged.steps + 1):
        sums: dict[str, Counter[str]] = {"routed": Counter(), "handed": Counter(), "told-dropped": Counter()}
        for kind, counted in sums.items():
            for _, line in merged.lines(kind, step):
                counted[line["name"]] += sum(line.get("counts", ())) + line.get("rows", 0) + line.get("assignments", 0)
        for name in sums["routed"].keys() & sums["handed"].keys():
            chosen, rows, told = (counted[name] for counted in sums.values())
            wrong = chosen - rows > told or 0 < chosen - rows < told  # expert tensor parallelism hands rows to several
            yield (
                f"step {step}: {chosen - rows} of {chosen} assignments of {name} reach no expert, and {told} are "
                "reported as dropped" if wrong else ""
            )  # fmt: skip


def _routed(merged: Merged, buffer: str, step: int, experts: int, rank: int | None = None) -> Sequence[int]:
    """The assignments of the routers beside a buffer, by expert; of one rank or of all."""
    owner = buffer.rpartition(".")[0]
    rows = [line["counts"] for each, line in merged.lines("routed", step)
            if rank in (None, each.rank) and f"{line['name']}.".startswith(f"{owner}.")]  # fmt: skip
    return [sum(each) for each in itertools.zip_longest(*rows, [0] * experts, fillvalue=0)][:experts]

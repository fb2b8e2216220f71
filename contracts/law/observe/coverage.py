"""Whether a run was observed, on all of its ranks (OBS-16, OBS-17)."""

from collections.abc import Iterator

from contracts.contract import contract
from contracts.law.observe._trace import RUN, merged_of, none_of
from contracts.observe.merged import Merged
from contracts.spec.observing import Observing


@contract("OBS-16", asks="trace", cases=RUN, source="F22", slow=True)
def an_unobserved_run_is_not_healthy(stack: Observing) -> None:
    """A trace has every rank of its run, from beginning to end, with at least one whole step, and each trainable
    parameter has a gradient or is known to have none.

    Hooks that never fire report nothing wrong. So does a trace that ends where the run died.
    """
    none_of(_wrong(merged_of(stack)), "the trace has no step")


def _wrong(merged: Merged) -> Iterator[str]:
    if merged.trace.missing:
        yield f"ranks {list(merged.trace.missing)} of {merged.trace.world} left no trace"
    for rank in merged.trace.ranks:
        if rank.end is None:
            yield f"rank {rank.rank} died before it could end its trace"
        elif rank.end["error"]:
            yield f"rank {rank.rank} ended with {rank.end['error']}"
        elif rank.end["full"]:
            yield f"rank {rank.rank} reached the limit of its trace, and what came later is missing"
    if not merged.steps:
        yield "no whole step was seen: a forward and a backward pass and an optimizer's step"
    for step in range(1, merged.steps + 1):
        seen = {line["name"] for kind in ("gradient", "no-gradient") for _, line in merged.lines(kind, step)}
        trainable = {name for _, line in merged.lines("root") for name in line["trainable"]}
        owned = {name for _, line in merged.lines("group", step) for name in line["names"]}
        unseen = sorted((trainable & owned) - seen)
        yield (
            f"step {step}: the gradients of {len(unseen)} parameters were not seen, such as {unseen[0]}"
            if unseen else ""
        )  # fmt: skip
        if not trainable & owned:
            yield f"step {step}: no optimizer holds a parameter of the model that was observed"


@contract("OBS-17", asks="trace", cases=RUN, source="F22", slow=True)
def the_world_that_ran_is_the_world_that_is_judged(stack: Observing) -> None:
    """Every member of a process group, and every rank that a gradient is reduced over, left a trace.

    A script may start ranks itself. Their faults are on no rank that was observed.
    """
    none_of(_missing(merged_of(stack)), "no rank has a process group")


def _missing(merged: Merged) -> Iterator[str]:
    present = {rank.rank for rank in merged.trace.ranks}
    for rank in merged.trace.ranks:
        groups = [("the process group", [*range(line["size"])]) for line in rank.of("world")]
        groups += [
            ("the replicas", [*line["replicas"], *line["data"], *line.get("same", ())]) for line in rank.of("root")
        ]
        groups += [("a collective", [*map(int, line["group"].split("-"))]) for line in rank.of("collectives")]
        for what, members in groups:
            listed = set(members)
            gone = sorted(listed - present)
            ranks = f"rank {gone[0]}" if len(gone) == 1 else f"ranks {', '.join(map(str, gone[:8]))}"
            yield from [f"{ranks} of {what} of rank {rank.rank} left no trace" if gone else ""] * bool(listed)

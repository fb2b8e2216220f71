"""Which optimizer moves what, what is tied, and what values are (OBS-03, OBS-05, OBS-15)."""

import math
from collections import Counter
from collections.abc import Iterator

from contracts.contract import contract
from contracts.law.observe._trace import BITS, RUN, none_of, observed
from contracts.observe.merged import Merged
from contracts.spec.observing import Observing


@contract("OBS-03", asks="trace", cases=RUN, source="F18 F09", slow=True)
def one_optimizer_moves_each_trainable_parameter(stack: Observing) -> None:
    """Each trainable parameter is in exactly one optimizer and moves. Frozen ones do not. When a backward pass begins,
    no gradient is left from the step before.

    A parameter that nobody steps keeps its initial value, and the rest of the model learns around it.
    """
    none_of(_unmoved(observed(stack)), "the model that was observed has no trainable parameter")


def _unmoved(merged: Merged) -> Iterator[str]:
    trainable = list(dict.fromkeys(name for _, line in merged.lines("root") for name in line["trainable"]))
    frozen = list(dict.fromkeys(name for _, line in merged.lines("root") for name in line["frozen"]))
    most: Counter[str] = Counter()
    for rank in merged.trace.ranks:  # of a sharded optimizer each rank has its own parameters
        groups = {(line["optimizer"], line["number"]): line["names"] for line in rank.of("group")}
        most |= Counter(name for names in groups.values() for name in names)
    for name in trainable:
        stepped = f"{most[name]} optimizers" if most[name] else f"no optimizer that stepped in {merged.steps} steps"
        yield "" if most[name] == 1 else f"{name} is trainable and in {stepped}"
    for step in range(2, merged.steps + 1):
        for rank, line in merged.lines("left", step):
            applied = {name for _, group in merged.lines("group", step) for name in group["names"]}
            left = [name for name in line["names"] if name in applied]
            if left:  # others are of an optimizer whose turn it is not
                yield (
                    f"step {step}: {len(left)} gradients are left from the step before on rank {rank.rank}, such "
                    f"as that of {left[0]}"
                )
    moved = {name for step in range(1, merged.steps + 1) for name in _moved(merged, step)}
    rates = {name for step in range(1, merged.steps + 1) for _, line in merged.lines("group", step)
             if float(line["lr"]) for name in line["names"]}  # fmt: skip
    nothing = {line["name"] for _, line in merged.lines("weight", 1) if 0 in line["shape"] or line.get("unread")}
    still = [name for name in trainable if name in rates and name not in moved | nothing]
    rounded = _rounded_away(merged) if still else set()
    yield from (f"{name} is trainable and never moved in {merged.steps} steps" for name in still if name not in rounded)
    yield from (f"{name} is frozen and moved" for name in frozen if name in moved)


def _moved(merged: Merged, step: int) -> set[str]:
    """The weights whose bits differ between the beginning of a step and that of the next."""
    before, after = (
        {(rank.rank, line["name"]): line.get("bits", line["squares"]) for rank, line in merged.lines("weight", at)}
        for at in (step, step + 1)
    )
    return {name for (rank, name), bits in before.items() if (rank, name) in after and after[rank, name] != bits}


def _rounded_away(merged: Merged) -> set[str]:
    """Weights whose every update may be less than half a unit in their last place, as of a norm's ones in bfloat16.

    An update is about the rate, of an optimizer that divides by the size of the gradient, or the rate times that size.
    """
    most: dict[str, float] = {}
    for step in range(1, merged.steps + 1):
        rates = {name: float(line["lr"]) for _, line in merged.lines("group", step) for name in line["names"]}
        for name, each in merged.tensors("gradient", step).items():
            size = each.norm / math.sqrt(max(1, math.prod(each.shape)))
            most[name] = max(most.get(name, 0.0), rates.get(name, 0.0) * min(1.0, size))
    return {
        name for name, each in merged.tensors("weight", 1).items()
        if 0 < most.get(name, 0.0) < each.norm / math.sqrt(max(1, math.prod(each.shape)))
        / 2 ** min(BITS.get(dtype, 0) for dtype in each.dtypes)
    }  # fmt: skip


@contract("OBS-05", asks="trace", cases=RUN, source="F09 F07", slow=True)
def tied_parameters_stay_tied(stack: Observing) -> None:
    """A parameter that two modules share when they are built is shared before every step, whatever has wrapped them.

    Wrapping modules one by one, or loading weights into one of them, makes two parameters of one.
    """
    merged = observed(stack)
    untied = (
        f"step {line['step']}: {line['names'][0]} and {line['names'][1]} were one parameter when they were built, and "
        "are two"
        for rank in merged.trace.ranks for line in rank.of("untied")
    )  # fmt: skip
    held = ["" for rank in merged.trace.ranks for _ in rank.of("tied")]
    none_of([*untied, *held], "no two modules share a parameter")


@contract("OBS-15", asks="trace", cases=RUN, source="F09 F16", slow=True)
def values_are_finite_and_no_moment_is_narrower_than_its_weight(stack: Observing) -> None:
    """Weights, gradients, moments and losses are finite. A moment has at least the precision of its weight, and no
    dtype changes between steps.

    A step whose gradients are NaN is skipped by a scaler, or spoils every weight, and both are fast.
    """
    none_of(_values(observed(stack)), "the trace has no loss, gradient, weight or moment")


def _values(merged: Merged) -> Iterator[str]:
    dtypes: dict[tuple[str, str], str] = {}
    for step in range(1, merged.steps + 1):
        for rank, line in merged.lines("loss", step):
            finite = math.isfinite(float(line["value"]))
            yield "" if finite else f"step {step}: the loss on rank {rank.rank} is {line['value']}"
        for kind in ("gradient", "updated", "moment"):
            for rank, line in merged.lines(kind, step):
                name = f"{line['name']} ({line['moment']})" if kind == "moment" else line["name"]
                finite = math.isfinite(float(line["squares"]))
                yield "" if finite else f"step {step}: the {kind} {name} is not finite on rank {rank.rank}"
                before = dtypes.setdefault((kind, name), line["dtype"])
                if before != line["dtype"]:
                    yield f"step {step}: the {kind} {name} is {line['dtype']}, and was {before}"
                weight = dtypes.get(("updated", line["name"]), "")
                if kind == "moment" and BITS.get(line["dtype"], 0) < BITS.get(weight, 0):
                    yield f"step {step}: the moment {name} is {line['dtype']}, and its weight {weight}"

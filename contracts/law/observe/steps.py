"""Clipping, microbatches, rates and evaluation (OBS-04, OBS-07, OBS-08, OBS-13)."""

import math
import re
from collections.abc import Iterator

from contracts.contract import contract
from contracts.law.observe._scale import NEAR, scale
from contracts.law.observe._trace import RUN, none_of, observed
from contracts.observe.merged import Merged, last
from contracts.observe.trace import Line, RankTrace
from contracts.spec import NotOffered, Observing

NORM = {"bfloat16": 3e-2, "float16": 1e-2}
"""How far a norm may be off, as a part of it: that of float32 is summed in float32 and clipped in it."""

ROUNDED = {"bfloat16": 0.06, "float16": 0.01, "float64": 4e-15}
"""How far the square of a norm may be off where each element was rounded a few times: eight units of the last place."""
LABEL = {"bfloat16": 3e-2, "float16": 1e-2}
"""How far the weights of labels may be off, as a part of them: a few roundings of the loss's dtype."""


@contract("OBS-04", asks="trace", cases=RUN, source="F03", slow=True)
def the_told_norm_is_that_of_the_applied_gradients(stack: Observing) -> None:
    """If gradients are clipped, the norm that `clip_grad_norm_` returned, after clipping, equals the norm of the
    gradients that the optimizer applies, over all ranks. A norm from torch's `get_total_norm` that is passed to
    `clip_grads_with_norm_` is not smaller than it. In a step, either all or none of the ranks that share a batch clip,
    and no microbatch adds to gradients that were scaled down by a clipping and are clipped again.

    Gradients that are clipped before their reduction, or a norm that counts one rank's shards, leave the loss as it is.
    """
    merged = observed(stack)
    if not any(merged.lines("clip", step) for step in range(1, merged.steps + 1)):
        raise NotOffered("the script does not call clip_grad_norm_", "case")
    found = [*_on_some_ranks(merged), *_early(merged), *_norms(merged)]
    none_of(found, "no gradient that clip_grad_norm_ was given could be placed")


def _on_some_ranks(merged: Merged) -> Iterator[str]:
    for step in range(1, merged.steps + 1):
        clips = {rank.rank for rank, _ in merged.lines("clip", step)}
        spared = sorted({rank.rank for rank, _ in merged.lines("step", step)} & {*merged.data_ranks} - clips)
        if spared and clips & {*merged.data_ranks}:
            yield f"step {step}: rank {min(clips)} clips its gradients and rank {spared[0]} does not"


def _early(merged: Merged) -> Iterator[str]:
    """Clippings of what is not added up yet. A step that a scaler skips is clipped too, and counts to the next; not in
    every step."""
    steps = range(1, merged.steps + 1)
    for number in sorted({rank.rank for step in steps for rank, _ in merged.lines("clip", step)}):
        found = [_clipped_again(merged, step, number) for step in steps]
        acts = [
            (step, after) for step, early in zip(steps, found, strict=True) for after, factor in early if factor < 1
        ]
        if len(found) > 1 and all(found) and acts:
            words = f"step {acts[0][0]}: rank {number} scales its gradients down after microbatch {acts[0][1]}"
            yield f"{words}, and others add to them; it clips so in each step"


def _clipped_again(merged: Merged, step: int, number: int) -> list[tuple[int, float]]:
    """After which microbatches a rank clips gradients to which later ones add, and by which factor."""
    clips = merged.clips(step).get(number, [])
    whole = any(line["backward"] == line["microbatches"] for rank, line in merged.lines("step", step)
                if rank.rank == number)  # fmt: skip
    return [(each.after, each.factor) for each in clips if whole and each.after > 0 and any(
        each.after < later.after and {*each.names} & {*later.names} for later in clips)]  # fmt: skip


def _norms(merged: Merged) -> Iterator[str]:
    for step in range(1, merged.steps + 1):
        gradients = merged.tensors("gradient", step)
        sums = _of_sums(merged, step)
        for rank, clip in ((rank, each) for rank, mine in merged.clips(step).items() for each in last(mine)):
            names = set(clip.names)
            if not names or not names <= gradients.keys():
                continue  # some of them could not be placed
            bounds = (sums.get(name, (float(gradients[name].squares),) * 2) for name in names)
            least, applied = (math.sqrt(math.fsum(each)) for each in zip(*bounds, strict=True))
            expected = clip.norm * clip.factor
            allowed = max([1e-3, *(NORM.get(dtype, 0.0) for name in names for dtype in gradients[name].dtypes)])
            # what was given may be the norm of all stages; of a sum of which ranks have parts, only bounds are known
            part = (clip.given and applied < expected) or least <= expected <= applied
            yield (
                "" if part or math.isclose(applied, expected, rel_tol=allowed, abs_tol=1e-12) else (
                    f"step {step}: rank {rank} was given the gradient norm {clip.norm:.6g} and clips at {clip.most:g}"
                    f"; the gradients that were applied have the norm {applied:.6g}, expected {expected:.6g}"
                )
            )  # fmt: skip


def _of_sums(merged: Merged, step: int) -> dict[str, tuple[float, float]]:
    """The least and the greatest square of the norm of gradients that are a sum, of which ranks have parts."""
    parts: dict[str, dict[str, float]] = {}
    for _, line in merged.lines("gradient", step):
        if line.get("partial"):
            parts.setdefault(line["name"], {})[line["part"]] = math.sqrt(float(line["squares"]))
    return {name: (max(0.0, 2 * max(each.values()) - sum(each.values())) ** 2, sum(each.values()) ** 2)
            for name, each in parts.items()}  # fmt: skip


@contract("OBS-07", asks="trace", cases=RUN, source="F19", slow=True)
def a_step_has_the_microbatches_that_were_told(stack: Observing) -> None:
    """All labels of a step that a cross-entropy counts weigh the same, whichever microbatch they are in, and those of
    one microbatch do not weigh as much as a whole step. If all of a step weigh 1 together, the script does not divide
    the mean that DDP takes over ranks by their number again. A step that the script declares to have n microbatches
    (`observe.step(microbatches=n)`) has n backward passes, and DDP reduces each of its gradients once. Trial passes,
    whose gradients are dropped before an optimizer steps, do not occur in every step.

    A mean of each microbatch's mean makes a label of a short text weigh more. A step that reduces every microbatch
    computes the same, and sends n times as much.
    """
    merged = observed(stack)
    told: dict[tuple[int, int], list[int]] = {}  # a step that a scaler skips is told again
    for step in range(1, merged.steps + 1):
        for rank, line in merged.lines("told", step):
            told.setdefault((rank.rank, step), []).append(line["microbatches"])
    dropped = list(_dropped(merged))
    seen = [*_microbatches(merged, told), *_weights(merged, told), *_whole(merged, told), *_divided(merged), *dropped]
    none_of(seen, "no step has several microbatches with labels, and the script gave no number of them")


def _whole(merged: Merged, told: dict[tuple[int, int], list[int]]) -> Iterator[str]:
    """Microbatches whose labels weigh one together each: their loss is a mean that nothing divides by their number.

    A schedule of a pipeline divides gradients after all passes (`scale_grads` of torch.distributed.pipelining).
    """
    for step in () if merged.staged else range(1, merged.steps + 1):
        of: dict[int, list[Line]] = {}
        for rank, line in merged.lines("labels", step):
            of.setdefault(rank.rank, []).append(line)
        for number, found in of.items():
            once = len(found) == len({line["backward"] for line in found}) > 1 == len(told.get((number, step), [0]))
            weights = [float(line["weight"]) * float(line["counted"]) for line in found]
            close = [math.isclose(each, 1.0, rel_tol=LABEL.get(found[0]["dtype"], 1e-4)) for each in weights]
            words = (
                f"step {step}: the labels of each of {len(found)} microbatches weigh 1 together on rank {number}, as if"
            )
            wrong = all(close) and math.isclose(scale(merged, step, number), 1.0, rel_tol=NEAR)
            yield from [f"{words} it were the whole step: divide its loss by {len(found)}" if wrong else ""] * once


def _divided(merged: Merged) -> Iterator[str]:
    """The mean that DDP takes over ranks, divided by their number again in each step. A loss scale is a weight too."""
    means = {rank.rank: len(line["replicas"]) for rank, line in merged.lines("root") if line.get("mean")}
    steps = range(1, merged.steps + 1)
    for number, ranks in means.items():
        whole = [math.fsum(float(line["weight"]) * float(line["counted"]) for rank, line in merged.lines("labels", step)
                           if rank.rank == number) for step in steps]  # fmt: skip
        if ranks > 1 and len(whole) > 1 and all(math.isclose(each, 1.0, rel_tol=NEAR) for each in whole):
            again = all(math.isclose(scale(merged, step, number) * ranks, 1.0, rel_tol=NEAR) for step in steps)
            words = f"in each of {len(whole)} steps, rank {number} divides the mean that DDP takes over {ranks} ranks"
            yield f"{words} by {ranks}, and its labels weigh 1 together without that" if again else ""


def _dropped(merged: Merged) -> Iterator[str]:
    """Gradients that are dropped in one step may be of a trial, or not finite; in each step they are a window's."""
    steps = [sum(line["backward"] for _, line in merged.lines("dropped", step)) for step in range(1, merged.steps + 1)]
    if len(steps) > 1 and all(steps):
        count = "a microbatch" if min(steps) == 1 else f"{min(steps)} microbatches"
        yield f"in each of {len(steps)} steps, the gradients of {count} are dropped before an optimizer steps"


def _weights(merged: Merged, told: dict[tuple[int, int], list[int]]) -> Iterator[str]:
    """Losses of a microbatch are told apart by their number and classes. A step that was tried twice is left out."""
    for step in range(1, merged.steps + 1):
        of: dict[tuple[int, int, int], list[Line]] = {}
        calls: dict[int, dict[int, int]] = {}
        for rank, line in merged.lines("labels", step):
            if len(told.get((rank.rank, step), (0,))) == 1 and line["counted"]:
                of.setdefault((rank.rank, line["call"], line["classes"]), []).append(line)
            each = calls.setdefault(rank.rank, {})
            each[line["backward"]] = each.get(line["backward"], 0) + 1
        for (number, _, _), found in of.items():
            if len(set(calls[number].values())) > 1:
                continue  # a loss in parts, as many as there are labels
            one, other = (pick(found, key=lambda line: float(line["weight"])) for pick in (min, max))
            allowed = LABEL.get(one["dtype"], 1e-4)
            yield from [""] * (len(found) > 1)
            if not math.isclose(float(one["weight"]), float(other["weight"]), rel_tol=allowed):
                yield (
                    f"step {step}: each of {one['counted']} labels of microbatch {one['backward']} weighs "
                    f"{one['weight']:.4g} on rank {number}, and each of {other['counted']} of microbatch "
                    f"{other['backward']} {other['weight']:.4g}"
                )


def _microbatches(merged: Merged, told: dict[tuple[int, int], list[int]]) -> Iterator[str]:
    for step in range(1, merged.steps + 1):
        weights = sum(math.prod(each.shape) for each in merged.tensors("gradient", step).values())
        for rank, line in merged.lines("step", step):
            # a pipeline's schedule cuts backward passes, and has those of each of a rank's stages
            passes = line["microbatches"] / (len(list(rank.of("root"))) or 1) if merged.staged else line["backward"]
            if (rank.rank, step) in told:
                want = sum(told[rank.rank, step])
                words = f"step {step}: rank {rank.rank} has {passes:g} backward passes, reported {want}"
                yield "" if passes == want else words
        for rank, line in merged.lines("collectives", step):
            tries = told.get((rank.rank, step), [])
            if any(each["replicas"] for each in rank.of("root")) and sum(tries) > len(tries):
                sums = [re.search(r"^all_reduce\(sum\) ([\dx]+) ", said) for said in line["said"]]
                sent = sum(math.prod(map(int, found[1].split("x"))) for found in sums if found)
                if weights and sent >= (len(tries) + 1) * weights:
                    yield (
                        f"step {step}: rank {rank.rank} sums {sent} elements over ranks {line['group']}, and the "
                        f"gradients have {weights}: they are reduced {sent // weights} times"
                    )


@contract("OBS-08", asks="trace", cases=RUN, source="F09", slow=True)
def the_applied_rate_is_that_of_the_schedule(stack: Observing) -> None:
    """In every step the optimizer applies the learning rate that the script's scheduler set last, to each parameter.

    A scheduler that was made for an optimizer which is then made again sets rates that nobody applies.
    """
    merged = observed(stack)
    applied = (
        "" if line["told"] == line["lr"] else
        f"step {step}: {line['optimizer']} applies the rate {line['lr']:g} to {line['names'][0]} on rank {rank.rank}; "
        f"the scheduler set {line['told']:g}"
        for step in range(1, merged.steps + 1) for rank, line in merged.lines("group", step)
        if line.get("told") is not None
    )  # fmt: skip
    none_of(applied, "no scheduler of torch sets a rate")


@contract("OBS-13", asks="trace", cases=RUN, source="F07 F13", slow=True)
def evaluation_leaves_the_model_as_it_found_it(stack: Observing) -> None:
    """A forward pass without gradients between two steps changes no weight, no module's mode and no buffer of a
    checkpoint. If all modules are in evaluation mode, it applies no dropout. After one before the first step the model
    trains in training mode, and all ranks of one model train in the same modes.

    A missing `model.train()` turns dropout off for the rest of the run, and a missing `model.eval()` mixes statistics
    of the validation set into those of the run. A function that is not given the mode drops units in both.
    """
    merged = observed(stack)
    between = [step for step in range(1, merged.steps + 1)
               if any(line["after"] for _, line in merged.lines("evaluation", step))]  # fmt: skip
    seen = [*_never_trains(merged), *_modes_of_ranks(merged)]
    if not between and not seen:
        raise NotOffered("no evaluation was seen between two steps", "case")
    seen += [wrong for step in between for wrong in _evaluated(merged, step)]
    none_of(seen, "no weight, mode or buffer was seen after an evaluation")


def _never_trains(merged: Merged) -> Iterator[str]:
    """A model that an evaluation in front of the first step has left in evaluation mode, where that matters."""
    before = {rank.rank for rank, line in merged.lines("evaluation", 1)
              if line.get("before") and not line["training"]}  # fmt: skip
    for rank, line in merged.lines("modes", 1):
        if rank.rank in before:
            still = line.get("matter", []) if "(root)" in line["evaluating"] else []
            words = f"after an evaluation before step 1, the model stays in evaluation mode on rank {rank.rank}, with"
            yield f"{words} {', '.join(still[:5])}" if still else ""


def _modes_of_ranks(merged: Merged) -> Iterator[str]:
    model = {(rank.rank, line["number"]): (*line["trainable"], *line["frozen"]) for rank, line in merged.lines("root")}
    for step in range(1, merged.steps + 1):
        firsts: dict[tuple[str, ...], tuple[int, set[str]]] = {}
        for rank, line in merged.lines("modes", step):
            first, modes = firsts.setdefault(
                model[rank.rank, line.get("root", 0)], (rank.rank, set(line["evaluating"]))
            )
            for apart, here, there in ((modes - {*line["evaluating"]}, first, rank.rank),
                                       ({*line["evaluating"]} - modes, rank.rank, first)):  # fmt: skip
                words = (
                    f"step {step}: {len(apart)} modules are in evaluation mode on rank {here} and not on rank {there}"
                )
                yield from [f"{words}, such as {min(apart)}" if apart else ""] * (first != rank.rank)


def _place(line: Line) -> tuple[str, ...]:
    return line["name"], line["dtype"], line.get("part", "")


def _rounded(rank: RankTrace, before: Line, after: Line) -> bool:
    """Whether a weight moved only by its rounding: an optimizer without a schedule moves to an average and back (arXiv
    2405.15682). A rank that has no sketch of it, because another one has, knows the norm.
    """
    from contracts.observe.sketch import distance

    allowed, squares = ROUNDED.get(before["dtype"], 2e-6), float(before["squares"])
    if before["sketch"] is None or after["sketch"] is None:
        return math.isclose(float(after["squares"]), squares, rel_tol=allowed)
    return distance(rank.sketch(after["sketch"]), rank.sketch(before["sketch"])) <= allowed / 2 * math.sqrt(squares)


def _evaluated(merged: Merged, step: int) -> Iterator[str]:
    after = {(rank.rank, *_place(line)): line for rank, line in merged.lines("weight", step + 1)}
    for rank, line in merged.lines("updated", step):  # main weights, and shards, that the optimizer has are others
        its = after.get((rank.rank, *_place(line)))
        if its is None:
            continue
        yield ""
        if its.get("bits") != line.get("bits") and not _rounded(rank, line, its):
            yield f"the evaluation after step {step} changes the weight {line['name']} on rank {rank.rank}"
    for rank, line in merged.lines("evaluated", step):
        yield ""
        if line.get("dropout"):
            yield (
                f"the evaluation after step {step} applies dropout on rank {rank.rank}, and all of its modules are in "
                "evaluation mode"
            )
        if line["changed"]:
            yield (
                f"the evaluation after step {step} changes {len(line['changed'])} of {line['buffers']} buffers on "
                f"rank {rank.rank}, such as {line['changed'][0]}"
            )
    first = {rank.rank: set(line["evaluating"]) for rank, line in merged.lines("modes", 1)}
    for rank, line in merged.lines("modes", step + 1):
        yield from [""] * (rank.rank in first)
        still = sorted(set(line["evaluating"]) - first.get(rank.rank, set()))
        if still:
            yield (
                f"after the evaluation of step {step}, {len(still)} modules stay in evaluation mode on rank "
                f"{rank.rank}: {', '.join(still[:5])}"
            )

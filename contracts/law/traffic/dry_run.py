"""A dry run (`rehearse`) against a real step: it must predict what a rank of a running world sends."""

from dataclasses import replace
from typing import Protocol

from contracts.contract import contract
from contracts.instruments import traffic
from contracts.instruments.ranks import here
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import SPREAD, batches, borrowed, own_axis, with_rungs
from contracts.law._support.training_run import large_expert_weights
from contracts.spec import Execution, Recipe, Rehearsing, Sent, Session, Training


class Stack(Rehearsing, Training, Protocol):
    """What this check asks of a stack."""


FLOAT32 = replace(SPREAD, dtype="fp32")
RUNNING: dict[str, tuple[Recipe, Execution, int]] = {
    name: (FLOAT32, execution, execution.world)
    for name, execution in {
        "dp2": own_axis(2),
        "tp2-sp": own_axis(2, tp=2, sp=True),
        "fsdp2": replace(own_axis(2, fsdp=True), microbatches=2),
        "borrowed-ep2-fsdp2": borrowed(2, ep=2, fsdp=True),
        "borrowed-tp2-sp-ep2-etp1": borrowed(2, tp=2, ep=2, etp=1, sp=True),
        "tp2-sp-ep2": own_axis(4, tp=2, ep=2, sp=True),
        "borrowed-tp2-sp-ep2-etp2-fsdp": borrowed(4, tp=2, ep=2, etp=2, sp=True, fsdp=True),
    }.items()
}


@contract("TRAF-04g", asks=("rehearse", "train", "built"), cases=with_rungs(RUNNING), needs=(), sheds=("packed",),
          source="hub; F02", tier="dist", slow=True)  # fmt: skip
def a_rehearsal_says_what_a_running_step_issues(stack: Stack, recipe: Recipe, execution: Execution, world: int) -> None:
    """A rank of a running world issues exactly the collectives that a dry run of that rank (`rehearse`) predicts: the
    same kinds over the same ranks, with the same shapes, dtypes and reductions.

    Only the number of rows in an all-to-all may differ, because the router decides it. Plans for 512 cards rest on dry
    runs.
    """
    execution = in_a_layout_of(stack, execution)
    rehearsed = stack.rehearse(recipe, execution, here().rank, "balanced")
    predicted = [_shown(each, rehearsed.groups[each.group]) for each in rehearsed.issued]
    assert predicted, "no collective was predicted"
    one, two = (_issued(stack, recipe, execution, steps) for steps in (1, 2))
    built = next((n for n, (this, that) in enumerate(zip(one, two, strict=False)) if this != that), len(one))
    seen = two[built:]  # what the second step issues, and what comes at the end
    for index, (given, other) in enumerate(zip(predicted, seen, strict=False)):
        words = f"collective {index} of a step on rank {here().rank} is {other}, predicted as {given}"
        assert given == other, words
    rank, more = here().rank, seen[len(predicted) :]
    words = f"a step on rank {rank} issues {len(seen)} collectives, predicted as {len(predicted)}"
    assert len(seen) >= len(predicted), words
    assert len(more) <= CLOSING, f"{words}: the first that is not predicted is {more[0]}"


def _issued(stack: Stack, recipe: Recipe, execution: Execution, steps: int) -> list[str]:
    """Every collective of this rank in a run of so many steps, the same in each run up to its end."""
    session = Session(
        recipe=recipe, steps=steps, execution=execution, batches=batches(steps, recipe),
        weights=large_expert_weights(stack, recipe, "float32"),
    )  # fmt: skip
    with traffic.watched() as watch:
        stack.train(session)
    assert not watch.diverged, watch.diverged
    return [f"{each.said()} over {list(each.members)}" for each in watch.issued]


CLOSING = 1
"""Collectives at the end of a run, in which ranks wait for each other."""


def _shown(each: Sent, members: tuple[int, ...]) -> str:
    """The predicted collective in the words of an observed one."""
    uneven = each.op == "all_to_all"
    shapes = ["x".join(map(str, shape[1:] if uneven else shape)) or "1" for shape in each.shapes]
    kind = f"{each.op}({each.reduce})" if each.reduce else each.op
    root = "" if each.peer is None else f" from {each.peer}"
    return (
        f"{kind} {'rows of ' if uneven else ''}{', '.join(shapes)} {', '.join(each.dtypes)}{root} over {list(members)}"
    )

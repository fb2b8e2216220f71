"""A dry run (`rehearse`) against a real step: it must predict what a rank of a running world sends."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from contracts import instruments
from contracts.checks._support.layouts import in_a_layout_of
from contracts.checks._support.multi_rank_run import SPREAD, batches, borrowed, own_axis
from contracts.checks._support.training_run import large_expert_weights
from contracts.contract import contract
from contracts.instruments.ranks import here
from contracts.spec.traffic import Rehearsing, Sent
from contracts.spec.training import Execution, Session, Training


class Stack(Rehearsing, Training, Protocol):
    """What this check asks of a stack."""


RUNNING: dict[str, tuple[Execution, int]] = {
    "dp2": (own_axis(2), 2),
    "tp2-sp": (own_axis(2, tp=2, sp=True), 2),
    "fsdp2": (replace(own_axis(2, fsdp=True), microbatches=2), 2),
    "borrowed-tp2-sp-ep2-etp1": (borrowed(2, tp=2, ep=2, etp=1, sp=True), 2),
    "tp2-sp-ep2": (own_axis(4, tp=2, ep=2, sp=True), 4),
    "borrowed-tp2-sp-ep2-etp2-fsdp": (borrowed(4, tp=2, ep=2, etp=2, sp=True, fsdp=True), 4),
}
FLOAT32 = replace(SPREAD, dtype="fp32")


@contract("TRAF-04g", asks=("rehearse", "train", "built"), cases=RUNNING, source="hub; F02", tier="dist", slow=True)
def a_rehearsal_says_what_a_running_step_issues(stack: Stack, execution: Execution, world: int) -> None:
    """A rank of a running world issues exactly the collectives that a dry run of that rank (`rehearse`) predicts: the
    same kinds over the same ranks, with the same shapes, dtypes and reductions.

    Only the number of rows in an all-to-all may differ, because the router decides it. Plans for 512 cards rest on dry
    runs.
    """
    execution = in_a_layout_of(stack, execution)
    rehearsed = stack.rehearse(FLOAT32, execution, here().rank, "balanced")
    session = Session(
        recipe=FLOAT32, steps=1, execution=execution, batches=batches(1), weights=large_expert_weights(stack, FLOAT32)
    )
    with instruments.traffic.watched() as watch:
        stack.train(session)
    assert not watch.diverged, watch.diverged
    predicted = [_shown(each, rehearsed.groups[each.group]) for each in rehearsed.issued]
    seen = [f"{each.said()} over {list(each.members)}" for each in watch.issued]
    for index, (one, other) in enumerate(zip(predicted, seen, strict=False)):
        words = f"collective {index} of a step on rank {here().rank} is {other}, predicted as {one}"
        assert one == other, words
    more = len(seen) - len(predicted)
    assert 0 <= more <= CLOSING, (
        f"a step on rank {here().rank} issues {len(seen)} collectives, predicted as {len(predicted)}"
    )


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

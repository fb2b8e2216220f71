"""The collectives of a step: the same on every member of a group, in the same order, none empty, none too large.

Ranks that issue different collectives hang until a timeout, and the error then names the timeout only. Here the members
of a group send each other what they are about to issue, so that a step ends where they differ and the message shows
both.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from contracts.contract import contract
from contracts.instruments import numerics, traffic
from contracts.instruments.ranks import here
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import (
    BIASED,
    SPREAD,
    batches,
    borrowed,
    one_rank_and_many,
    own_axis,
    with_rungs,
)
from contracts.law._support.step_comparison import gradient_differences, state_differences
from contracts.law._support.training_run import large_expert_weights
from contracts.spec import Execution, Mamba, Parameter, Recipe, Rule, Session, Tokens, Training, element_bytes

if TYPE_CHECKING:
    from contracts.instruments.traffic import Watch

WATCHED: dict[str, tuple[Recipe, Execution, int]] = {
    name: (recipe, execution, execution.world)
    for name, recipe, execution in (
        ("tp2-sp", SPREAD, own_axis(2, tp=2, sp=True)),
        ("dp2", SPREAD, replace(own_axis(2), microbatches=2)),
        ("fsdp2", SPREAD, replace(own_axis(2, fsdp=True), microbatches=2)),
        ("ep2", BIASED, own_axis(2, ep=2)),
        ("borrowed-ep2-fsdp2", BIASED, borrowed(2, ep=2, fsdp=True)),
        ("borrowed-tp2-sp-ep2-etp1", SPREAD, borrowed(2, tp=2, ep=2, etp=1, sp=True)),
        ("borrowed-cp2", replace(BIASED, pattern="AEME"), borrowed(2, cp=2)),  # R waits for its neighbour
        ("borrowed-cp2-ep2-fsdp", replace(BIASED, pattern="AE", depth=4), borrowed(2, cp=2, ep=2, fsdp=True)),
        ("tp2-sp-ep2", BIASED, own_axis(4, tp=2, ep=2, sp=True)),
        ("pp2-a-stage-without-experts", replace(BIASED, pattern="AM|ERE"), replace(own_axis(2, pp=2), microbatches=2)),
        ("ep2-fsdp2", SPREAD, own_axis(4, ep=2, fsdp=True)),
        ("borrowed-tp2-sp-ep2-etp2-fsdp", SPREAD, borrowed(4, tp=2, ep=2, etp=2, sp=True, fsdp=True)),
    )
}


@contract("TRAF-01", asks=("built", "train"), cases=with_rungs(WATCHED), needs=(), sheds=("packed",), float32=True,
          source="modal F04", tier="dist")  # fmt: skip
def members_of_a_group_issue_the_same_collectives(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """Over two steps, all members of every process group issue the same collectives in the same order, with the same
    shapes, dtypes and reductions, and each member of an all-to-all receives as much as the other sends.

    A rank that skips a reduction because it has no expert to reduce, or that iterates over a set of names in its own
    order, hangs a thousand ranks. gloo and NCCL silently mix dtypes, or a maximum with a sum.
    """
    watch = _watched(stack, recipe, execution, 2)
    assert not watch.diverged, f"{watch.diverged} (rank {here().rank})"
    assert watch.issued, "no collective was seen"


TINY = replace(
    SPREAD, name="spread-tiny", pattern="AM", depth=2, kv_groups=1, vocab=3, moe=None,
    mamba=Mamba(heads=1, head_dim=8, state=16, groups=1),
)  # fmt: skip
"""One SSM head, a vocabulary of three."""
FEWER: dict[str, tuple[Execution, int, Rule]] = {
    "fsdp2": (own_axis(2, fsdp=True), 2, "adamw"),
    "fsdp4": (own_axis(4, fsdp=True), 4, "adamw"),
    "fsdp4-muon": (own_axis(4, fsdp=True), 4, "muon"),
    "hsdp-2x2": (own_axis(4, fsdp=True, replicas=2), 4, "adamw"),
}


@contract("TRAF-03", asks=("built", "train"), cases=FEWER, source="modal F21", tier="dist")
def nobody_sends_nothing(stack: Training, execution: Execution, world: int, rule: Rule) -> None:
    """If a dimension is smaller than the world, no rank passes an empty tensor to an all-reduce, an all-gather or a
    reduce-scatter, and gradients, weights and optimizer state equal those of one rank.

    A rank with an empty shard compiles, skips or orders its collectives differently, and the job hangs. An all-to-all
    may be empty.
    """
    execution = in_a_layout_of(stack, execution)
    given = tuple(map(_in_small_vocabulary, batches(1)))
    recipe = replace(TINY, optim=replace(TINY.optim, rule=rule))
    session = Session(
        recipe=recipe, steps=1, execution=replace(execution, precision="float64"), batches=given,
        weights=large_expert_weights(stack, TINY), observe=frozenset({"gradients"}),
    )  # fmt: skip
    with traffic.watched() as watch:
        stack.train(session)
    assert not watch.diverged, f"{watch.diverged} (rank {here().rank})"
    assert watch.issued, "no collective was seen"
    for each in watch.issued:
        assert each.uneven or each.bytes, (
            f"rank {here().rank} passes an empty tensor to {each.said()} over {list(each.members)}"
        )
    ((alone, many),) = one_rank_and_many(stack, recipe, execution, given, "gradients", "weights", "optimizer")
    words = gradient_differences(alone, many) or state_differences(alone, many, "weights", "optimizer")
    assert not words, words


SENT: dict[str, tuple[Recipe, Execution, int]] = {
    "dp2": (SPREAD, replace(own_axis(2), microbatches=2), 2),
    "fsdp2": (SPREAD, own_axis(2, fsdp=True), 2),
    "dp4": (SPREAD, own_axis(4), 4),
    "fsdp4": (SPREAD, own_axis(4, fsdp=True), 4),
    "hsdp-2x2": (SPREAD, own_axis(4, fsdp=True, replicas=2), 4),
    "borrowed-cp2": (replace(SPREAD, pattern="AE", depth=4), replace(borrowed(2, cp=2), microbatches=2), 2),
}
COUNTS = 4096
"""Bytes for what is neither a gradient nor a parameter: label counts, reported losses."""


@contract("TRAF-05", asks=("built", "train"), cases=with_rungs(SENT), needs=(), sheds=("packed",), float32=True,
          source="playbook", tier="dist")  # fmt: skip
def what_a_rank_sends_does_not_grow_with_the_ranks(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """In every step, a rank puts each gradient into one reduction, whatever the world size and the number of
    microbatches, and its shard of each parameter into at most two all-gathers. Under context parallel it puts the keys
    and values of its own tokens into one all-gather, and their gradients into one reduction.

    The ring traffic is then bounded by two and three times the parameters. A reduction per microbatch, or another one
    over copies that are already reduced, doubles the bytes and changes no number that anybody looks at. So do keys and
    values that are repeated for every query head before they are sent.
    """
    watch = _watched(stack, recipe, execution, 1)
    assert not watch.diverged, watch.diverged
    rows = stack.built(recipe, execution.mode).parameters
    whole = element_bytes() * sum(_numel(row) for row in rows)
    padded = whole + element_bytes() * sum(_numel(row) // max(row.shape[0], 1) * world for row in rows)
    reduced = sum(each.bytes for each in watch.of("all_reduce", "reduce_scatter"))
    held = world // execution.replicas
    passed = _keys_and_values(recipe, execution)
    bound = padded + (padded // held if execution.replicas > 1 else 0) + passed * execution.degrees.cp + COUNTS
    words = f"{reduced} bytes are reduced, expected at {{}} for {whole} bytes of gradients"
    assert reduced >= whole // 2, words.format(f"least {whole // 2}")  # a stack may reduce in half as many bytes
    assert reduced <= bound, words.format(f"most {bound}")
    fetched = sum(each.bytes for each in watch.of("all_gather"))
    limit = (2 * padded // held + padded // held if execution.fsdp else passed) + COUNTS
    words = f"{whole} bytes of parameters, {passed} of keys and values"
    assert fetched <= limit, f"{fetched} bytes are gathered, expected at most {limit} for {words}"


def _keys_and_values(recipe: Recipe, execution: Execution) -> int:
    """Bytes of the keys and values that a rank of context parallel has of its own tokens."""
    layers = (recipe.pattern * recipe.depth)[: recipe.depth].count("A") if execution.degrees.cp > 1 else 0
    tokens = recipe.batch.total * recipe.seq_length // execution.world
    return layers * tokens * 2 * recipe.kv_groups * recipe.head_dim * element_bytes()


def _watched(stack: Training, recipe: Recipe, execution: Execution, steps: int) -> Watch:
    execution = in_a_layout_of(stack, execution)
    session = Session(
        recipe=recipe,
        steps=steps,
        execution=replace(execution, precision="float64"),
        batches=batches(steps, recipe),
        weights=large_expert_weights(stack, recipe),
    )
    with traffic.watched() as watch:
        stack.train(session)
    return watch


def _in_small_vocabulary(given: Tokens) -> Tokens:
    """The tokens and labels, folded into a vocabulary of three."""
    tokens_BT, labels_BT = numerics.tensor(given.tokens), numerics.tensor(given.labels)
    few_BT = (labels_BT % 3).masked_fill(labels_BT < 0, -100)
    return replace(given, tokens=numerics.array(tokens_BT % 3), labels=numerics.array(few_BT))


def _numel(row: Parameter) -> int:
    return math.prod(row.shape)

"""Runs on several ranks that are refused: a batch before anything is sent, the rest without a process group left."""

from collections import Counter
from contextlib import suppress
from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import fixtures, numerics, traffic
from contracts.instruments.ranks import gathered, held_groups, here, torch_distributed
from contracts.law._support.answers import refusal_of
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import SPREAD, batches, borrowed, own_axis
from contracts.law._support.training_run import large_expert_weights
from contracts.spec import Array, Execution, Group, Session, Training

IDLE: dict[str, tuple[Execution, int, int, str]] = {
    "a-rank-without-a-sequence": (own_axis(2), 2, 1, "sequences"),
    "a-rank-without-a-sequence-of-4": (own_axis(4, fsdp=True), 4, 3, "sequences"),
    "a-run-of-uneven-length": (own_axis(2, tp=2, sp=True), 2, 4, "sequence length"),
    "a-rank-with-a-microbatch-less": (replace(own_axis(2), microbatches=2), 2, 3, "microbatches"),
    "a-rank-with-a-microbatch-less-in-shards": (replace(own_axis(2, fsdp=True), microbatches=2), 2, 3, "microbatches"),
}


@contract("TOPO-10d", asks=("built", "train"), cases=IDLE, source="modal F21", tier="dist")
def no_rank_is_left_without_work(stack: Training, execution: Execution, world: int, rows: int, field: str) -> None:
    """Every rank refuses a batch that leaves a rank without a sequence, or with fewer microbatches than the others, or
    splits sequences unevenly, before it sends anything.

    A rank with an empty shard compiles a different graph, and a rank with one microbatch less misses a collective: the
    other ranks wait for it.
    """
    execution = in_a_layout_of(stack, execution)
    (given,) = batches(1)
    length = 15 if field == "sequence length" else 16
    cut = {name: _cut(getattr(given, name), rows, length) for name in ("tokens", "labels", "documents")}
    session = Session(recipe=SPREAD, steps=1, execution=execution, batches=(replace(given, **cut),))
    with traffic.watched() as watch:
        refusal = refusal_of(stack.train, session)
    sent = watch.of("all_to_all", "all_gather", "reduce_scatter")
    assert field in str(refusal), f"the refusal names no {field}: {refusal}"
    assert not sent, f"{sent[0].said()} was sent before the refusal"


def _cut(value: Array, rows: int, length: int) -> Array:
    return numerics.array(numerics.tensor(value)[:rows, :length])


REFUSED: dict[str, tuple[Execution, int]] = {
    "tp2-sp-beside-dp2": (own_axis(4, tp=2, sp=True), 4),
    "ep2-fsdp2": (own_axis(4, ep=2, fsdp=True), 4),
    "borrowed-tp2-sp-ep2-etp1-fsdp": (borrowed(4, tp=2, ep=2, etp=1, sp=True, fsdp=True), 4),
    "pp2-beside-dp2": (replace(own_axis(4, pp=2), microbatches=2), 4),
}
STRANGE = "no.such.weight"


@contract("TOPO-07g", asks=("built", "train"), cases=REFUSED, source="F04; GATE-05", tier="dist")
def a_refused_run_leaves_no_group_behind(stack: Training, execution: Execution, world: int) -> None:
    """After a run that is refused once its process groups exist, exactly the groups exist that existed before, and the
    next run takes its step.

    A caller that catches the refusal and tries another setting would otherwise keep the first run's communicators for
    good.
    """
    execution = in_a_layout_of(stack, execution)
    recipe = replace(SPREAD, depth=6, pattern="AEM") if execution.degrees.pp > 1 else SPREAD
    legal = Session(
        recipe=recipe, steps=1, execution=execution, batches=batches(1), weights=large_expert_weights(stack, recipe)
    )
    scalar = numerics.array(fixtures.normal("strange", (1,)))
    _, dist = torch_distributed()
    mine = dist.new_group([0, 1])  # another component's group, which must stay
    try:
        before = held_groups()
        refusal = refusal_of(stack.train, replace(legal, weights={**legal.weights, STRANGE: scalar}))
        words = _left(before, held_groups())
        problem = next(filter(None, gathered(words)), "")
        assert not problem, f"after the refusal of {STRANGE}, {problem}"
        assert STRANGE in str(refusal), f"the refusal does not name {STRANGE}: {refusal}"
        stack.train(legal)
    finally:
        with suppress(ValueError):  # a run that destroyed it has failed above
            dist.destroy_process_group(mine)


def _left(before: tuple[Group, ...], after: tuple[Group, ...]) -> str:
    """Which groups a rank has gained or lost."""
    found, left = Counter(before), Counter(after)
    more, gone = list((left - found).elements()), list((found - left).elements())
    said = [f"rank {here().rank} is left with {len(more)} groups, as {list(more[0])}"] if more else []
    said += [f"rank {here().rank} has lost its group {list(gone[0])}"] if gone else []
    return "; ".join(said)

"""Batches that do not divide over the ranks: refused by every rank before anything is sent."""

from dataclasses import replace

from contracts import instruments
from contracts.contract import contract
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import SPREAD, batches, own_axis
from contracts.law._support.refusals import refusal_of
from contracts.spec import Array, Execution, Session, Training

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
    with instruments.traffic.watched() as watch:
        refusal = refusal_of(stack.train, session)
    sent = watch.of("all_to_all", "all_gather", "reduce_scatter")
    assert field in str(refusal), f"the refusal names no {field}: {refusal}"
    assert not sent, f"{sent[0].said()} was sent before the refusal"


def _cut(value: Array, rows: int, length: int) -> Array:
    numerics = instruments.numerics
    return numerics.array(numerics.tensor(value)[:rows, :length])

"""Over which ranks a running step reduces and gathers, measured by the bytes that each group carries, and what a sum
over tensor-parallel ranks has."""

import math
from collections import Counter
from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics, traffic
from contracts.instruments.ranks import here
from contracts.law._support.late import torch
from contracts.law._support.layouts import in_a_layout_of, layout_of
from contracts.law._support.multi_rank_run import SPREAD, batches, borrowed, own_axis, with_rungs
from contracts.law._support.training_run import large_expert_weights
from contracts.spec import (
    EXACT,
    Degrees,
    Execution,
    Group,
    Moe,
    Parameter,
    Recipe,
    Session,
    Training,
    World,
    element_bytes,
)

Shares = tuple[tuple[tuple[Group, ...], float, float], ...]  # groups, fractions of dense and of expert gradients
ALL_2: tuple[Group, ...] = ((0, 1),)
ALL_4: tuple[Group, ...] = ((0, 1, 2, 3),)
STRIDE_2: tuple[Group, ...] = ((0, 2), (1, 3))

REDUCED: dict[str, tuple[Recipe, Execution, int, Shares]] = {
    "dp2": (SPREAD, own_axis(2), 2, ((ALL_2, 1, 1),)),
    # Each expert lies on one rank, which has seen the tokens of both.
    "borrowed-ep2": (SPREAD, borrowed(2, ep=2), 2, ((ALL_2, 1, 0),)),
    # Ranks of one EP group share a batch, so each has the whole dense gradient.
    "ep2": (SPREAD, own_axis(2, ep=2), 2, ((ALL_2, 0, 0),)),
    "ep2-on-4": (SPREAD, own_axis(4, ep=2), 4, ((STRIDE_2, 1, 0.5),)),
    "borrowed-ep2-on-4": (SPREAD, borrowed(4, ep=2), 4, ((ALL_4, 1, 0), (STRIDE_2, 0, 0.5))),
}
"""Worked out by hand: own-axis has ranks (dp, ep), borrowed carves ep out of neighbours."""
COUNTS = 4096  # bytes allowed for losses and token counts
ALIGNED = 64
"""Elements. If ranks share a bucket, a tensor may begin at a multiple of it, and the bucket end at a multiple of
twice as many for each rank (Megatron-Core: param_layout.py)."""


@contract(
    "TOPO-09d",
    asks=("built", "train"),
    cases=with_rungs(REDUCED, "experts"),
    needs=("experts",),
    sheds=("packed",),
    float32=True,
    source="bringup; F01",
    tier="dist",
)
def gradients_meet_over_the_ranks_that_saw_other_data(
    stack: Training, recipe: Recipe, execution: Execution, world: int, shares: Shares
) -> None:
    """In a running step, dense gradients are reduced over exactly the ranks that read different sequences, and expert
    gradients over exactly the ranks that hold the same experts: each once, and over no other group.

    The check counts bytes, so gradients may travel one by one or in buckets, which may be padded where ranks share
    them. A group that is too large, with a divisor that makes up for it, gives the right number until a rank has no
    tokens.
    """
    execution = in_a_layout_of(stack, execution)
    rows = stack.built(recipe, execution.mode).parameters
    experts = _bytes([row for row in rows if row.role == "expert"])
    dense = _bytes(list(rows)) - experts
    session = Session(
        recipe=recipe, steps=1, execution=replace(execution, precision="float64"), batches=batches(1, recipe),
        weights=large_expert_weights(stack, recipe),
    )  # fmt: skip
    with traffic.watched() as watch:
        stack.train(session)
    assert not watch.diverged, watch.diverged
    found: Counter[Group] = Counter()
    shared: Counter[Group] = Counter()  # buckets of which each rank is left with a piece
    for each in watch.of("all_reduce", "reduce_scatter"):
        if len(each.members) > 1:  # one rank by itself reduces nothing
            group = tuple(sorted(each.members))
            found[group] += each.bytes
            shared[group] += each.op == "reduce_scatter"
    of_an_expert = [row.shape[0] if row.role == "expert" else 0 for row in rows]  # tensors, of each expert one
    rank = here().rank
    want, tensors = {}, Counter[Group]()
    for groups, of_dense, of_experts in shares:
        group = next(group for group in groups if rank in group)
        want[group] = of_dense * dense + of_experts * experts
        tensors[group] += sum(of_an_expert) * bool(of_experts) + of_an_expert.count(0) * bool(of_dense)
    for group in sorted(found.keys() | want.keys()):
        excess = found[group] - want.get(group, 0)
        padded = (tensors[group] + 2 * len(group) * shared[group]) * ALIGNED * element_bytes() if shared[group] else 0
        assert 0 <= excess <= COUNTS + padded, (
            f"rank {rank} reduces {found[group]} bytes over {list(group)}, expected {want.get(group, 0):.0f} "
            f"({dense} of dense gradients, {experts} of experts)"
        )


ROUTERS = replace(
    SPREAD, name="spread-routers", pattern="E", vocab=68,
    moe=Moe(experts=16, top_k=3, expert_hidden=20, shared_hidden=0),
)  # fmt: skip
LOCAL: dict[str, tuple[Execution, int]] = {
    "borrowed-tp2-sp-ep2-etp1": (borrowed(2, tp=2, ep=2, etp=1, sp=True), 2),
    "tp2-sp-ep2": (own_axis(4, tp=2, ep=2, sp=True), 4),
    "borrowed-tp2-sp-ep4-etp1": (borrowed(4, tp=2, ep=4, etp=1, sp=True), 4),
    "tp2-sp-etp1": (own_axis(2, tp=2, etp=1, sp=True), 2),
}


@contract("TOPO-04d", asks=("built", "train"), cases=LOCAL, source="bringup", tier="dist")
def routers_read_the_local_shard(stack: Training, execution: Execution, world: int) -> None:
    """In a running step with EP active, nothing gathers the sequence before a router: each rank routes its own tokens,
    and only the routed rows travel.

    The check compares depths: three expert layers gather and scatter the residual stream no more often than one does.
    Without EP, tensor-parallel ranks that hold whole experts apply them to their own tokens, and no row travels. The
    numbers do not show a stack that shards those experts all the same.
    """
    execution = in_a_layout_of(stack, execution)
    found = []
    for depth in (1, 3):
        recipe = replace(ROUTERS, depth=depth)
        session = Session(
            recipe=recipe, steps=1, execution=replace(execution, precision="float64"), batches=batches(1),
            weights=large_expert_weights(stack, recipe),
        )  # fmt: skip
        with traffic.watched() as watch:
            stack.train(session)
        assert not watch.diverged, watch.diverged
        assert watch.of("all_to_all") or execution.degrees.ep == 1, "no token rows are sent between ranks"
        moved = [each for each in watch.of("all_gather", "reduce_scatter") if _is_stream(each.shapes)]
        found.append(len(moved))
    one, three = found
    assert three == one, (
        f"three layers of experts move the residual stream {three} times between ranks, one {one} times"
    )


def _is_stream(shapes: tuple[tuple[int, ...], ...]) -> bool:
    """Whether a shape has the hidden width and as many rows as a shard of the batch."""
    return any(shape[-1:] == (ROUTERS.hidden,) and math.prod(shape[:-1]) % 32 == 0 for shape in shapes)


def _bytes(rows: list[Parameter]) -> int:
    return element_bytes() * sum(math.prod(row.shape) for row in rows)


IN_MEMORY: dict[str, tuple[Degrees, int, tuple[Group, ...], bool]] = {
    "row-by-row": (Degrees(tp=2), 2, ((0, 1),), False),
    "first-axis-fastest": (Degrees(tp=2), 2, ((0, 1),), True),
    "first-axis-fastest-on-4": (Degrees(tp=2), 4, ((0, 1), (2, 3)), True),
}


@contract("TOPO-05k", asks="reduced", cases=IN_MEMORY, source="Megatron-LM #5338", tier="dist")
def a_sum_over_tensor_parallel_ranks_has_all_of_them(
    stack: World, degrees: Degrees, world: int, groups: tuple[Group, ...], strided: bool
) -> None:
    """The function with which layers sum over tensor-parallel ranks returns the sum of those ranks' tensors, whether
    they are contiguous in memory or transposed.

    A collective wants one order of memory. What copies the tensor into it, sums the copy and returns the tensor returns
    each rank's own part: activations differ from rank to rank, and nothing fails.
    """
    parts = {rank: torch.arange(35, dtype=torch.float32).view(5, 7) * (rank + 1) + rank for rank in range(world)}
    mine = next(group for group in groups if here().rank in group)
    given = numerics.array(parts[here().rank])
    got = stack.reduced(degrees, world, layout_of(stack, "own-axis", degrees), given, strided)
    want = torch.stack([parts[rank] for rank in mine]).sum(0)
    words = numerics.difference(f"the sum over ranks {list(mine)}", got, want, EXACT)
    assert not words, words

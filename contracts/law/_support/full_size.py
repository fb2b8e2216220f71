"""NAM56R at true size and small transformers, in lanes; their parameters counted by hand, and the messages of a step
sorted by purpose.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import borrowed, own_axis
from contracts.law._support.small_models import GROUPED_EXPERTS
from contracts.spec import Batch, Execution, Group, Moe, Recipe, Rehearsal, Rehearsing, Routing, Sent, rung_of
from contracts.spec.presets import PRESETS

WHOLE = PRESETS["nam56r_h200_bf16_v1"]  # A 13, E 22, M 13, R 4
LETTERS = replace(WHOLE, name="nam56r-letters", pattern="AEMR", depth=4)
"""One layer of each letter, and both ends."""
PAIRS = replace(
    GROUPED_EXPERTS, name="nam56r-letters@pairs", hidden=256, ffn_hidden=512, seq_length=192, vocab=4096, dtype="bf16",
    moe=Moe(experts=16, top_k=4, expert_hidden=128, shared_hidden=0, aux_loss=0.0),
)  # fmt: skip
"""Two layers of attention and two of experts, small enough for a dry run over real tensors."""
DENSE = replace(PAIRS, name="nam56r-letters@dense", moe=None)
RUNGS = {"pairs": PAIRS, "dense": DENSE}


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Parameters by layer, counted by hand: alike on all TP ranks, cut by TP, routed experts.

    Args:
        letters: of a layer. ends: of the final norm, and of embedding and output projection.
    """

    letters: dict[str, tuple[int, int, int]]
    ends: tuple[int, int, int]


def _of_nam56r(D: int) -> Counts:
    """56 heads of 64, 8 KV heads, 8 SSM groups of 64 states."""
    return Counts(
        letters={
            "A": (D + 2 * 64, 2 * D * D + 2 * 512 * D, 0),  # norm, QK norm; q and output; k and v
            "E": (D + 16 * D, 2 * 1024 * D, 16 * 2 * 896 * D),  # norm, router; shared expert; experts
            # norm; z, x and output; B and C; dt; convolution of four taps and a bias; A, D and dt's bias; gated norm
            "M": (D, 3 * D * D + 2 * 512 * D + 56 * D + (D + 2 * 512) * 5 + 3 * 56 + D, 0),
            # norm; gate, v, q, k and output; forget gate; W of each head; A, D and its bias; gated norm
            "R": (D, 5 * D * D + 56 * D + 56 * 64 * 64 + 3 * 56 + D, 0),
        },
        ends=(D, 2 * 65536 * D, 0),
    )


def _of_a_transformer(D: int) -> dict[str, Counts]:
    """8 heads of 32, 4 KV heads; experts and MLPs are gated."""
    attention, ends = (D + 2 * 32, 2 * D * D + 2 * 128 * D, 0), (D, 2 * 4096 * D, 0)
    return {
        "pairs": Counts(letters={"A": attention, "E": (D + 16 * D, 0, 16 * 3 * 128 * D)}, ends=ends),
        "dense": Counts(letters={"A": attention, "E": (D, 3 * 512 * D, 0)}, ends=ends),
    }


COUNTED: dict[str, Counts] = {"": _of_nam56r(3584), **_of_a_transformer(256)}
"""By rung of a recipe."""
BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "uint8": 1, "bool": 1}
FLOATING = ("bfloat16", "float16", "float32", "float64")
LITTLE = 1 << 16
"""Bytes per step for norms, losses and counts together."""

Purpose = Literal["weights", "gradients", "stream", "copies", "rows", "counts", "shared rows", "messages", "rest"]


class Stack(Rehearsing, Protocol):
    """What these checks ask of a stack."""


@dataclass(frozen=True, kw_only=True)
class Lane:
    """An execution, and the groups of rank 0 in it, worked out by hand; (0,) if it is the only one.

    Args:
        shard, expert_shard: over which ranks dense parameters, and experts, are cut or reduced.
        copies: over which ranks sharded gradients are reduced again, because these hold the same shards.
        tp, ep: tensor and expert parallel.
    """

    execution: Execution
    shard: Group
    expert_shard: Group
    copies: Group = (0,)
    tp: Group = (0,)
    ep: Group = (0,)

    @property
    def dp(self) -> int:
        """The number of ranks that read other sequences."""
        return len(self.shard) * len(self.copies)


LANES: dict[str, Lane] = {
    "dp8": Lane(execution=own_axis(8), shard=tuple(range(8)), expert_shard=tuple(range(8))),
    "fsdp8": Lane(execution=own_axis(8, fsdp=True), shard=tuple(range(8)), expert_shard=tuple(range(8))),
    "hsdp-2x8": Lane(
        execution=own_axis(16, fsdp=True, replicas=2),
        shard=tuple(range(8)), expert_shard=tuple(range(8)), copies=(0, 8),
    ),
    # rank = 4 dp + 2 ep + tp; experts lie whole on both TP ranks, so they are cut over dp and tp
    "tp2-sp-ep2-fsdp2": Lane(
        execution=own_axis(8, tp=2, sp=True, ep=2, etp=1, fsdp=True),
        shard=(0, 4), expert_shard=(0, 1, 4, 5), tp=(0, 1), ep=(0, 2),
    ),
    # dense rank = 2 dp + tp, expert rank = 4 edp + ep
    "borrowed-tp2-sp-ep4-fsdp4": Lane(
        execution=borrowed(8, tp=2, sp=True, ep=4, etp=1, fsdp=True),
        shard=(0, 2, 4, 6), expert_shard=(0, 4), tp=(0, 1), ep=(0, 1, 2, 3),
    ),
}  # fmt: skip
BESIDE_TP: dict[str, Lane] = {  # rank = 2 dp + tp; experts are cut as all else is
    name: Lane(
        execution=own_axis(8, tp=2, sp=True, fsdp=fsdp), shard=(0, 2, 4, 6), expert_shard=(0, 2, 4, 6), tp=(0, 1)
    )
    for name, fsdp in (("tp2-sp-dp4", False), ("tp2-sp-fsdp4", True))
}
BESIDE_EP: dict[str, Lane] = {
    "borrowed-ep4-fsdp8": Lane(
        execution=borrowed(8, ep=4, etp=1, fsdp=True), shard=tuple(range(8)), expert_shard=(0, 4), ep=(0, 1, 2, 3)
    )
}


def on_rungs(lanes: Mapping[str, Lane]) -> dict[str, tuple[Recipe, Lane]]:
    """Lanes with NAM56R's letters, and after each the small transformers that it is asked on.

    If ranks share experts it has some. If TP cuts experts, how rows come together is a stack's own choice.
    """
    found = {}
    for name, lane in lanes.items():
        found[name] = (LETTERS, lane)
        if lane.execution.layout == "own-axis" and len(lane.ep) > 1:
            continue
        for rung, recipe in RUNGS.items():
            if (len(lane.ep) > 1 and rung == "dense") or (_etp(lane) > 1 and rung == "pairs"):
                continue
            found[f"{name}@{rung}"] = (recipe, lane)
    return found


def recipe_for(recipe: Recipe, lane: Lane) -> Recipe:
    """One sequence per microbatch for each rank that reads other ones."""
    return replace(recipe, batch=Batch(micro=1, total=lane.dp * lane.execution.microbatches))


def dry_run_step(stack: Stack, recipe: Recipe, lane: Lane, rank: int = 0, routing: Routing = "balanced") -> Rehearsal:
    found = stack.rehearse(recipe_for(recipe, lane), in_a_layout_of(stack, lane.execution), rank, routing)
    assert found.issued or lane.execution.world == 1, "no collective was seen"
    return found


def parameters(recipe: Recipe, lane: Lane) -> tuple[int, int, int]:
    """A rank's parameters before data parallelism cuts them: alike on all TP ranks, cut by TP, experts."""
    counts = COUNTED[rung_of(recipe)]
    rows = [counts.letters[letter] for letter in letters(recipe)]
    alike, cut, experts = (sum(each) for each in zip(counts.ends, *rows, strict=True))
    return alike, cut // len(lane.tp), experts // (len(lane.ep) * _etp(lane))


def of_ends(recipe: Recipe, lane: Lane) -> int:
    """Those of them that are outside the layers."""
    alike, cut, _ = COUNTED[rung_of(recipe)].ends
    return alike + cut // len(lane.tp)


def letters(recipe: Recipe) -> str:
    return "".join(recipe.pattern[layer % len(recipe.pattern)] for layer in range(recipe.depth))


def _etp(lane: Lane) -> int:
    """The number of ranks that hold a part of each expert."""
    degrees = lane.execution.degrees
    return degrees.etp or degrees.tp


def sorted_by_purpose(found: Rehearsal, recipe: Recipe, lane: Lane) -> dict[Purpose, list[Sent]]:
    """Everything that was issued, sorted by purpose, from its kind and the ranks it goes over."""
    sorts: dict[Purpose, list[Sent]] = {}
    for each in found.issued:
        sorts.setdefault(_purpose(each, found.groups[each.group], recipe, lane), []).append(each)
    return sorts


def _purpose(each: Sent, members: Group, recipe: Recipe, lane: Lane) -> Purpose:
    data = members in (lane.shard, lane.expert_shard)
    if each.op in ("send", "receive"):
        return "messages"
    if each.op == "all_to_all":
        return "rows" if each.dtypes[0] in FLOATING else "counts"
    if len(members) == 1:
        return "rest"
    if each.op == "all_gather" and data and each.dtypes[0] in FLOATING:
        return "weights"
    if (data or members == lane.copies) and each.op != "all_gather":
        return "gradients"
    if members == lane.tp:
        return "stream" if _is_stream(each, recipe) else "copies"
    return "shared rows" if members == lane.ep and each.op == "all_gather" else "rest"


def _is_stream(each: Sent, recipe: Recipe) -> bool:
    """Whether a message carries the residual stream: a gather, a scatter, or an all-reduce of its size; smaller ones
    carry gradients.
    """
    return each.op != "all_reduce" or elements(each) >= recipe.seq_length * recipe.hidden // 8


def elements_per_group(found: Rehearsal, issued: list[Sent]) -> Counter[Group]:
    """Elements that the rank puts in, per group."""
    sums: Counter[Group] = Counter()
    for each in issued:
        sums[found.groups[each.group]] += elements(each)
    return sums


def elements(each: Sent) -> int:
    return sum(math.prod(shape) for shape in each.shapes)


def bytes_of(*issued: Sent) -> int:
    """The bytes that a rank puts in."""
    parts: Iterator[tuple[tuple[int, ...], str]] = (
        pair for each in issued for pair in zip(each.shapes, each.dtypes, strict=True)
    )
    return sum(math.prod(shape) * BYTES[dtype] for shape, dtype in parts)


def ring_bytes(found: Rehearsal) -> float:
    """The bytes over the rank's link in a ring: with n ranks, (n - 1) / n of all that is reduced or gathered."""
    return sum(_ring(each, len(found.groups[each.group])) for each in found.issued)


def _ring(each: Sent, ranks: int) -> float:
    size = bytes_of(each)
    if each.op == "all_gather":
        return size * (ranks - 1)
    if each.op == "all_reduce":
        return 2 * size * (ranks - 1) / ranks
    if each.op == "receive":
        return 0
    return size if each.op in ("send", "broadcast") else size * (ranks - 1) / ranks

"""Ranks share the work: what each computes is its part of it, and not the whole over again.

Numbers cannot show it. If every rank computes every row, layer and head by itself, losses, gradients and weights are
those of one rank on all of them, and the only thing that parallelism was for is missing.
"""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import work
from contracts.instruments.ranks import gathered
from contracts.law._support.small_models import DENSE, GROUPED_EXPERTS, HYBRID_EXPERTS, IN_HALVES, cell, session
from contracts.law._support.transformer_layouts import QUARTERS
from contracts.spec import Execution, NotOffered, Recipe, Training

HALVES = replace(GROUPED_EXPERTS, **IN_HALVES)  # type: ignore[arg-type]  # a pattern and a depth
ROUTED = replace(GROUPED_EXPERTS, name="routed", pattern="AEE", depth=6)
"""Experts outweigh the rest, which own-axis expert-parallel ranks each compute."""
HALF, QUARTER, WHOLE = 0.7, 0.45, 1.1
"""Of two ranks and of four: a part and what all of them compute, such as a router or a gate; all, and other roots."""
SHARED: dict[str, tuple[Recipe, Execution, int, float, float]] = {  # the last two: of a step, and of the update
    "dp2": (*cell(GROUPED_EXPERTS, 2), HALF, WHOLE),
    "fsdp2": (*cell(DENSE, 2, fsdp=True), HALF, HALF),
    "hsdp-2x2": (*cell(GROUPED_EXPERTS, 4, fsdp=True, replicas=2), QUARTER, HALF),
    "tp2": (*cell(DENSE, 2, tp=2), HALF, HALF),
    "tp2-sp-etp1": (*cell(GROUPED_EXPERTS, 2, tp=2, etp=1, sp=True), HALF, WHOLE),
    "tp2-sp-hybrid": (*cell(HYBRID_EXPERTS, 2, tp=2, sp=True), HALF, HALF),
    "tp2-beside-dp2": (*cell(DENSE, 4, tp=2, sp=True), QUARTER, HALF),
    "cp2": (*cell(DENSE, 2, cp=2), HALF, WHOLE),
    "cp2-fsdp": (*cell(DENSE, 2, cp=2, fsdp=True), HALF, HALF),
    "cp2-beside-tp2": (*cell(DENSE, 4, cp=2, tp=2, sp=True), QUARTER, HALF),
    "cp2-hybrid": (*cell(HYBRID_EXPERTS, 2, cp=2), HALF, WHOLE),
    "ep2": (*cell(ROUTED, 2, layout="own-axis", ep=2), HALF, HALF),
    "borrowed-ep2": (*cell(GROUPED_EXPERTS, 2, ep=2), HALF, HALF),
    "borrowed-ep4-fsdp": (*cell(GROUPED_EXPERTS, 4, ep=4, fsdp=True), QUARTER, QUARTER),
    "pp2": (*cell(HALVES, 2, pp=2, microbatches=4), HALF, HALF),
    "interleaved": (*cell(QUARTERS, 2, pp=2, microbatches=4, interleaved=True), HALF, HALF),
    "pp2-beside-dp2": (*cell(HALVES, 4, pp=2, microbatches=2), QUARTER, HALF),
    "interleaved-beside-dp2": (*cell(QUARTERS, 4, pp=2, microbatches=2, interleaved=True), QUARTER, HALF),
}


@contract("PAR-16", asks=("built", "train"), cases=SHARED, tier="dist", source="F15; GATE-21")
def every_rank_computes_its_share(
    stack: Training, recipe: Recipe, execution: Execution, world: int, share: float, held: float
) -> None:
    """Under every parallel axis each rank computes its share of a step: on two ranks at most 70 % of what one rank
    computes, on four at most 45 %, and never nothing. If an axis shards parameters, a rank updates no more than its
    share of them.

    The products of matrices are counted as each rank runs them, those of activations (the scores of attention, a scan)
    by themselves as well, and the elements of which Adam takes a root. A context-parallel group that is never entered
    gives every rank whole rows, and all numbers are right. So does a sampler without ranks, a plan of tensor
    parallelism whose names match no module, or sharding that every rank undoes: what each rank holds whole is what runs
    out of memory at full size.
    """
    asked = session(stack, recipe, execution, 1)
    with work.counted() as alone:
        stack.train(replace(asked, execution=Execution(precision=execution.precision, layout=asked.execution.layout)))
    with work.counted() as spread:
        stack.train(asked)
    if not alone.operations:
        raise NotOffered("its steps are not computed eagerly in this process, where products are counted", "adapter")
    _require_shares("computes {} of what", spread.operations / alone.operations, world, share, least=0.05)
    if alone.scores and (execution.degrees.ep == 1 or execution.layout == "borrowed"):
        _require_shares("computes {} of the products of activations that", spread.scores / alone.scores, world, share)
    if alone.updated:  # other rules take no root
        _require_shares("updates {} of what", spread.updated / alone.updated, world, held)


MORE = 1.15
"""A forward pass is a third of a step: all layers once more are a third more, less what lies outside of them."""
TWICE: dict[str, tuple[Recipe, Execution, int]] = {
    "dp2": cell(DENSE, 2, recomputed=True),
    "fsdp2": cell(GROUPED_EXPERTS, 2, fsdp=True, recomputed=True),
    "tp2-sp": cell(DENSE, 2, tp=2, sp=True, recomputed=True),
    "cp2": cell(DENSE, 2, cp=2, recomputed=True),
    "borrowed-ep2": cell(GROUPED_EXPERTS, 2, ep=2, recomputed=True),
    "pp2": cell(HALVES, 2, pp=2, microbatches=4, recomputed=True),
    "hybrid": cell(HYBRID_EXPERTS, 2, recomputed=True),
}


@contract("PAR-16a", asks=("built", "train"), cases=TWICE, tier="dist", source="F15; ACK-07; ACK-08")
def recomputed_layers_are_computed_again(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """With recomputation each rank computes at least 15 % more products of matrices in a step than without.

    Recomputation that is asked for and wraps nothing, or every second layer, changes no number: it shows where a step
    at full size runs out of memory.
    """
    asked = session(stack, recipe, execution, 1)
    with work.counted() as kept:
        stack.train(replace(asked, execution=replace(asked.execution, recompute=False)))
    with work.counted() as again:
        stack.train(asked)
    if not kept.operations:
        raise NotOffered("its steps are not computed eagerly in this process, where products are counted", "adapter")
    for rank, part in enumerate(gathered(again.operations / kept.operations)):
        assert part >= MORE, f"with recomputation rank {rank} of {world} computes {part:.2f} times what it does without"


def _require_shares(does: str, mine: float, world: int, share: float, *, least: float = 0.0) -> None:
    parts = gathered(mine)
    for rank, part in enumerate(parts):
        words = f"rank {rank} of {world} {does.format(f'{part:.0%}')} one rank by itself does"
        assert part <= share, f"{words}, expected {share:.0%} at most (in all {sum(parts):.0%})"
        assert part >= least, f"{words}, expected a share"

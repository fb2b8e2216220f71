"""Ranks share the work: what each computes is its part of it, and not the whole over again.

Numbers cannot show it. If every rank computes every row, layer and head by itself, losses, gradients and weights are
those of one rank on all of them, and the only thing that parallelism was for is missing.
"""

from dataclasses import replace

from contracts import instruments
from contracts.contract import contract
from contracts.instruments.ranks import gathered
from contracts.law._support.small_models import DENSE, GROUPED_EXPERTS, HYBRID_EXPERTS, IN_HALVES, cell, session
from contracts.law._support.transformer_layouts import QUARTERS
from contracts.spec.errors import NotOffered
from contracts.spec.recipe import Recipe
from contracts.spec.training import Execution, Training

HALVES = replace(GROUPED_EXPERTS, **IN_HALVES)  # type: ignore[arg-type]  # a pattern and a depth
ROUTED = replace(GROUPED_EXPERTS, name="routed", pattern="AEE", depth=6)
"""Experts outweigh the rest, which own-axis expert-parallel ranks each compute."""
HALF, QUARTER = 0.7, 0.45
"""Of two ranks and of four: a part and what all of them compute, such as a router or a gate."""
SHARED: dict[str, tuple[Recipe, Execution, int, float]] = {
    "dp2": (*cell(GROUPED_EXPERTS, 2), HALF),
    "fsdp2": (*cell(DENSE, 2, fsdp=True), HALF),
    "hsdp-2x2": (*cell(GROUPED_EXPERTS, 4, fsdp=True, replicas=2), QUARTER),
    "tp2": (*cell(DENSE, 2, tp=2), HALF),
    "tp2-sp-etp1": (*cell(GROUPED_EXPERTS, 2, tp=2, etp=1, sp=True), HALF),
    "tp2-sp-hybrid": (*cell(HYBRID_EXPERTS, 2, tp=2, sp=True), HALF),
    "tp2-beside-dp2": (*cell(DENSE, 4, tp=2, sp=True), QUARTER),
    "cp2": (*cell(DENSE, 2, cp=2), HALF),
    "cp2-beside-tp2": (*cell(DENSE, 4, cp=2, tp=2, sp=True), QUARTER),
    "cp2-hybrid": (*cell(HYBRID_EXPERTS, 2, cp=2), HALF),
    "ep2": (*cell(ROUTED, 2, layout="own-axis", ep=2), HALF),
    "borrowed-ep2": (*cell(GROUPED_EXPERTS, 2, ep=2), HALF),
    "borrowed-ep4-fsdp": (*cell(GROUPED_EXPERTS, 4, ep=4, fsdp=True), QUARTER),
    "pp2": (*cell(HALVES, 2, pp=2, microbatches=4), HALF),
    "interleaved": (*cell(QUARTERS, 2, pp=2, microbatches=4, interleaved=True), HALF),
    "pp2-beside-dp2": (*cell(HALVES, 4, pp=2, microbatches=2), QUARTER),
}


@contract("PAR-16", asks=("built", "train"), cases=SHARED, tier="dist", source="F15; GATE-21")
def every_rank_computes_its_share(
    stack: Training, recipe: Recipe, execution: Execution, world: int, share: float
) -> None:
    """Under every parallel axis a rank computes its share of a step: of two ranks none computes more than 70 % of what
    one rank by itself does, of four none more than 45 %, and each computes something.

    The products of matrices are counted as each rank runs them. A context-parallel group that is never entered gives
    every rank whole rows, and all numbers are right. So does a sampler without ranks, and a plan of tensor parallelism
    whose names match no module.
    """
    asked = session(stack, recipe, execution, 1)
    with instruments.work.counted() as alone:
        stack.train(replace(asked, execution=Execution(precision=execution.precision, layout=asked.execution.layout)))
    with instruments.work.counted() as spread:
        stack.train(asked)
    if not alone.operations:
        raise NotOffered("its steps are not computed eagerly in this process, where products are counted", "adapter")
    parts = [each / alone.operations for each in gathered(spread.operations)]
    for rank, part in enumerate(parts):
        words = f"rank {rank} of {world} computes {part:.0%} of what one rank by itself does"
        assert part <= share, f"{words}, expected {share:.0%} at most (in all {sum(parts):.0%})"
        assert part > 0.05, f"{words}, expected a share"

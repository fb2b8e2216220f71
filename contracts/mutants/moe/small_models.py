"""Mutants of `checks.moe.small_models`."""

from __future__ import annotations

from contracts.contract import mutant
from contracts.mutants.moe import expert_parallel


@mutant(of="MOE-06e", case="dp2", says="router.bias differs")
class MovesATransformersBiasesByOneRank(expert_parallel.MovesBiasesByTheCountsOfOneRank):
    """Each rank moves its biases by its own tokens."""


@mutant(of="MOE-06e", case="ep2", says="assignments, expected")
class CountsATransformersSharers(expert_parallel.CountsTokensOnceForEachSharer):
    """Over-correction: ranks that routed the same tokens are all counted."""

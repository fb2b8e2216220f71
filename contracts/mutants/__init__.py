"""The counterexamples, under the names of the checks they must fail."""

from contracts.mutants import (
    environment,
    expert_lane,
    gate,
    group_calls,
    groups,
    hybrid,
    launch,
    names,
    pattern,
    recipe,
    reductions,
    scale,
    stages,
    topology,
)

__all__ = [
    "environment", "expert_lane", "gate", "group_calls", "groups", "hybrid", "launch", "names", "pattern", "recipe",
    "reductions", "scale", "stages", "topology",
]  # fmt: skip

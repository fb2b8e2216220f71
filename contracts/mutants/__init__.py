"""The counterexamples, under the names of the checks they must fail."""

from contracts.mutants import (
    allocator,
    arguments,
    environment,
    expert_lane,
    features,
    gate,
    group_calls,
    groups,
    hybrid,
    inherited,
    install_plan,
    installation,
    lanes,
    launch,
    manifest,
    names,
    overrides,
    pattern,
    recipe,
    reductions,
    scale,
    stages,
    topology,
    triage,
)

__all__ = [
    "allocator", "arguments", "environment", "expert_lane", "features", "gate", "group_calls", "groups", "hybrid",
    "inherited", "install_plan", "installation", "lanes", "launch", "manifest", "names", "overrides", "pattern",
    "recipe", "reductions", "scale", "stages", "topology", "triage",
]  # fmt: skip

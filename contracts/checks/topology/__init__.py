"""TOPO: sizes of the mesh, its groups, who reduces over whom."""

from contracts.checks.topology import (  # isort: skip
    mesh_sizes,  # sizes of the mesh
    group_members,  # who is in which group
    group_creation,  # in which order groups are made
    expert_parallel,  # when EP is active, and what follows
    running_groups,  # the groups of a running world
    gradient_reductions,  # over whom a gradient is averaged
    large_worlds,  # all of the mesh at 65 536 ranks
    pipeline_groups,  # the process groups of a pipeline: none is made twice for the same ranks
    refused_batches,  # batches that do not divide over the ranks: refused by every rank before anything is sent
    reduction_groups,  # over which ranks a step reduces and gathers
    refused_runs,  # what a refused run leaves behind
)

__all__ = [
    "expert_parallel",
    "gradient_reductions",
    "group_creation",
    "group_members",
    "large_worlds",
    "mesh_sizes",
    "pipeline_groups",
    "reduction_groups",
    "refused_batches",
    "refused_runs",
    "running_groups",
]

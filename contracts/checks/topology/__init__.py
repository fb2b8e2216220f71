"""TOPO: sizes of the mesh, its process groups, and the ranks of each gradient reduction."""

from contracts.checks.topology import (  # isort: skip
    mesh_sizes,  # sizes of the mesh
    group_members,  # the members of each group
    group_creation,  # the calls that create groups, and their order
    expert_parallel,  # when EP is active, and what follows from it
    running_groups,  # the process groups of a running job
    gradient_reductions,  # over which ranks a gradient is averaged
    large_worlds,  # the mesh at up to 65 536 ranks
    pipeline_groups,  # the process groups of a pipeline: none is made twice for the same ranks
    refused_batches,  # batches that do not divide over the ranks: refused by every rank before anything is sent
    reduction_groups,  # over which ranks a running step reduces and gathers
    refused_runs,  # process groups that a refused run leaves behind
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

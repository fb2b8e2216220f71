"""Mutants of TOPO, under the file names of `contracts/checks/topology`.

`contracts.mutants.tensors` imports those that are torch modules.
"""

from contracts.mutants.topology import (  # isort: skip
    mesh_sizes,
    group_members,
    group_creation,
    expert_parallel,
    running_groups,
    gradient_reductions,
    large_worlds,
)

__all__ = [
    "expert_parallel",
    "gradient_reductions",
    "group_creation",
    "group_members",
    "large_worlds",
    "mesh_sizes",
    "running_groups",
]

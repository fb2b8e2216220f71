"""Mutants of ENV, under the file names of `contracts/checks/environment`.

`contracts.mutants.tensors` reads those that need torch.
"""

from contracts.mutants.environment import (  # isort: skip
    launch_variables,
    inherited_variables,
    visible_devices,
    starts,
)

__all__ = [
    "inherited_variables",
    "launch_variables",
    "starts",
    "visible_devices",
]

"""Mutants of ENV, under the file names of `contracts/checks/environment`.

Those that are torch modules are read by `contracts.mutants.tensors`.
"""

from contracts.mutants.environment import (  # isort: skip
    launch_variables,
    inherited_variables,
    visible_devices,
)

__all__ = [
    "inherited_variables",
    "launch_variables",
    "visible_devices",
]

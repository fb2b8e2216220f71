"""Mutants of INST, under the file names of `contracts/checks/install`."""

from contracts.mutants.install import (  # isort: skip
    stack_table,
    install_plan,
)

__all__ = [
    "install_plan",
    "stack_table",
]

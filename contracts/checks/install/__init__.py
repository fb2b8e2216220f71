"""INST: what is installed, against what should be."""

from contracts.checks.install import (  # isort: skip
    stack_table,  # what is installed, against what should be
    install_plan,  # how it gets there
)

__all__ = [
    "install_plan",
    "stack_table",
]

"""INST: what is installed, compared with the stack's table, and install plans."""

from contracts.checks.install import (  # isort: skip
    stack_table,  # what is installed, compared with the stack's table
    install_plan,  # the plan that installs it
)

__all__ = [
    "install_plan",
    "stack_table",
]

"""Mutants of CMP, under the file names of `contracts/checks/comparison`."""

from contracts.mutants.comparison import (  # isort: skip
    run_comparison,
)

__all__ = [
    "run_comparison",
]

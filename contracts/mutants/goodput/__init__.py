"""Mutants of GOOD, under the file names of `contracts/checks/goodput`."""

from contracts.mutants.goodput import (  # isort: skip
    wall_clock,
)

__all__ = [
    "wall_clock",
]

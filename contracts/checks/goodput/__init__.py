"""GOOD: the wall clock in parts."""

from contracts.checks.goodput import (  # isort: skip
    wall_clock,  # the wall clock in parts
)

__all__ = [
    "wall_clock",
]

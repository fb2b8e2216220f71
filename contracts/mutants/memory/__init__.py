"""Counterexamples of MEM, under the file names of `contracts/checks/memory`.

Those that are torch modules are read by `contracts.mutants.tensors`.
"""

from contracts.mutants.memory import (  # isort: skip
    allocator,
    model_state,
    budget,
)

__all__ = [
    "allocator",
    "budget",
    "model_state",
]

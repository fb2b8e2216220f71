"""Mutants of MEM, under the file names of `contracts/checks/memory`.

`contracts.mutants.tensors` reads those that are torch modules.
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

"""Mutants of REC, under the file names of `contracts/checks/recipe`.

Those that are torch modules are read by `contracts.mutants.tensors`.
"""

from contracts.mutants.recipe import (  # isort: skip
    consistency,
    features,
)

__all__ = [
    "consistency",
    "features",
]

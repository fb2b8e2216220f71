"""Mutants of REC, under the file names of `contracts/checks/recipe`.

`contracts.mutants.tensors` reads those that need torch.
"""

from contracts.mutants.recipe import (  # isort: skip
    consistency,
    features,
)

__all__ = [
    "consistency",
    "features",
]

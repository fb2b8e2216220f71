"""Mutants of KRN, under the file names of `contracts/checks/kernels`.

`contracts.mutants.tensors` reads those that need torch.
"""

from contracts.mutants.kernels import (  # isort: skip
    catalogue,
)

__all__ = [
    "catalogue",
]

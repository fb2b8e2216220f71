"""Mutants of KRN, under the file names of `contracts/checks/kernels`.

Those that are torch modules are read by `contracts.mutants.tensors`.
"""

from contracts.mutants.kernels import (  # isort: skip
    catalogue,
)

__all__ = [
    "catalogue",
]

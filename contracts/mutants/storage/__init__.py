"""Mutants of STOR, under the file names of `contracts/checks/storage`.

`contracts.mutants.tensors` imports those that are torch modules.
"""

from contracts.mutants.storage import (  # isort: skip
    locations,
)

__all__ = [
    "locations",
]

"""Counterexamples of STOR, under the file names of `contracts/checks/storage`.

Those that are torch modules are read by `contracts.mutants.tensors`.
"""

from contracts.mutants.storage import (  # isort: skip
    locations,
)

__all__ = [
    "locations",
]

"""STOR: where state lies."""

from contracts.checks.storage import (  # isort: skip
    locations,  # where state lies
    compiler_caches,  # what a compiler leaves on a disk, and where
)

__all__ = [
    "compiler_caches",
    "locations",
]

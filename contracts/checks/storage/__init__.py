"""STOR: where checkpoints, caches, receipts and data lie."""

from contracts.checks.storage import (  # isort: skip
    locations,  # checkpoints, scratch, receipts, the data root, and each run's caches
    compiler_caches,  # files that a compiled step leaves on disk
)

__all__ = [
    "compiler_caches",
    "locations",
]

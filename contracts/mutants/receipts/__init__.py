"""Mutants of RCPT, under the file names of `contracts/checks/receipts`."""

from contracts.mutants.receipts import (  # isort: skip
    receipt,
    multi_rank_receipts,
    redaction,
    metrics,
)

__all__ = [
    "metrics",
    "multi_rank_receipts",
    "receipt",
    "redaction",
]

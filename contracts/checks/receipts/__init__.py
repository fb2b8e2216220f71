"""RCPT: what a run leaves behind, however it ended."""

from contracts.checks.receipts import (  # isort: skip
    receipt,  # what a run leaves behind, whole, however it ended
    multi_rank_receipts,  # the same of a run that several ranks made
    redaction,  # what must not stand in it
    metrics,  # the figures of a run, and what they need beside them
)

__all__ = [
    "metrics",
    "multi_rank_receipts",
    "receipt",
    "redaction",
]

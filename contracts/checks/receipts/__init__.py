"""RCPT: what a run leaves behind, however it ended."""

from contracts.checks.receipts import (  # isort: skip
    receipt,  # the receipt of a run, complete however the run ended
    multi_rank_receipts,  # receipts of a run on several ranks
    redaction,  # what a receipt must not contain
    metrics,  # the figures of a run, and the evidence that they need
)

__all__ = [
    "metrics",
    "multi_rank_receipts",
    "receipt",
    "redaction",
]

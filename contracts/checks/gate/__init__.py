"""GATE: the suite itself."""

from contracts.checks.gate import (  # isort: skip
    verdicts,  # the suite itself
    fitness,  # which of its contracts may judge
    plans,  # what a profile demands
    reports,  # what it says of its verdict
    tolerances,  # what it calls a difference
    multi_rank,  # the suite on several ranks
)

__all__ = [
    "fitness",
    "multi_rank",
    "plans",
    "reports",
    "tolerances",
    "verdicts",
]

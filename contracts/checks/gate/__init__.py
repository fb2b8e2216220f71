"""GATE: the suite itself."""

from contracts.checks.gate import (  # isort: skip
    verdicts,  # the suite itself
    fitness,  # which contracts are fit to judge
    plans,  # what a profile plans
    reports,  # reports of the verdict
    formats,  # their formats, whatever a stack says
    tolerances,  # what counts as a difference
    multi_rank,  # the suite on several ranks
)

__all__ = [
    "fitness",
    "formats",
    "multi_rank",
    "plans",
    "reports",
    "tolerances",
    "verdicts",
]

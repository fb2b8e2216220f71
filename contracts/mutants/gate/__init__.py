"""Mutants of GATE, under the file names of `contracts/checks/gate`."""

from contracts.mutants.gate import (  # isort: skip
    verdicts,
    fitness,
    plans,
    reports,
    tolerances,
    multi_rank,
)

__all__ = [
    "fitness",
    "multi_rank",
    "plans",
    "reports",
    "tolerances",
    "verdicts",
]

"""Mutants of GATE, under the file names of `contracts/checks/gate`."""

from contracts.mutants.gate import (  # isort: skip
    verdicts,
    fitness,
    plans,
    reports,
    formats,
    tolerances,
    multi_rank,
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

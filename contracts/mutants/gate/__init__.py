"""Mutants of GATE, under the file names of `contracts/checks/gate`."""

from contracts.mutants.gate import (  # isort: skip
    verdicts,
    deviations,
    baselines,
    fitness,
    plans,
    abilities,
    reports,
    formats,
    tolerances,
    multi_rank,
)

__all__ = [
    "abilities",
    "baselines",
    "deviations",
    "fitness",
    "formats",
    "multi_rank",
    "plans",
    "reports",
    "tolerances",
    "verdicts",
]

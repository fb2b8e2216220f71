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
    stops,
    multi_rank,
    in_flight,
    leaving,
)

__all__ = [
    "abilities",
    "baselines",
    "deviations",
    "fitness",
    "formats",
    "in_flight",
    "leaving",
    "multi_rank",
    "plans",
    "reports",
    "stops",
    "tolerances",
    "verdicts",
]

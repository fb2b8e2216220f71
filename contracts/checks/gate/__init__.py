"""GATE: the suite itself."""

from contracts.checks.gate import (  # isort: skip
    verdicts,  # the suite itself
    deviations,  # what a deviation forgives
    baselines,  # a run against an earlier one
    fitness,  # which contracts are fit to judge
    plans,  # what a profile plans
    abilities,  # what a stack declares that it can build
    reports,  # reports of the verdict
    formats,  # their formats, whatever a stack says
    tolerances,  # what counts as a difference
    stops,  # a run that is stopped from outside
    multi_rank,  # the suite on several ranks
    in_flight,  # what a test leaves to the next
    leaving,  # how ranks end
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

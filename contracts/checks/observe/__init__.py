"""OBS: what every healthy training run keeps, judged from one trace, or from two that must agree."""

from contracts.checks.observe import (  # isort: skip
    coverage,  # whether a run was observed at all
    replicas,  # what ranks have in common, and what they must not
    parameters,  # which optimizer moves what, ties, finite values
    experts,  # what was routed and counted
    steps,  # clipping, microbatches, rates, evaluation
    pairs,  # two runs that must do the same
)

__all__ = [
    "coverage",
    "experts",
    "pairs",
    "parameters",
    "replicas",
    "steps",
]

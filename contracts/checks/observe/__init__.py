"""OBS: what every healthy training run keeps, judged from one trace."""

from contracts.checks.observe import (  # isort: skip
    coverage,  # whether a run was observed at all
    replicas,  # what ranks have in common, and what they must not
    parameters,  # which optimizer moves what, ties, finite values
    steps,  # clipping, microbatches, evaluation
)

__all__ = [
    "coverage",
    "parameters",
    "replicas",
    "steps",
]

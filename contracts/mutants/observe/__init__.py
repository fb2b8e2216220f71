"""Training scripts that break what every healthy run keeps: the reference's small script with a few words changed."""

from contracts.mutants.observe import (  # isort: skip
    coverage,
    replicas,
    parameters,
    experts,
    steps,
    pairs,
)

__all__ = [
    "coverage",
    "experts",
    "pairs",
    "parameters",
    "replicas",
    "steps",
]

"""OPT: who moves which parameter how; rates, clipping, moments."""

from contracts.checks.optimizer import (  # isort: skip
    parameter_groups,  # who moves which parameter how
    updates,  # what a step makes of weights and moments
    schedule,  # rates and clipping
    transformers,  # the optimizer of a transformer with experts, on several ranks and on one
    sharded_optimizer,  # what several ranks begin with, and make of a step
)

__all__ = [
    "parameter_groups",
    "schedule",
    "sharded_optimizer",
    "transformers",
    "updates",
]

"""OPT: parameter groups, weight decay, schedule, clipping, updates."""

from contracts.checks.optimizer import (  # isort: skip
    parameter_groups,  # which rule moves which parameter
    updates,  # weights and moments after a step
    schedule,  # rates and clipping
    validation,  # a loss over other batches, and that nothing else comes of it
    transformers,  # the optimizer of a transformer with experts, on several ranks and on one
    sharded_optimizer,  # a step of the optimizer on several ranks
)

__all__ = [
    "parameter_groups",
    "schedule",
    "sharded_optimizer",
    "transformers",
    "updates",
    "validation",
]

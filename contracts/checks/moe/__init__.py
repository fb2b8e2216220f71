"""MOE: routing, gates, dispatch, capacity, auxiliary losses, expert bias."""

from contracts.checks.moe import (  # isort: skip
    routing,  # which experts a token goes to
    gates,  # what an expert's output is multiplied by
    dispatch,  # dispatch and combine
    experts,  # what an expert computes, and the shared one
    capacity,  # capacity: which assignments are dropped
    balance_losses,  # auxiliary losses that spread tokens over experts
    padding,  # positions without a token, of which a router is told
    balance_in_training,  # what a router learns of them in a step, under every layout
    selection_bias,  # balance without an auxiliary loss
    accumulated_bias,  # the selection bias under gradient accumulation
    expert_parallel,  # experts on several ranks
    context_parallel_balance,  # expert balance under context parallel
    transformers,  # the router's bias of a transformer with experts, on several ranks and on one
)

__all__ = [
    "accumulated_bias",
    "balance_in_training",
    "balance_losses",
    "capacity",
    "context_parallel_balance",
    "dispatch",
    "expert_parallel",
    "experts",
    "gates",
    "padding",
    "routing",
    "selection_bias",
    "transformers",
]

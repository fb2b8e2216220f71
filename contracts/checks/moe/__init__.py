"""MOE: tokens → experts and back, gates, balance, capacity."""

from contracts.checks.moe import (  # isort: skip
    routing,  # tokens → experts and gates
    gates,  # what an expert's output is multiplied by
    dispatch,  # tokens to their experts and back
    experts,  # what an expert computes, and the shared one
    capacity,  # capacity: who finds no slot
    balance_losses,  # losses and biases that spread the tokens
    selection_bias,  # balance without a loss
    accumulated_bias,  # the selection bias under gradient accumulation: one move an optimizer step
    expert_parallel,  # experts on several ranks
    context_parallel_balance,  # balance of experts where the tokens of a row lie on several ranks
    transformers,  # the router's bias of a transformer with experts, on several ranks and on one
)

__all__ = [
    "accumulated_bias",
    "balance_losses",
    "capacity",
    "context_parallel_balance",
    "dispatch",
    "expert_parallel",
    "experts",
    "gates",
    "routing",
    "selection_bias",
    "transformers",
]

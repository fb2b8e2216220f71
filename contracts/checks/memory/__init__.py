"""MEM: bytes: of a model, of a step, of a card, of the allocator."""

from contracts.checks.memory import (  # isort: skip
    allocator,  # fragmentation, exhaustion, and what a flag did about them
    model_state,  # what a model holds on a rank
    budget,  # whether that fits a card, and what proves it
    parameter_bytes,  # the bytes of the parameters of a model as built, against the budget
    step_memory,  # bytes held on a device, against the budget
    sharded_state,  # what a rank of NAM56R holds, without a GPU
)

__all__ = [
    "allocator",
    "budget",
    "model_state",
    "parameter_bytes",
    "sharded_state",
    "step_memory",
]

"""MEM: bytes of a model, of a step, of a card, and of the allocator."""

from contracts.checks.memory import (  # isort: skip
    allocator,  # fragmentation, exhaustion, and whether a flag helped
    model_state,  # what a model holds on a rank
    budget,  # whether a plan fits a card, and what proves it
    parameter_bytes,  # the parameter bytes of a built model, against the budget
    step_memory,  # the bytes held on a device, against the budget
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

"""ENV: recipe → environment, and which of the shell's variables may reach the ranks."""

from contracts.checks.environment import (  # isort: skip
    launch_variables,  # recipe → environment
    inherited_variables,  # which of the shell's variables may reach the ranks
    visible_devices,  # CUDA_VISIBLE_DEVICES: what the ranks of a node see, and which device each uses
    allocator_settings,  # the allocator's settings: whether a launch's exports reach the allocator of a rank
    starts,  # how a training process starts, or ends without a step
)

__all__ = [
    "allocator_settings",
    "inherited_variables",
    "launch_variables",
    "starts",
    "visible_devices",
]

"""ENV: recipe → environment, and what of the shell may reach the ranks."""

from contracts.checks.environment import (  # isort: skip
    launch_variables,  # recipe → environment
    inherited_variables,  # what of the shell may reach the ranks
    visible_devices,  # CUDA_VISIBLE_DEVICES: what the ranks of a node are shown, and which device each takes
    allocator_settings,  # the allocator's settings: whether what a launch exports reaches the allocator of a rank
)

__all__ = [
    "allocator_settings",
    "inherited_variables",
    "launch_variables",
    "visible_devices",
]

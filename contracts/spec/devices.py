"""What is asked about a device: the memory that training takes on it, and the allocator behind it (MEM, ENV)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from contracts.spec.party import Party
from contracts.spec.recipe import Mode, Recipe


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Bytes of tensors on a device, from before the model was built.

    Args:
        held: after the step and before the next: weights, gradients, optimizer state. peak: at the most, within it.
        reserved: what the allocator has taken from the device; equal to `peak` where there is no such allocator.
    """

    step: int
    held: int
    peak: int
    reserved: int


@dataclass(frozen=True, kw_only=True)
class AllocatorSeen:
    """What an allocator did in a process of its own.

    Args:
        setting: PYTORCH_ALLOC_CONF as that process found it, empty when unset.
        segments: taken from the device. expandable: how many of them can grow.
    """

    device: str
    setting: str
    segments: int
    expandable: int


class Devices(Party, Protocol):
    """What a stack does to the memory of one device."""

    def step_memory(self, recipe: Recipe, mode: Mode, device: str, steps: int) -> tuple[StepMemory, ...]:
        """Steps of training on one device, in one process, on the stack's own data."""
        ...

    def allocator_seen(self, environment: Mapping[str, str], device: str) -> AllocatorSeen:
        """A rank's process, started with the environment of a launch, that takes memory from a device."""
        ...

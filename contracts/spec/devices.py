"""Questions about a device and a process on it: memory of training, its allocator, how a start ends (MEM, ENV)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from contracts.spec.party import Party
from contracts.spec.recipe import Mode, Recipe


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Bytes of tensors on a device that were allocated since before the model was built.

    Args:
        held: between this step and the next: weights, gradients, optimizer state. peak: the maximum within the step.
        reserved: bytes that the allocator has taken from the device; equal to `peak` where there is no such allocator.
    """

    step: int
    held: int
    peak: int
    reserved: int


@dataclass(frozen=True, kw_only=True)
class AllocatorSeen:
    """What an allocator did in a separate process.

    Args:
        setting: PYTORCH_ALLOC_CONF as that process found it, empty when unset.
        segments: number of segments taken from the device. expandable: how many of them can grow.
    """

    device: str
    setting: str
    segments: int
    expandable: int


@dataclass(frozen=True, kw_only=True)
class Started:
    """How a training process ended.

    Args:
        exit_code: what its shell sees.
        steps: optimizer steps that this process took.
        words: the end of what it printed.
    """

    exit_code: int
    steps: int
    words: str


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """Options of a training command beside its recipe.

    Args:
        save: folder of its checkpoints, whatever `recipe.checkpoint.save` says.
        resume: whether it continues after the latest checkpoint of the folder that it saves to, whatever
            `recipe.checkpoint.load` says. If that folder has none, it starts as without.
        keep, durable: as in `Session`.
    """

    save: str | None = None
    resume: bool = False
    keep: int | None = None
    durable: str | None = None


NO_OPTIONS = StartOptions()


class Devices(Party, Protocol):
    """The memory of one device, and a process that trains on it."""

    def step_memory(self, recipe: Recipe, mode: Mode, device: str, steps: int) -> tuple[StepMemory, ...]:
        """Train `steps` steps in one process on one device (`cpu`, `cuda`) and the stack's own data; memory by step."""
        ...

    def allocator_seen(self, environment: Mapping[str, str], device: str) -> AllocatorSeen:
        """Start a rank's process in a launch's environment, let it allocate on a device, and report its allocator."""
        ...

    def started(
        self, recipe: Recipe, environment: Mapping[str, str], steps: int, options: StartOptions = NO_OPTIONS
    ) -> Started:
        """Start the stack's own training command on a recipe, as one process, to stop after step `steps` of the run.

        The process has the variables of this one, less those that a launcher gives its ranks, and then `environment`.
        It saves and loads where `recipe.checkpoint` says, if `options` do not say otherwise.
        """
        ...

"""The allocator's settings: whether a launch's exports reach the allocator of a rank."""

from __future__ import annotations

from dataclasses import replace

from contracts.checks._support.step_memory import ONE_CARD, Stack
from contracts.contract import contract
from contracts.spec.launch import Lane
from contracts.spec.topology import Degrees

ALLOCATED = {"fsdp2": ("cuda",)}


@contract("ENV-03c", asks=("launch", "allocator_seen"), cases=ALLOCATED, source="playbook", tier="gpu")
def the_allocator_overlay_reaches_cuda(stack: Stack, device: str) -> None:
    """In the environment of a launch, every segment that a rank allocates from CUDA is expandable; without that
    environment none is.

    A misspelt variable, or one set too late, is silently ignored: the run prints the setting and uses another
    allocator.
    """
    lane = Lane(mode="author_dp", regime="fsdp2", gpus=1, degrees=Degrees())
    environment = stack.launch(replace(ONE_CARD, dtype="bf16"), lane).env
    seen = stack.allocator_seen(environment, device)
    assert seen.segments > 0, f"no memory was allocated on {seen.device}"
    assert seen.expandable == seen.segments, (
        f"{seen.expandable} of {seen.segments} segments are expandable under PYTORCH_ALLOC_CONF={seen.setting!r}"
    )
    plain = stack.allocator_seen({}, device)
    assert plain.expandable == 0, f"{plain.expandable} segments are expandable though nothing asks for it"

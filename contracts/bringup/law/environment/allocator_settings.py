"""The allocator's settings: whether a launch's exports reach the allocator of a rank."""

from dataclasses import replace
from typing import Protocol

from contracts.contract import contract
from contracts.law._support.recorded_runs import FACTS
from contracts.law._support.step_memory import ONE_CARD, Stack
from contracts.spec import Degrees, Devices, Lane
from contracts.spec.receipt import Evidence

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


class Recorded(Devices, Evidence, Protocol):
    """What the check on receipts asks of a stack."""


EXPANDABLE = "expandable_segments:True"
REACHED: dict[str, tuple[dict[str, str], dict[str, str], str]] = {  # set by the lane, exported, device
    "by-the-lane": ({"PYTORCH_ALLOC_CONF": EXPANDABLE}, {}, "cuda"),
    "by-the-alias": ({}, {"PYTORCH_CUDA_ALLOC_CONF": EXPANDABLE}, "cuda"),
    "by-nobody": ({}, {"NCCL_DEBUG": "WARN"}, "cuda"),
}


@contract("ENV-03a", asks=("receipt", "allocator_seen"), cases=REACHED, source="playbook", tier="gpu")
def the_receipt_has_the_setting_that_cuda_obeyed(
    stack: Recorded, lane: dict[str, str], exported: dict[str, str], device: str
) -> None:
    """A receipt says `expandable_segments:True` exactly if the allocator of a rank in that environment allocates
    expandable segments.

    Variables show what a launcher meant. CUDA reads one of two spellings, once, and a receipt with the other one sends
    a reader who looks for fragmentation the wrong way.
    """
    facts = replace(
        FACTS, launch=replace(FACTS.launch, env=lane, unset=()), lane=replace(FACTS.lane, inherited=exported)
    )
    kept = stack.receipt(facts).environment.allocator
    seen = stack.allocator_seen({**exported, **lane}, device)
    assert seen.segments > 0, f"no memory was allocated on {seen.device}"
    expected = seen.segments if kept is not None and EXPANDABLE in kept[1] else 0
    words = f"the receipt says {kept}, and {seen.expandable} of {seen.segments} segments are expandable"
    assert seen.expandable == expected, words

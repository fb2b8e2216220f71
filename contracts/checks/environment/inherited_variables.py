"""The environment a launch is started with: what it refuses to inherit, and what it lets through and records."""

from __future__ import annotations

import random
import string

from contracts.checks._support.launches import (
    FSDP2,
    FSDP2_AUTHOR,
    NAM56R,
    NATIVE,
    TWO_NODES,
    inheriting,
    reaching,
    refusal_of_launch,
)
from contracts.contract import contract
from contracts.spec.errors import Refused
from contracts.spec.launch import Lane, Launch
from contracts.spec.stack import Stack

ALLOCATOR = "expandable_segments:True"
OTHERWISE = {
    "alias-against-the-lane": inheriting(FSDP2, PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:512"),
    "alias-switches-it-off": inheriting(NATIVE, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:False"),
    "both-exported-and-different": inheriting(
        FSDP2_AUTHOR, PYTORCH_ALLOC_CONF=ALLOCATOR, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync"
    ),
}


@contract("ENV-03b", asks="launch", cases=OTHERWISE, source="playbook")
def an_allocator_alias_that_says_otherwise_is_refused(stack: Stack, lane: Lane) -> None:
    """An inherited PYTORCH_CUDA_ALLOC_CONF that differs from the lane's PYTORCH_ALLOC_CONF is refused, with its value.

    The two names configure one allocator; when they differ, which of them won is known only inside the process.
    """
    alias = lane.inherited["PYTORCH_CUDA_ALLOC_CONF"]
    refused = refusal_of_launch(stack, NAM56R, lane, f"PYTORCH_CUDA_ALLOC_CONF={alias}")
    assert "PYTORCH_CUDA_ALLOC_CONF" in str(refused), f"the refusal does not name PYTORCH_CUDA_ALLOC_CONF: {refused}"
    assert alias in str(refused), f"the refusal does not show {alias!r}: {refused}"


DIAGNOSES = {
    "automatic": (inheriting(TWO_NODES, NCCL_MNNVL_ENABLE="2"), "2"),
    "disabled": (inheriting(FSDP2, NCCL_MNNVL_ENABLE="0"), "0"),
}


@contract("ENV-05a", asks="launch", cases=DIAGNOSES, source="playbook")
def a_diagnosis_of_the_fabric_is_recorded(stack: Stack, lane: Lane, value: str) -> None:
    """NCCL_MNNVL_ENABLE 2 (automatic) or 0 (off), exported for a diagnosis, reaches the ranks and is recorded."""
    launch = stack.launch(NAM56R, lane)
    seen, recorded = reaching(launch, lane).get("NCCL_MNNVL_ENABLE"), launch.recorded.get("NCCL_MNNVL_ENABLE")
    assert seen == value, f"NCCL_MNNVL_ENABLE reaches the ranks as {seen!r}, exported as {value!r}"
    assert recorded == value, f"NCCL_MNNVL_ENABLE is recorded as {recorded!r}, exported as {value!r}"


FORCED = {"two-nodes": TWO_NODES, "fsdp2-one-node": FSDP2}


@contract("ENV-05b", asks="launch", cases=FORCED, source="playbook")
def a_forced_fabric_is_refused(stack: Stack, lane: Lane) -> None:
    """An inherited NCCL_MNNVL_ENABLE=1 is refused by name.

    1 allows NCCL's initialisation to fail where the fabric is absent: a probe that looks for failure, not a baseline.
    """
    refused = refusal_of_launch(stack, NAM56R, inheriting(lane, NCCL_MNNVL_ENABLE="1"), "NCCL_MNNVL_ENABLE=1")
    assert "NCCL_MNNVL_ENABLE" in str(refused), f"the refusal does not name NCCL_MNNVL_ENABLE: {refused}"


MASKS = {
    "half-of-the-node": "0,1,2,3",
    "one-gpu": "5",
    "none": "",
    "cut-off-behind-a-hole": "0,1,2,-1,4,5,6,7",  # CUDA ignores everything behind the -1
    "reversed": "7,6,5,4,3,2,1,0",
}


@contract("ENV-06b", asks="launch", cases=MASKS, source="playbook")
def an_inherited_mask_does_not_survive(stack: Stack, visible: str) -> None:
    """An inherited CUDA_VISIBLE_DEVICES that hides or renumbers GPUs of an eight-GPU lane is refused, or removed."""
    lane = inheriting(FSDP2, CUDA_VISIBLE_DEVICES=visible)
    launch = _launched_or_refused_for(stack, lane, ("CUDA_VISIBLE_DEVICES",))
    if launch is None:
        return
    value = reaching(launch, lane).get("CUDA_VISIBLE_DEVICES")
    assert value is None, f"CUDA_VISIBLE_DEVICES reaches the ranks of eight GPUs as {value!r}"


@contract("ENV-07", asks="launch", cases={"drawn-1": 1, "drawn-2": 2, "drawn-3": 3}, source="playbook")
def the_overlay_is_complete(stack: Stack, seed: int) -> None:
    """Every inherited NCCL_, TORCH_, CUDA_ or PYTORCH_ variable is set, unset or recorded with its value, or the
    launch is refused for it; no other variable is recorded.

    Settings in shell history change the runtime and drift without a word, so comparisons break. A receipt that
    stored the whole environment instead would publish the tokens in it.
    """
    draw = random.Random(seed)

    def name(prefix: str) -> str:
        return prefix + "".join(draw.choices(string.ascii_uppercase, k=draw.randint(4, 12)))

    runtime = {
        name(p): f"value-{draw.random():.9f}" for p in ("NCCL_", "TORCH_", "CUDA_", "PYTORCH_") for _ in range(9)
    }
    runtime |= {
        "NCCL_DEBUG": "INFO",
        "TORCH_LOGS": "+dynamo,graph_breaks",
        "CUDA_LAUNCH_BLOCKING": "",
        "NCCL_ALGO": "Ring",
    }
    others = {
        name(p): f"secret-{draw.random():.9f}"
        for p in ("", "MY_NCCL_", "TORCHX", "HF_TOKEN_", "nccl_")
        for _ in range(4)
    }
    lane = inheriting(TWO_NODES, **others, **runtime)
    launch = _launched_or_refused_for(stack, lane, tuple(runtime))
    if launch is None:
        return
    for variable, value in runtime.items():
        if variable not in launch.env and variable not in launch.unset:
            recorded = launch.recorded.get(variable)
            assert recorded == value, f"{variable}={value!r} reaches the ranks and is recorded as {recorded!r}"
    told = sorted(set(launch.recorded) & set(others))
    assert not told, f"{told[0]} is recorded with its value, and is no runtime variable"


def _launched_or_refused_for(stack: Stack, lane: Lane, names: tuple[str, ...]) -> Launch | None:
    """The launch, or None when it was refused for one of the variables."""
    try:
        return stack.launch(NAM56R, lane)
    except Refused as refused:
        text = str(refused)
    assert any(name in text for name in names), f"the refusal names none of {', '.join(names)}: {text}"
    return None

"""The environment a launch is started with: what it refuses to inherit, what it passes on and records, and which
devices the ranks of a node see."""

import random
import string

from contracts.contract import contract
from contracts.instruments.ranks import SHARE, backend_of, gathered, here
from contracts.law._support.launches import (
    FSDP2,
    FSDP2_AUTHOR,
    NAM56R,
    NATIVE,
    TWO_NODES,
    rank_environment,
    refusal_of_launch,
    with_inherited,
)
from contracts.spec import Lane, Launch, Refused, Stack, World

ALLOCATOR = "expandable_segments:True"
OTHERWISE = {
    "alias-against-the-lane": with_inherited(FSDP2, PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:512"),
    "alias-switches-it-off": with_inherited(NATIVE, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:False"),
    "both-exported-and-different": with_inherited(
        FSDP2_AUTHOR, PYTORCH_ALLOC_CONF=ALLOCATOR, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync"
    ),
}


@contract("ENV-03b", asks="launch", cases=OTHERWISE, source="playbook")
def an_allocator_alias_that_says_otherwise_is_refused(stack: Stack, lane: Lane) -> None:
    """A launch is refused when the shell exports a PYTORCH_CUDA_ALLOC_CONF that differs from the lane's
    PYTORCH_ALLOC_CONF; the refusal shows the value.

    Both names configure one allocator. When they differ, only the process knows which one won.
    """
    alias = lane.inherited["PYTORCH_CUDA_ALLOC_CONF"]
    refused = refusal_of_launch(stack, NAM56R, lane, f"PYTORCH_CUDA_ALLOC_CONF={alias}")
    assert "PYTORCH_CUDA_ALLOC_CONF" in str(refused), f"the refusal does not name PYTORCH_CUDA_ALLOC_CONF: {refused}"
    assert alias in str(refused), f"the refusal does not show {alias!r}: {refused}"


DIAGNOSES = {
    "automatic": (with_inherited(TWO_NODES, NCCL_MNNVL_ENABLE="2"), "2"),
    "disabled": (with_inherited(FSDP2, NCCL_MNNVL_ENABLE="0"), "0"),
}


@contract("ENV-05a", asks="launch", cases=DIAGNOSES, source="playbook")
def a_diagnosis_of_the_fabric_is_recorded(stack: Stack, lane: Lane, value: str) -> None:
    """An exported NCCL_MNNVL_ENABLE of 2 (automatic) or 0 (off), as set for a diagnosis, reaches the ranks and is
    recorded.
    """
    launch = stack.launch(NAM56R, lane)
    seen, recorded = rank_environment(launch, lane).get("NCCL_MNNVL_ENABLE"), launch.recorded.get("NCCL_MNNVL_ENABLE")
    assert seen == value, f"NCCL_MNNVL_ENABLE reaches the ranks as {seen!r}, exported as {value!r}"
    assert recorded == value, f"NCCL_MNNVL_ENABLE is recorded as {recorded!r}, exported as {value!r}"


FORCED = {"two-nodes": TWO_NODES, "fsdp2-one-node": FSDP2}


@contract("ENV-05b", asks="launch", cases=FORCED, source="playbook")
def a_forced_fabric_is_refused(stack: Stack, lane: Lane) -> None:
    """A launch is refused when the shell exports NCCL_MNNVL_ENABLE=1; the refusal names the variable.

    1 makes NCCL's initialisation fail where the fabric is absent. That is a probe for failure, not a baseline.
    """
    refused = refusal_of_launch(stack, NAM56R, with_inherited(lane, NCCL_MNNVL_ENABLE="1"), "NCCL_MNNVL_ENABLE=1")
    assert "NCCL_MNNVL_ENABLE" in str(refused), f"the refusal does not name NCCL_MNNVL_ENABLE: {refused}"


MASKS = {
    "half-of-the-node": "0,1,2,3",
    "one-gpu": "5",
    "none": "",
    "cut-off-behind-a-hole": "0,1,2,-1,4,5,6,7",  # CUDA ignores everything behind the -1
    "reversed": "7,6,5,4,3,2,1,0",
}


WHOLE = ",".join(map(str, range(8)))
HARMLESS = {"one-node": with_inherited(FSDP2, CUDA_VISIBLE_DEVICES=WHOLE),
            "two-nodes": with_inherited(TWO_NODES, CUDA_VISIBLE_DEVICES=WHOLE)}  # fmt: skip


@contract("ENV-06c", asks="launch", cases=HARMLESS, source="playbook")
def a_mask_that_hides_nothing_is_no_reason_to_refuse(stack: Stack, lane: Lane) -> None:
    """A launch is not refused when the shell exports a CUDA_VISIBLE_DEVICES that lists all GPUs of a node in order,
    however many nodes there are.

    The variable is about one node. Whoever compares it with the GPUs of the run refuses every launch of several nodes.
    """
    value = rank_environment(stack.launch(NAM56R, lane), lane).get("CUDA_VISIBLE_DEVICES", WHOLE)
    assert value == WHOLE, f"CUDA_VISIBLE_DEVICES reaches the ranks as {value!r}, exported as {WHOLE!r}"


@contract("ENV-06b", asks="launch", cases=MASKS, source="playbook")
def an_inherited_mask_does_not_survive(stack: Stack, visible: str) -> None:
    """An exported CUDA_VISIBLE_DEVICES that hides or renumbers GPUs of an eight-GPU lane is refused or removed."""
    lane = with_inherited(FSDP2, CUDA_VISIBLE_DEVICES=visible)
    launch = _launched_or_refused_for(stack, lane, ("CUDA_VISIBLE_DEVICES",))
    if launch is None:
        return
    value = rank_environment(launch, lane).get("CUDA_VISIBLE_DEVICES")
    assert value is None, f"CUDA_VISIBLE_DEVICES reaches the ranks of eight GPUs as {value!r}"


@contract("ENV-07", asks="launch", cases={"drawn-1": 1, "drawn-2": 2, "drawn-3": 3}, source="playbook")
def the_overlay_is_complete(stack: Stack, seed: int) -> None:
    """A launch sets, unsets or records every inherited NCCL_, TORCH_, CUDA_ or PYTORCH_ variable, or is refused because
    of one. It records no other variable.

    Settings in shell history change the runtime and drift silently, so comparisons break. A receipt that stored the
    whole environment would publish the tokens in it.
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
    lane = with_inherited(TWO_NODES, **others, **runtime)
    launch = _launched_or_refused_for(stack, lane, tuple(runtime))
    if launch is None:
        return
    for variable, value in runtime.items():
        if variable not in launch.env and variable not in launch.unset:
            recorded = launch.recorded.get(variable)
            assert recorded == value, f"{variable}={value!r} reaches the ranks and is recorded as {recorded!r}"
    told = sorted(set(launch.recorded) & set(others))
    assert not told, f"{told[0]} is recorded with its value, but is not a runtime variable"


def _launched_or_refused_for(stack: Stack, lane: Lane, names: tuple[str, ...]) -> Launch | None:
    """The launch, or None when it was refused for one of the variables."""
    try:
        return stack.launch(NAM56R, lane)
    except Refused as refused:
        text = str(refused)
    assert any(name in text for name in names), f"the refusal names none of {', '.join(names)}: {text}"
    return None


WORLDS = {"on-2": (2,), "on-3": (3,), "on-4": (4,), "on-8": (8,)}


@contract("ENV-06a", asks="devices", cases=WORLDS, source="playbook", tier="dist")
def the_ranks_of_a_node_see_one_device_list(stack: World, world: int) -> None:
    """All ranks of a node have the same CUDA_VISIBLE_DEVICES and see the same devices. Each rank uses the device whose
    index is its local rank.

    A launcher that gives each process its own GPU as "cuda:0" hides the node's links from NCCL.
    """
    mine = stack.devices()
    said = gathered([here().node, here().local_rank, mine.visible, list(mine.names), mine.uses])
    assert len(said) == world, f"{len(said)} ranks answered, the world has {world}"
    of_node = [(rank, *rest) for rank, (node, *rest) in enumerate(said) if node == here().node]
    first, _, visible, names, _ = of_node[0]
    for rank, local_rank, its_visible, its_names, uses in of_node:
        wrong = f"rank {rank} has CUDA_VISIBLE_DEVICES={its_visible!r}, rank {first} of its node {visible!r}"
        assert its_visible == visible, wrong
        assert its_names == names, f"rank {rank} sees {its_names}, rank {first} of its node {names}"
        shared = bool(names) and backend_of("cuda") in SHARE  # ranks take turns on devices that they share
        own = local_rank % len(names) if shared else local_rank
        assert uses == own, f"rank {rank} uses device {uses}, its local rank is {local_rank}"
        assert not names or uses < len(names), f"rank {rank} uses device {uses} of {len(names)}"

"""The environment that a launch gives its ranks: what it sets and what it removes, by lane.

The checks judge what reaches the ranks: inherited variables, minus those unset, overridden by those set.
"""

from contracts.contract import contract
from contracts.law._support.launches import (
    AUTHOR,
    AUTHOR_CP2,
    AUTHOR_PP4,
    FSDP2,
    FSDP2_AUTHOR,
    FSDP2_PP2,
    FSDP2_PP4,
    FSDP2_TWO_NODES,
    NAM56R,
    NATIVE,
    NATIVE_PP2,
    TWO_NODES,
    rank_environment,
    with_inherited,
)
from contracts.spec import Lane, Stack

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
BATCHED_P2P = "NANOCHAT_FORCE_BATCHED_PP_INIT_P2P"
LANES = {
    "megatron-native": NATIVE,
    "megatron-author-pp4": AUTHOR_PP4,
    "megatron-two-nodes": TWO_NODES,
    "fsdp2-tp2-ep2": FSDP2,
    "fsdp2-author": FSDP2_AUTHOR,
    "fsdp2-compiled-two-nodes": FSDP2_TWO_NODES,
}
"""Every regime and mode, one node and two."""


def _forced(lane: Lane, **inherited: str) -> Lane:
    return Lane(mode=lane.mode, regime=lane.regime, degrees=lane.degrees, inherited=inherited,
                force_max_connections=True)  # fmt: skip


QUEUES = {  # lane → the value that its ranks must see; None is unset
    "fsdp2-tp2-ep2": (FSDP2, None),
    "fsdp2-pp2-tp2": (FSDP2_PP2, None),
    "fsdp2-inherits-1": (with_inherited(FSDP2, CUDA_DEVICE_MAX_CONNECTIONS="1"), None),
    "fsdp2-author-inherits-32": (with_inherited(FSDP2_AUTHOR, CUDA_DEVICE_MAX_CONNECTIONS="32"), None),
    "fsdp2-forced": (_forced(FSDP2), "8"),
    "fsdp2-forced-inherits-1": (_forced(FSDP2_AUTHOR, CUDA_DEVICE_MAX_CONNECTIONS="1"), "8"),
    "megatron-tp2": (NATIVE, "1"),
    "megatron-tp1-cp2": (AUTHOR_CP2, "1"),
    "megatron-tp2-inherits-8": (with_inherited(NATIVE_PP2, CUDA_DEVICE_MAX_CONNECTIONS="8"), "1"),
    "megatron-tp2-forced": (_forced(NATIVE), "1"),
}


@contract("ENV-01", asks="launch", cases=QUEUES, source="playbook; Megatron-LM's validation")
def hardware_queues_follow_the_lane(stack: Stack, lane: Lane, expected: str | None) -> None:
    """CUDA_DEVICE_MAX_CONNECTIONS is unset in FSDP2 lanes, 8 in FSDP2 lanes where the platform requires a value, and 1
    in Megatron lanes with TP or CP above 1, whatever the shell exported.

    Older recipes export 1 everywhere. In an FSDP2 lane that queues the all-gather after the compute it should overlap.
    Without it, Megatron's tensor-parallel overlap loses its order, and Megatron's validation refuses the launch.
    """
    value = rank_environment(stack.launch(NAM56R, lane), lane).get(CONNECTIONS)
    wanted = "expected it unset" if expected is None else f"expected {expected!r}"
    found = f"reaches the ranks as {value!r}" if value is not None else "is unset"
    assert value == expected, f"{CONNECTIONS} {found}, {wanted} ({lane.regime} {lane.mode})"


SHELLS = {"megatron-author-tp1": AUTHOR, "megatron-author-pp4": AUTHOR_PP4, "fsdp2-tp2-ep2": FSDP2}


@contract("ENV-01a", asks="launch", cases=SHELLS, source="playbook")
def hardware_queues_do_not_follow_the_shell(stack: Stack, lane: Lane) -> None:
    """CUDA_DEVICE_MAX_CONNECTIONS reaches the ranks with the same value whatever the shell exports.

    At TP 1 without FSDP no rule requires a value, so nothing fails when a forgotten export sets it. Two runs of one
    lane then overlap differently and are compared.
    """
    seen = {}
    for exported in (None, "1", "8", "32"):
        shell = lane if exported is None else with_inherited(lane, CUDA_DEVICE_MAX_CONNECTIONS=exported)
        seen[exported] = rank_environment(stack.launch(NAM56R, shell), shell).get(CONNECTIONS)
    assert len(set(seen.values())) == 1, f"{CONNECTIONS} depends on the shell: exported → seen is {seen}"


@contract("ENV-02", asks="launch", cases=LANES, source="playbook")
def communication_streams_have_priority(stack: Stack, lane: Lane) -> None:
    """TORCH_NCCL_HIGH_PRIORITY is 1 in every lane, also when the shell exports another value.

    It keeps compute and compile windows from starving the communication stream. Without it a healthy lane shows
    watchdog noise and jitter.
    """
    _reaches_as(stack, lane, "TORCH_NCCL_HIGH_PRIORITY", "1", exported="0")


ALLOCATOR = "expandable_segments:True"
ALIKE = {**LANES, "alias-says-the-same": with_inherited(FSDP2, PYTORCH_CUDA_ALLOC_CONF=ALLOCATOR)}


@contract("ENV-03", asks="launch", cases=ALIKE, source="playbook")
def the_allocator_may_expand_its_segments(stack: Stack, lane: Lane) -> None:
    """PYTORCH_ALLOC_CONF is expandable_segments:True in every lane, and PYTORCH_CUDA_ALLOC_CONF is absent or says the
    same.

    Routing and batch shapes change, so reserved memory drifts away from allocated memory, and a healthy run dies late.
    """
    _reaches_as(stack, lane, "PYTORCH_ALLOC_CONF", ALLOCATOR)
    alias = rank_environment(stack.launch(NAM56R, lane), lane).get("PYTORCH_CUDA_ALLOC_CONF", ALLOCATOR)
    assert alias == ALLOCATOR, f"PYTORCH_CUDA_ALLOC_CONF reaches the ranks as {alias!r}, the lane says {ALLOCATOR}"


@contract("ENV-04", asks="launch", cases=LANES, source="playbook")
def the_heartbeat_outlasts_the_compile_window(stack: Stack, lane: Lane) -> None:
    """TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC is 7200 in every lane, longer than a cold compile.

    With the default of 600 s the watchdog kills a lane that is still compiling its graphs, and the failure looks like a
    network failure.
    """
    _reaches_as(stack, lane, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "7200", exported="600")


@contract("ENV-05", asks="launch", cases=LANES, source="playbook")
def multi_node_nvlink_is_left_alone(stack: Stack, lane: Lane) -> None:
    """A launch does not set NCCL_MNNVL_ENABLE: NCCL detects the fabric itself."""
    value = rank_environment(stack.launch(NAM56R, lane), lane).get("NCCL_MNNVL_ENABLE")
    assert value is None, f"NCCL_MNNVL_ENABLE reaches the ranks as {value!r}, expected it absent"


IN_ORDER = with_inherited(NATIVE, CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,7")


@contract("ENV-06", asks="launch", cases={**LANES, "all-eight-in-order": IN_ORDER}, source="playbook")
def every_rank_sees_every_gpu(stack: Stack, lane: Lane) -> None:
    """A launch leaves CUDA_VISIBLE_DEVICES unchanged, so that every rank of a node sees the same devices.

    An actor launcher that gives each worker one GPU as "cuda:0" hides the node from NCCL. The run then has another
    topology than the preflight measured.
    """
    name = "CUDA_VISIBLE_DEVICES"
    value = rank_environment(stack.launch(NAM56R, lane), lane).get(name)
    inherited = lane.inherited.get(name)
    assert value in (inherited, None), f"{name} reaches the ranks as {value!r}, inherited was {inherited!r}"


GATES = {  # lane → pipeline stages
    "megatron-pp2-tp2": (NATIVE_PP2, 2),
    "megatron-pp4": (AUTHOR_PP4, 4),
    "megatron-pp1": (NATIVE, 1),
    "megatron-pp1-inherits-it": (with_inherited(AUTHOR, NANOCHAT_FORCE_BATCHED_PP_INIT_P2P="1"), 1),
    "fsdp2-pp2-tp2": (FSDP2_PP2, 2),
    "fsdp2-pp4-inherits-0": (with_inherited(FSDP2_PP4, NANOCHAT_FORCE_BATCHED_PP_INIT_P2P="0"), 4),
    "fsdp2-pp1": (FSDP2, 1),
    "fsdp2-pp1-inherits-it": (with_inherited(FSDP2, NANOCHAT_FORCE_BATCHED_PP_INIT_P2P="1"), 1),
}


@contract("ENV-08", asks="launch", cases=GATES, source="bringup")
def the_batched_p2p_gate_stands_in_pipeline_lanes(stack: Stack, lane: Lane, stages: int) -> None:
    """NANOCHAT_FORCE_BATCHED_PP_INIT_P2P is 1 when there is more than one pipeline stage, and unset otherwise.

    The 1F1B schedule turns uniform batches of sends and receives into raw isend and irecv calls, which break the eager
    handshake of neighbouring stages. The variable turns the override on. Without a pipeline it would patch a schedule
    that nobody runs.
    """
    expected = "1" if stages > 1 else None
    value = rank_environment(stack.launch(NAM56R, lane), lane).get(BATCHED_P2P)
    assert value == expected, f"{BATCHED_P2P} reaches the ranks as {value!r}, expected {expected!r} at pp {stages}"


def _reaches_as(stack: Stack, lane: Lane, name: str, expected: str, exported: str | None = None) -> None:
    """The variable has its value in a clean shell, and in one that exports another."""
    value = rank_environment(stack.launch(NAM56R, lane), lane).get(name)
    assert value == expected, f"{name} reaches the ranks as {value!r}, expected {expected!r}"
    if exported is not None:
        shell = with_inherited(lane, **{name: exported})
        value = rank_environment(stack.launch(NAM56R, shell), shell).get(name)
        assert value == expected, f"{name} reaches the ranks as {value!r} when {exported!r} is exported"

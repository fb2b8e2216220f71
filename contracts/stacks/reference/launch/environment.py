"""The environment of a launch: what the lane sets, what it removes, what it refuses to inherit."""

import json

from contracts.spec import Degrees, Lane, Recipe, Refusals
from contracts.spec import pattern as patterns

ALLOCATOR = "expandable_segments:True"


def overlay(recipe: Recipe, lane: Lane, degrees: Degrees, found: Refusals) -> tuple[dict[str, str], tuple[str, ...]]:
    """What the lane sets and what it removes. The value of CUDA_DEVICE_MAX_CONNECTIONS is a function of the lane:
    Megatron's overlap needs one queue under TP or CP, FSDP2's needs several."""
    _refuse_inherited(lane, found)
    env = {
        "TORCH_NCCL_HIGH_PRIORITY": "1",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "7200",
        "PYTORCH_ALLOC_CONF": ALLOCATOR,
    }
    if lane.regime == "megatron" and (degrees.tp > 1 or degrees.cp > 1):
        env["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    elif lane.force_max_connections:
        env["CUDA_DEVICE_MAX_CONNECTIONS"] = "8"
    if degrees.pp > 1:
        env["NANOCHAT_FORCE_BATCHED_PP_INIT_P2P"] = "1"
    beside = _beside(recipe, lane)
    if beside:
        env["RANKPROOF_AUTHOR_LAYERS"] = json.dumps(beside, separators=(",", ":"))
    owned = ("CUDA_DEVICE_MAX_CONNECTIONS", "NANOCHAT_FORCE_BATCHED_PP_INIT_P2P")
    return env, tuple(name for name in owned if name not in env)


def _refuse_inherited(lane: Lane, found: Refusals) -> None:
    inherited = lane.inherited
    alias = inherited.get("PYTORCH_CUDA_ALLOC_CONF")
    if alias not in (None, ALLOCATOR):
        problem = f"is an alias of PYTORCH_ALLOC_CONF, which this lane sets to {ALLOCATOR}"
        found.add("PYTORCH_CUDA_ALLOC_CONF", alias, problem, "unset it")
    fabric = inherited.get("NCCL_MNNVL_ENABLE")
    if fabric not in (None, "0", "2"):
        problem = "forces a path whose initialisation may fail" if fabric == "1" else "is no value of this variable"
        found.add("NCCL_MNNVL_ENABLE", fabric, problem, "unset it; 2 or 0 are for diagnosis")
    visible = inherited.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        _refuse_masking(visible, lane.gpus, found)


def _refuse_masking(visible: str, gpus: int, found: Refusals) -> None:
    """Every rank must see every GPU of the node, under its own number."""
    devices = [device.strip() for device in visible.split(",")]
    # CUDA ignores what stands behind the first entry that is no device, and shows none at all when one is repeated.
    end = next((i for i, device in enumerate(devices) if not device or device.startswith("-")), len(devices))
    seen = devices[:end] if len(set(devices[:end])) == end else []
    remedy = "unset it; ranks choose their device by LOCAL_RANK"
    problem = f"shows {len(seen)} devices to a lane of {gpus} GPUs a node"
    found.unless(len(seen) >= gpus, "CUDA_VISIBLE_DEVICES", visible, problem, remedy)
    numbers = [int(device) for device in seen if device.isdecimal()]
    problem = "renumbers the devices, and the topology that was measured is no longer the one that runs"
    found.unless(numbers == sorted(numbers), "CUDA_VISIBLE_DEVICES", visible, problem, remedy)


def _beside(recipe: Recipe, lane: Lane) -> dict[str, object]:
    """What Megatron's flags cannot say and the author's layer spec reads instead. Layer numbers are 1-based."""
    if lane.regime != "megatron" or lane.mode != "author_dp":
        return {}
    pattern = patterns.parse(recipe.pattern, recipe.depth)
    said: dict[str, object] = {}
    if recurrent := patterns.layers_of(pattern, "R").numbers:
        said["recurrent_layers"] = recurrent
    if sparse := patterns.placement(pattern, recipe.dsa.a_ranks if recipe.dsa else ()).sparse_layers.numbers:
        said["sparse_layers"] = sparse
    if recipe.mhc is not None:
        said["residual_streams"] = recipe.mhc.streams
    if recipe.parallel_ssm is not None:
        said["parallel_ssm"] = (recipe.parallel_ssm.attention_scale, recipe.parallel_ssm.ssm_scale)
    return {"base": 1, **said} if said else {}

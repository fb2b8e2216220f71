"""Megatron-FSDP, which shards parameters over data-parallel ranks, and the full tensors of its shards."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from contracts.stacks.megatron.shims import Shim, mcore

ADAPTER = "megatron.core.distributed.fsdp.mcore_fsdp_adapter"


class _OnTheHost:
    """A device mesh over the groups of this machine, whatever device is asked for."""

    @staticmethod
    def from_group(groups: Any, device_type: str, **named: Any) -> Any:
        return DeviceMesh.from_group(groups, "cpu" if device_type == "cuda" else device_type, **named)


_GENERATORS = "the generators of CUDA, which it hands from one TP rank to the others: those of the CPU"
FSDP_SHIMS = (
    Shim(at=f"{ADAPTER}:DeviceMesh", put=_OnTheHost, cuda=True, why="a mesh of CUDA devices: ranks here have a CPU"),
    Shim(at="torch:cuda.current_device", put=lambda: 0, cuda=True, why="the number of the current CUDA device"),
    Shim(at="torch:cuda.empty_cache", put=lambda: None, cuda=True, why="the cache of CUDA's allocator"),
    Shim(at="torch:cuda.get_rng_state", put=torch.get_rng_state, cuda=True, why=_GENERATORS),
    Shim(at="torch:cuda.set_rng_state", put=torch.set_rng_state, cuda=True, why=_GENERATORS),
)
LABEL = "; on a CPU, Megatron-FSDP over a mesh of CPUs"
DRY_RUN_SHIMS = (
    Shim(
        at="megatron.core.distributed.fsdp.src.megatron_fsdp.param_and_grad_buffer:validate_uneven_dtensor",
        put=lambda _: None,
        why="the shards of other ranks, against which it checks where this rank's begins: a dry run has this rank "
        "alone, as Megatron knows of rank 0 (NVIDIA/Megatron-LM#3686)",
    ),
)


def sharded(config: Any, chunk: Any, replicas: int, device: str) -> Any:
    """A chunk whose parameters, gradients and optimizer state are sharded, in `replicas` copies."""
    made = mcore("distributed").DistributedDataParallelConfig(
        use_megatron_fsdp=True, use_distributed_optimizer=True, data_parallel_sharding_strategy="optim_grads_params",
        num_distributed_optimizer_instances=replicas, megatron_fsdp_main_params_dtype=torch.float32,
        megatron_fsdp_main_grads_dtype=torch.float32,
    )  # fmt: skip
    kind = mcore("distributed.fsdp.mcore_fsdp_adapter").FullyShardedDataParallel
    return kind(config=config, ddp_config=made, module=chunk, device=torch.device(device))


def is_sharded(tensor: Any) -> bool:
    return hasattr(tensor, "megatron_fsdp_dist_index")


def shape_of(tensor: Any) -> tuple[int, ...]:
    """The shape of a tensor before data-parallel ranks shard it."""
    return tuple(tensor.orig_param.shape if is_sharded(tensor) else tensor.shape)


def local_of(value: Any) -> Any:
    """This rank's shard of a sharded value; any other value as it is."""
    return getattr(value, "_local_tensor", value)


def put_shard(tensor: Any, value: Tensor) -> None:
    """Copy this rank's shard of a value of the whole shape into a sharded tensor."""
    local_of(tensor).flatten().copy_(value.flatten()[tensor.megatron_fsdp_slice])


def gathered(tensors: list[Any], values: Mapping[int, Any]) -> dict[int, Tensor]:
    """The values, those of sharded tensors whole.

    Args:
        values: by index of a tensor a value of its form: itself, a gradient, a moment. A rank with an empty shard has
            None, or no value.
    """
    found: dict[int, Tensor] = {n: value for n, value in values.items() if not is_sharded(tensors[n])}
    for expert in (False, True):
        sharded = {n: each for n, each in enumerate(tensors) if is_sharded(each) and _is_expert(each) is expert}
        if not sharded:
            continue
        index = next(iter(sharded.values())).megatron_fsdp_dist_index
        group = index.get_fsdp_group(is_expert_parallel=expert)
        mine = {n: local_of(values[n]).detach().flatten().cpu() for n in sharded if values.get(n) is not None}
        every: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(every, mine, group=group)
        for n in sorted(set().union(*every)):
            found[n] = torch.cat([rank[n] for rank in every if n in rank]).reshape(shape_of(sharded[n]))
    return found


def _is_expert(tensor: Any) -> bool:
    return not getattr(tensor.orig_param, "allreduce", True)

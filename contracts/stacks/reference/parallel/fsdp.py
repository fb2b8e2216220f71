"""FSDP2 and HSDP: parameters, gradients and optimizer state sharded over data-parallel ranks.

Gradients are sums: every loss is divided by counts of the whole batch before the backward pass, so nothing is left to
divide, and an expert's gradient, which lives on another mesh, cannot be divided by another number. gloo has no
reduction that scales (PREMUL_SUM), so the plain sum is also asked for by name.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard

from contracts.stacks.reference.model.blocks.moe import MoE
from contracts.stacks.reference.model.hybrid_model import Model
from contracts.stacks.reference.model.mtp import MtpModule

DATA = ("replica", "shard")


def shard(model: Model, dense: DeviceMesh | None, expert: DeviceMesh | None) -> None:
    """Shard a model in place: experts that live on a mesh of their own, each layer, and what is left.

    Args:
        dense: the mesh of everything, expert: the mesh of experts; None where they are not kept on one of their own.
    """
    over, experts_over = data_of(dense), data_of(expert)
    apart = [each.experts for each in model.modules() if isinstance(each, MoE) and each.dispatcher is not None]
    if experts_over is not None:
        for experts in apart:
            fully_shard(experts, mesh=experts_over, shard_placement_fn=along(experts_over))
    ignored = set() if experts_over is not None else {each for experts in apart for each in experts.parameters()}
    if over is not None:
        for unit in units(model):
            fully_shard(unit, mesh=over, ignored_params=ignored, shard_placement_fn=along(over))
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def along(mesh: DeviceMesh) -> Callable[[nn.Parameter], Shard | None]:
    """Along which dim a parameter is cut: its first, for which None stands.

    Where that is shorter than the ranks are many, most shards would be padding, and all of it would travel: sixteen
    experts over 512 ranks thirty-two times over. It is then the first dim that the ranks divide and that is not cut
    already.
    """
    ranks = mesh["shard"].size()

    def chosen(parameter: nn.Parameter) -> Shard | None:
        cut = {getattr(at, "dim", None) for at in parameter.placements} if isinstance(parameter, DTensor) else set()
        shape = (parameter.to_local() if isinstance(parameter, DTensor) else parameter).shape
        if not shape or shape[0] >= ranks:
            return None
        even = [dim for dim, size in enumerate(shape) if size % ranks == 0 and dim not in cut]
        return Shard(even[0]) if even else None

    return chosen


def units(model: Model) -> list[nn.Module]:
    """What is gathered and dropped together: each layer, each layer of a prediction head, the rest."""
    heads = [layer for head in model.mtp if isinstance(head, MtpModule) for layer in (head.attention, head.mlp)]
    return [*model.layers.values(), *heads, model]


def data_of(mesh: DeviceMesh | None) -> DeviceMesh | None:
    """The data-parallel dims of a mesh, as far as they have more than one rank.

    Shards over one rank are none: replicas alone are reduced without FSDP.
    """
    names = tuple(name for name in DATA if mesh is not None and name in (mesh.mesh_dim_names or ()))
    return mesh[names] if mesh is not None and "shard" in names else None

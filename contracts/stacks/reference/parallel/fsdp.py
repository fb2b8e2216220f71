"""FSDP2 and HSDP: parameters, gradients and optimizer state sharded over data-parallel ranks.

Gradients are sums: every loss is divided by counts of the whole batch before the backward pass, so nothing is left to
divide, and an expert's gradient, which lives on another mesh, cannot be divided by another number. gloo has no
reduction that scales (PREMUL_SUM), so the plain sum is also asked for by name.
"""

from collections.abc import Callable

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard

from contracts.stacks.reference.model.blocks import MoE
from contracts.stacks.reference.model.hybrid_model import Model
from contracts.stacks.reference.model.mtp import MtpModule

DATA = ("replica", "shard")


def shard(model: Model, dense: DeviceMesh | None, expert: DeviceMesh | None) -> None:
    """Shard a model in place: experts on their own mesh first, then each layer, then the rest.

    Args:
        dense: the mesh of everything, expert: the mesh of experts; None where they are not kept on one of their own.
    """
    over, experts_over = data_mesh(dense), data_mesh(expert)
    apart = [each.experts for each in model.modules() if isinstance(each, MoE) and each.dispatcher is not None]
    if experts_over is not None:
        for experts in apart:
            fully_shard(experts, mesh=experts_over, shard_placement_fn=shard_placement(experts_over))
    ignored = set() if experts_over is not None else {each for experts in apart for each in experts.parameters()}
    if over is not None:
        for unit in fsdp_units(model):
            fully_shard(unit, mesh=over, ignored_params=ignored, shard_placement_fn=shard_placement(over))
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def shard_placement(mesh: DeviceMesh) -> Callable[[nn.Parameter], Shard | None]:
    """The dim along which a parameter is sharded: its first (None), unless that is shorter than the number of ranks.

    Then most shards would be padding, and the padding is sent too: sixteen experts over 512 ranks cost 32 times their
    size. In that case it is the first dim that the number of ranks divides and that is not sharded already.
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


def fsdp_units(model: Model) -> list[nn.Module]:
    """What is gathered and dropped together: each layer, each layer of a prediction head, the rest."""
    heads = [layer for head in model.mtp if isinstance(head, MtpModule) for layer in (head.attention, head.mlp)]
    return [*model.layers.values(), *heads, model]


def data_mesh(mesh: DeviceMesh | None) -> DeviceMesh | None:
    """The data-parallel dims of a mesh, as far as they have more than one rank.

    Shards over one rank are none: only replicas are reduced without FSDP.
    """
    names = tuple(name for name in DATA if mesh is not None and name in (mesh.mesh_dim_names or ()))
    return mesh[names] if mesh is not None and "shard" in names else None

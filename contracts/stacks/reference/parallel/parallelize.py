"""A model over several ranks, in the order in which it is wrapped.

tensor and sequence parallel   heads and channels of every mixer, rows of the vocabulary
expert parallel                whole experts, or parts of them on a mesh of their own
context parallel               runs of each row: what of a block looks to other tokens asks the ranks that have them
activation checkpoint          each layer, inside the compiled region
compile                        each layer
FSDP2, HSDP                    last, around all of it: what it gathers are the local shards of the others
"""

import functools
from collections.abc import Callable

from torch import nn
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.utils.checkpoint import checkpoint

from contracts.spec import Execution
from contracts.stacks.reference.model.blocks import MoE, Output
from contracts.stacks.reference.model.compile import compile_regions
from contracts.stacks.reference.model.hybrid_model import Layer, Model
from contracts.stacks.reference.model.mtp import MtpModule
from contracts.stacks.reference.model.parts import PARTS, Parts
from contracts.stacks.reference.parallel import fsdp
from contracts.stacks.reference.parallel.collectives import Group, sum_over_ranks
from contracts.stacks.reference.parallel.context_parallel import CutTwice
from contracts.stacks.reference.parallel.mesh import TrainingMesh
from contracts.stacks.reference.parallel.tensor_parallel import on_mesh

EXPERT_SPLIT = {"w1": 1, "w3": 1, "w2": 2, "b1": 1, "b3": 1}
"""The inner dim of an expert's matrices and biases; w2's bias has none."""

Step = Callable[[Model, Execution, TrainingMesh, Parts], None]


def parallelize(model: Model, execution: Execution, mesh: TrainingMesh, parts: Parts = PARTS) -> tuple[str, ...]:
    """Spread a whole model over the ranks of a mesh, in place; the steps that were taken, in order.

    Every rank comes with the same whole weights and keeps its part of them; names stay as they are.
    """
    taken = []
    for step in ORDER:
        if wanted(step, model, execution, mesh):
            step(model, execution, mesh, parts)
            taken.append(step.__name__)
    return tuple(taken)


def wanted(step: Step, model: Model, execution: Execution, mesh: TrainingMesh) -> bool:
    """Whether an execution has anything for a step to do."""
    asked: dict[Step, bool] = {
        tensor_parallel: execution.degrees.tp > 1,
        expert_parallel: mesh.lane,
        context_parallel: execution.degrees.cp > 1,
        activation_checkpoint: execution.recompute or model.recompute,
        compile: execution.compile != "none",
        fully_shard: execution.fsdp,
    }
    return asked[step]


def tensor_parallel(model: Model, execution: Execution, mesh: TrainingMesh, parts: Parts) -> None:
    axis = parts.tensor_parallel(mesh=mesh.dense["tp"], sequence=execution.degrees.sp)
    axis.ends(model)
    axis.between(model.norm)
    for layer in layers(model):
        axis.between(layer.norm)
        if layer.streams is not None:
            axis.between(layer.streams)
        if isinstance(layer.mixer, MoE) and mesh.lane:
            axis.between(layer.mixer.router)
            if layer.mixer.shared is not None:
                axis.mixer(layer.mixer.shared)
        else:
            axis.mixer(layer.mixer)
    for head in heads(model):
        for module in (head.hidden_norm, head.token_norm, head.projection, head.norm):
            axis.between(module)


def expert_parallel(model: Model, execution: Execution, mesh: TrainingMesh, parts: Parts) -> None:
    """Each rank keeps its experts (ep) or its part of each (etp); rows travel."""
    dispatcher = parts.token_dispatcher(ep=mesh.group("ep"), etp=mesh.group("etp"), sharers=mesh.group("sharers"))
    for layer in layers(model):
        if isinstance(layer.mixer, MoE):
            spread_experts(layer.mixer, mesh)
            layer.mixer.dispatcher = dispatcher
            if execution.degrees.sp:
                share_losses(layer.mixer, mesh.group("tp"), execution.degrees.tp)
                layer.mixer.row = parts.context_parallel(group=mesh.group("tp"))


def context_parallel(model: Model, execution: Execution, mesh: TrainingMesh, parts: Parts) -> None:
    """Every part of the model that looks to other tokens of a row gets the ranks that have them."""
    row = parts.context_parallel(group=mesh.group("cp"))
    for module in model.modules():
        if isinstance(module, MoE) and execution.degrees.sp and module.dispatcher is not None:
            module.row = CutTwice(row, module.row)
        elif hasattr(module, "row"):
            module.row = row  # type: ignore[assignment]  # modules type their attributes as tensors
        if isinstance(module, MoE):
            share_losses(module, mesh.group("cp"), execution.degrees.cp)


def activation_checkpoint(model: Model, execution: Execution, mesh: TrainingMesh, parts: Parts) -> None:
    """Each layer by itself, so that what is compiled and what is gathered next stand around it."""
    model.recompute = False  # the model's own way stands around the whole layer
    for layer in model.layers.values():
        forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
        layer.forward = forward


def compile(model: Model, execution: Execution, mesh: TrainingMesh, parts: Parts) -> None:
    compile_regions(model, execution.compile, execution.backend)


def fully_shard(model: Model, execution: Execution, mesh: TrainingMesh, parts: Parts) -> None:
    fsdp.shard(model, mesh.dense, mesh.expert)


ORDER: tuple[Step, ...] = (
    tensor_parallel, expert_parallel, context_parallel, activation_checkpoint, compile, fully_shard,
)  # fmt: skip


def layers(model: Model) -> list[Layer]:
    """Every residual layer, those of the prediction heads included."""
    return [each for each in model.modules() if isinstance(each, Layer)]


def heads(model: Model) -> list[MtpModule]:
    return [each for each in model.mtp if isinstance(each, MtpModule)]


def spread_experts(moe: MoE, mesh: TrainingMesh) -> None:
    names = [name for name in ("ep", "etp") if mesh.expert is not None and name in mesh.expert.mesh_dim_names]
    for name, parameter in list(moe.experts.named_parameters()) if names else ():
        cut = Shard(EXPERT_SPLIT[name]) if name in EXPERT_SPLIT else Replicate()
        at: dict[str, Placement] = {"ep": Shard(0), "etp": cut}
        held = on_mesh(parameter, mesh.expert[tuple(names)], [at[each] for each in names])
        setattr(moe.experts, name, held)
    if "etp" in names:
        moe.experts.adds = mesh.expert["etp"].get_local_rank() == 0


def share_losses(moe: MoE, group: Group, ranks: int) -> None:
    """Ranks that have a run of each sequence: f is over the whole of it, and each loss is a part that adds up."""
    within = moe.router.sequence or (lambda fraction_BE: fraction_BE)  # of a run that is cut further
    moe.router.sequence = lambda fraction_BE: sum_over_ranks(within(fraction_BE), group) / ranks

    def parts(_: nn.Module, args: object, out: Output) -> Output:
        return Output(out.y_BTD, {name: loss / ranks for name, loss in out.losses.items()}, out.state, out.seen)

    moe.register_forward_hook(parts)

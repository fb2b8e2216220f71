"""What mutants of MoE layers on several ranks share."""

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import nn

from contracts.stacks.reference.model.blocks import MoE, Output
from contracts.stacks.reference.model.hybrid_model import Model
from contracts.stacks.reference.parallel.collectives import all_gather
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer


def routed(model: Model) -> Iterator[MoE]:
    """The MoE mixers of a model, in order of layers."""
    for layer in model.layers.values():
        mixer: nn.Module = layer.mixer  # type: ignore[assignment]  # modules type their attributes as tensors
        if isinstance(mixer, MoE):
            yield mixer


class GathersFirst(ParallelTrainer):
    """MoE layers gather the whole sequence over TP, and return this rank's part of the output."""

    def build(self) -> Model:
        model = super().build()
        group = self.mesh.group("tp")

        def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (all_gather(args[0], 1, group), *args[1:])

        def behind(_: nn.Module, args: tuple[Any, ...], out: Output) -> Output:
            return out._replace(y_BTD=out.y_BTD.chunk(self.execution.degrees.tp, dim=1)[dist.get_rank(group)])

        for moe in routed(model):
            moe.register_forward_pre_hook(before)
            moe.register_forward_hook(behind)
        return model

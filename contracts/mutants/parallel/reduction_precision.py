"""Mutants for `checks.parallel.reduction_precision`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer


class _ReducesInBfloat16(ParallelTrainer):
    def reduce(self) -> None:
        for parameter in self.model.parameters():
            if parameter.grad is not None and not isinstance(parameter, DTensor):
                narrow = parameter.grad.to(torch.bfloat16)
                dist.all_reduce(narrow, group=self.mesh.group("rows"))
                parameter.grad = narrow.to(parameter.dtype)


@mutant(of="PAR-10", case="dp2", says="reduces in bfloat16", bugs=("MXP-10",))
class ReducesGradientsInBfloat16(Spread):
    """Gradients are reduced in bfloat16: half the bytes, and small gradients are rounded away beside large ones."""

    trains = _ReducesInBfloat16


class _ScalesTwice(ParallelTrainer):
    def reduce(self) -> None:
        super().reduce()
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(self.execution.world)


@mutant(of="PAR-10", case="fsdp2", says="times that in float32", bugs=("DPS-42",))
class LeavesAScaleInTheGradient(Spread):
    """The loss is multiplied by the world size for an average that the reduction does not take."""

    trains = _ScalesTwice


class _HoldsHalf(ParallelTrainer):
    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: each.to(torch.bfloat16) for name, each in super().whole(tensors).items()}


@mutant(of="PAR-10", case="dp2", says="is held in bfloat16, declared float32")
class HoldsWeightsInBfloat16(Spread):
    """Weights are reported, and kept, in the dtype of the computation."""

    trains = _HoldsHalf

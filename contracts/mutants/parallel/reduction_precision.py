"""Mutants for `checks.parallel.reduction_precision`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.stacks.reference.model.blocks.common import local
from contracts.stacks.reference.model.blocks.mamba2 import Mamba2
from contracts.stacks.reference.model.hybrid_model import Model
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


class _RoundedRates(Mamba2):
    def decay_rate(self) -> Tensor:
        return -torch.exp(local(self.A_log).bfloat16().float())


class _RoundsWhatItGathers(ParallelTrainer):
    def build(self) -> Model:
        model = super().build()
        for each in model.modules():
            if type(each) is Mamba2:
                each.__class__ = _RoundedRates
        return model


@mutant(of="PAR-10a", case="fsdp2", says="lm is", bugs=("MXP-02",))
@mutant(of="PAR-10a", case="fsdp2-recomputed", says="lm is", bugs=("MXP-02",))
class GathersRatesInBfloat16(Spread):
    """One mixed-precision policy for the whole unit: A_log is float32 in storage and in the table, and rounded where
    the scan reads it.
    """

    trains = _RoundsWhatItGathers


class _ReducesTheCopies(ParallelTrainer):
    def reduce(self) -> None:
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad.to(torch.bfloat16).float(), group=self.mesh.group("rows"))


@mutant(of="PAR-10a", case="dp2", says="the gradient of", bugs=("DPS-15",))
class ReducesWhatNobodySteps(Spread):
    """The all-reduce runs over 16-bit copies of the gradients, and the step reads the float32 ones."""

    trains = _ReducesTheCopies


class _LeavesFloat32Behind(ParallelTrainer):
    def reduce(self) -> None:
        kept = {id(each): each.grad for name, each in self.model.named_parameters() if name.endswith("A_log")}
        for parameter in self.model.parameters():
            parameter.grad = None if id(parameter) in kept else parameter.grad
        super().reduce()
        for parameter in self.model.parameters():
            parameter.grad = kept.get(id(parameter), parameter.grad)


@mutant(of="PAR-10a", case="dp2", says=".A_log differs", bugs=("DPS-15",))
class ReducesOneDtypeAlone(Spread):
    """Buckets are made by the dtype of the computation: what stays float32 is in none of them."""

    trains = _LeavesFloat32Behind

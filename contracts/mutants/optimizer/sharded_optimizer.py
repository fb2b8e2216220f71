"""Norms, clipping and updates that are wrong where parameters are sharded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from contracts.contract import mutant
from contracts.mutants._support.broken import broken
from contracts.mutants._support.multi_rank import Spread
from contracts.stacks.reference.model.hybrid_model import ModelOutput
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer, ShardedMuon, ShardedOptimizer
from contracts.stacks.reference.parallel.placements import local_part
from contracts.stacks.reference.training.trainer import Batch


@broken(ShardedOptimizer, "clip", "OPT-04d[ep2]: the weight ", "OPT-04e[ep2]: exp_avg of ", bugs=("CLP-07",))
def clips_experts_by_themselves(clip, self):
    """Experts and the other parameters are clipped by separate norms; the reported norm covers all."""
    norm, coefficient = clip(self)
    for apart in (True, False):
        members = [each.parameter for each in self.members if (each.role == "expert") == apart]
        ratio = self.coefficient(self.norm_of(members) / coefficient) / coefficient if coefficient < 1 else 1.0
        for parameter in members:
            if parameter.grad is not None:
                parameter.grad.mul_(ratio)
    return norm, coefficient


@broken(ShardedOptimizer, "clip", "OPT-04d[ep2]: the weight ")
def leaves_experts_unclipped(clip, self):
    """The norm exhausts a generator of parameters, so the clip of the second mesh finds none left."""
    before = {each.name: each.parameter.grad for each in self.members if each.role == "expert"}
    kept = {name: grad.clone() for name, grad in before.items() if grad is not None}
    told = clip(self)
    for member in self.members:
        if member.name in kept:
            member.parameter.grad = kept[member.name]
    return told


class _FreshMomentum(ShardedMuon):
    def direction(self, grad: Tensor, buffer: Tensor, momentum: float) -> Tensor:
        if isinstance(grad, DTensor):
            return super().direction(grad, torch.zeros_like(buffer), momentum)
        return super().direction(grad, buffer, momentum)


class _MuonWithoutMemory(ShardedOptimizer):
    muon = _FreshMomentum


@mutant(of="OPT-04d", case="fsdp2-muon", says="the optimizer state ", bugs=("OPT-15",))
class ForgetsTheMomentumOfShards(Spread):
    """The sharded rule works on a clone of the momentum; the first step is right."""

    moves = _MuonWithoutMemory


class _DealsMatrices(ShardedMuon):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # as in the reference
        matrices = [each for group in self.param_groups for each in group["params"] if not isinstance(each, DTensor)]
        before = [each.detach().clone() for each in matrices]
        super().step(closure)
        ranks = dist.get_world_size()
        for number in range((len(matrices) - 1) // ranks * ranks, len(matrices)):
            if number % ranks != dist.get_rank():
                matrices[number].copy_(before[number])


class _DealtMuon(ShardedOptimizer):
    muon = _DealsMatrices


@mutant(of="OPT-04d", case="dp2-muon", says="the weight ")
class LeavesTheLastMatricesWithTheirRanks(Spread):
    """Each rank orthogonalizes some of the matrices and hands them to the others; what the last round moved stays where
    it was moved (a relative of Megatron-LM #6754).
    """

    moves = _DealtMuon


@broken(ShardedOptimizer, "decay", "OPT-04d[fsdp2]: the weight ", "OPT-04e[fsdp2]: moved differently")
def divides_the_decay_of_shards(decay, self, member):
    """Decay is divided by the number of ranks, as if they added it up."""
    sharded = isinstance(member.parameter, DTensor)
    return decay(self, member) / (dist.get_world_size() if sharded else 1)


# lanes without data parallelism, and mixed precision
class _ReducesOverNone(ParallelTrainer):
    def reduce(self) -> None:
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                grad = parameter.grad
                if isinstance(grad, DTensor) and isinstance(parameter, DTensor):
                    parameter.grad = grad = grad.redistribute(placements=parameter.placements)
                dist.all_reduce(grad.to_local() if isinstance(grad, DTensor) else grad, group=self.unreduced(name))


class _AskedToShard(_ReducesOverNone):
    def reduce(self) -> None:
        if self.execution.fsdp:
            super().reduce()
        else:
            ParallelTrainer.reduce(self)


@mutant(of="OPT-03", case="tp2", says="over [0, 1] is all_reduce(sum)")
class ReducesASingletonOverTheWorld(Spread):
    """Asked for a distributed optimizer, a run looks up the data-parallel group, finds None, and torch takes the world.

    With uneven shards every rank hangs there; even ones are summed.
    """

    trains = _AskedToShard


class _GathersOldWeights(ParallelTrainer):
    """Every second step computes with the weights of the step before, those whose name has `of` in it."""

    of = ""
    copies: Mapping[str, Tensor] = {}

    def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
        held = {name: local_part(each.detach()).clone() for name, each in self.model.named_parameters()}
        if self.number % 2:
            self._take(self.copies)
        found = super().passes(window, counts)
        self._take(held)
        self.copies = {name: each for name, each in held.items() if self.of in name}
        return found

    def _take(self, values: Mapping[str, Tensor]) -> None:
        for name, each in self.model.named_parameters():
            if name in values:
                local_part(each.detach()).copy_(values[name])


@mutant(of="OPT-04f", case="fsdp2", says="the second step's lm is")
class GathersWeightsOfTheStepBefore(Spread):
    """Gathered 16-bit weights stay from step to step, and only every second step gathers anew."""

    trains = _GathersOldWeights


class _GathersOldExperts(_GathersOldWeights):
    of = ".experts."


class _GathersOldMatrices(_GathersOldWeights):
    def _take(self, values: Mapping[str, Tensor]) -> None:
        muon = {member.name for member in self.optimizer.members if self.optimizer.rule(member) == "muon"}
        super()._take({name: each for name, each in values.items() if name in muon})


@mutant(of="OPT-04f", case="fsdp2-muon", says="the second step's lm is")
class HandsOnTheUpdatesOfOneRule(Spread):
    """What hands an update to the 16-bit copies asks for AdamW: of what Muon moves they are a step late
    (Megatron-LM #5707).
    """

    trains = _GathersOldMatrices


@mutant(of="OPT-04f", case="borrowed-ep2-fsdp", says="the second step's lm is")
class KeepsExpertsOfTheStepBefore(Spread):
    """The same for experts alone, whose ranks are others."""

    trains = _GathersOldExperts

"""Stacks whose norm, clip or update is wrong where parameters are sharded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from contracts.contract import mutant
from contracts.mutants.numeric._spread import Spread
from contracts.stacks.reference.model.hybrid_model import Model
from contracts.stacks.reference.optim.optimizer import Member, orthogonalise
from contracts.stacks.reference.parallel.gather import full_tensors, shard_like
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer, ShardedMuon, ShardedOptimizer
from contracts.stacks.reference.parallel.placements import from_local_part, local_part, placed_copy


def _squares(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The sum of squares of what this rank holds of some gradients."""
    held = [each.grad for each in parameters if each.grad is not None]
    parts = [(each.to_local() if isinstance(each, DTensor) else each).double().square().sum() for each in held]
    return torch.stack([*parts, torch.zeros((), dtype=torch.float64)]).sum()


class _CountsCopies(ShardedOptimizer):
    def norm(self) -> float:
        squares = _squares(member.parameter for member in self.members)
        dist.all_reduce(squares)
        return float(squares.sqrt())


@mutant(of="PAR-03a", case="tp2-sp-muon", says="grad_norm is", bugs=("CLP-01",))
class CountsCopiesOnceForEachRank(Spread):
    """Squares of what each rank holds are summed over the ranks, copies included."""

    moves = _CountsCopies


@mutant(of="PAR-03a", case="dp2", says="grad_norm is")
class CountsReplicasOnceForEachRank(Spread):
    """The same where every rank holds everything: the norm is the root of WORLD times too large."""

    moves = _CountsCopies


class _OfThisRank(ShardedOptimizer):
    def norm(self) -> float:
        return float(_squares(member.parameter for member in self.members).sqrt())


@mutant(of="PAR-03a", case="ep2-idle", says="grad_norm is", bugs=("CLP-08", "PRV-09"))
class TakesTheNormOfItsOwnExperts(Spread):
    """Experts of other ranks are left out of the norm, and each rank clips by another number."""

    moves = _OfThisRank


class _WithoutMarks(ShardedOptimizer):
    def norm_of(self, parameters: Iterable[nn.Parameter]) -> float:
        unmarked = {id(each.parameter) for each in self.members if each.role == "ssm" or "out_norm" in each.name}
        given = list(parameters)
        others = super().norm_of([each for each in given if id(each) not in unmarked])
        own = _squares(each for each in given if id(each) in unmarked)
        return float((own + others**2).sqrt())


@mutant(of="PAR-03a", case="tp2-sp-muon", says="grad_norm is", bugs=("CLP-11",))
class TakesUnmarkedShardsForCopies(Spread):
    """Decay rates, skips and the gated norm of the heads were never marked as cut: each rank counts its own for all."""

    moves = _WithoutMarks


class _MeanOfRanks(ShardedOptimizer):
    def norm(self) -> float:
        squares = _squares(member.parameter for member in self.members)
        dist.all_reduce(squares)
        return float((squares / dist.get_world_size()).sqrt())


@mutant(of="PAR-03a", case="tp2-sp-muon", says="grad_norm is")
class AveragesSquaresOverRanks(Spread):
    """The mend overshoots: squares are averaged, which is right for copies and halves shards."""

    moves = _MeanOfRanks


class _NormByNorm(ShardedOptimizer):
    def clip(self) -> tuple[float, float]:
        norm, coefficient = super().clip()
        for apart in (True, False):
            members = [each.parameter for each in self.members if (each.role == "expert") == apart]
            ratio = self.coefficient(self.norm_of(members) / coefficient) / coefficient if coefficient < 1 else 1.0
            for parameter in members:
                if parameter.grad is not None:
                    parameter.grad.mul_(ratio)
        return norm, coefficient


@mutant(of="OPT-04d", case="ep2", says="the weights after", bugs=("CLP-07",))
class ClipsExpertsByThemselves(Spread):
    """Experts and the rest are clipped each by a norm of their own; the norm that is told is of all."""

    moves = _NormByNorm


class _LeavesExperts(ShardedOptimizer):
    def clip(self) -> tuple[float, float]:
        before = {each.name: each.parameter.grad for each in self.members if each.role == "expert"}
        kept = {name: grad.clone() for name, grad in before.items() if grad is not None}
        told = super().clip()
        for member in self.members:
            if member.name in kept:
                member.parameter.grad = kept[member.name]
        return told


@mutant(of="OPT-04d", case="ep2", says="the weights after")
class LeavesExpertsUnclipped(Spread):
    """A generator of parameters is used up by the norm; the clip of the second mesh finds none left."""

    moves = _LeavesExperts


class _NeverClips(ShardedOptimizer):
    def coefficient(self, norm: float) -> float:
        return 1.0


@mutant(of="PAR-03a", case="tp2-sp-muon", says="clip_coef is", bugs=("CLP-21",))
class SkipsTheClipUnderTensorParallel(Spread):
    """For one combination of degrees clipping returns early."""

    moves = _NeverClips


# updates
class _OneBuffer(ShardedOptimizer):
    def zero(self) -> None:
        super().zero()
        moved = any(rule.state for rule in self.rules.values())
        for member in self.members if moved else ():
            if isinstance(member.parameter, DTensor):
                member.parameter.grad = placed_copy(member.parameter.detach())


@mutant(of="PAR-02a", case="tp2-sp-fsdp2", says="weights ", bugs=("OPT-22",))
class AddsToWhatWasGathered(Spread):
    """Gradients have the memory into which parameters were gathered behind the step before, and nobody clears it."""

    moves = _OneBuffer


class _OrthogonalParts(ShardedMuon):
    def direction(self, grad: Tensor, buffer: Tensor, momentum: float) -> Tensor:
        buffer.mul_(momentum).add_(grad)
        ahead = grad + momentum * buffer
        if not isinstance(ahead, DTensor):
            return orthogonalise(ahead)
        part = orthogonalise(ahead.to_local())
        return DTensor.from_local(part, ahead.device_mesh, ahead.placements, shape=ahead.shape, stride=ahead.stride())


class _MuonOfParts(ShardedOptimizer):
    muon = _OrthogonalParts


class _Padded(ShardedMuon):
    def direction(self, grad: Tensor, buffer: Tensor, momentum: float) -> Tensor:
        if not isinstance(grad, DTensor) or grad.dim() > 2:
            return super().direction(grad, buffer, momentum)
        moved = local_part(buffer).mul_(momentum).add_(local_part(grad))
        (gathered,) = full_tensors({"": from_local_part(local_part(grad) + momentum * moved, grad)}).values()
        stale = gathered.new_full((-len(gathered) % 16 or 16, gathered.shape[1]), 1e-3)
        return from_local_part(shard_like(orthogonalise(torch.cat([gathered, stale]))[: len(gathered)], grad), grad)


class _MuonOverPadding(ShardedOptimizer):
    muon = _Padded


@mutant(of="PAR-02a", case="tp2-sp-muon", says="weights layers.", bugs=("OPT-18",))
class OrthogonalisesWithItsPadding(Spread):
    """Rows are padded to whole tiles, and what the padding still held of an earlier tensor is orthogonalized too."""

    moves = _MuonOverPadding


@mutant(of="PAR-02a", case="tp2-sp-muon", says="weights layers.", bugs=("OPT-13",))
class OrthogonalisesEachPart(Spread):
    """Newton-Schulz on the shard of a rank: cheaper, and another optimizer."""

    moves = _MuonOfParts


class _ScaledByParts(ShardedMuon):
    def scale(self, matrix: Tensor) -> float:
        held = matrix.to_local() if isinstance(matrix, DTensor) else matrix
        return 0.2 * math.sqrt(max(held.shape[-2:]))


class _MuonScaledByParts(ShardedOptimizer):
    muon = _ScaledByParts


@mutant(of="PAR-02a", case="tp2-sp-muon", says="weights layers.")
class ScalesByTheShapeOfAPart(Spread):
    """The step of a matrix is scaled by the width of what this rank holds of it."""

    moves = _MuonScaledByParts


class _FreshMomentum(ShardedMuon):
    def direction(self, grad: Tensor, buffer: Tensor, momentum: float) -> Tensor:
        if isinstance(grad, DTensor):
            return super().direction(grad, torch.zeros_like(buffer), momentum)
        return super().direction(grad, buffer, momentum)


class _MuonWithoutMemory(ShardedOptimizer):
    muon = _FreshMomentum


@mutant(of="OPT-04d", case="fsdp2-muon", says="the moments after", bugs=("OPT-15",))
class ForgetsTheMomentumOfShards(Spread):
    """The sharded copy of the rule works on a clone of the momentum; the first step is right."""

    moves = _MuonWithoutMemory


class _DecaysOnce(ShardedOptimizer):
    def decay(self, member: Member) -> float:
        sharded = isinstance(member.parameter, DTensor)
        return super().decay(member) / (dist.get_world_size() if sharded else 1)


@mutant(of="OPT-04d", case="fsdp2", says="the weights after")
class DividesTheDecayOfShards(Spread):
    """Decay is taken for something that ranks add up."""

    moves = _DecaysOnce


# what a run begins with
class _SeedsByRank(ParallelTrainer):
    def build(self) -> Model:
        kept, self.recipe = self.recipe, replace(self.recipe, seed=self.recipe.seed + dist.get_rank())
        model = super().build()
        self.recipe = kept
        return model


@mutant(of="PAR-04g", case="dp2", says="hold unequal", bugs=("INI-02",))
class StartsReplicasApart(Spread):
    """Seeds carry the rank, so that shards are unique; replicas are, too."""

    trains = _SeedsByRank


@mutant(of="PAR-04g", case="tp2", says="hold unequal", bugs=("INI-11",))
class StartsCopiesApart(Spread):
    """The same under tensor parallel: what the ranks hold copies of begins otherwise on each."""

    trains = _SeedsByRank


class _EachShardAlike(ParallelTrainer):
    """Every rank draws its shard as if it were the first."""

    def build(self) -> Model:
        model = super().build()
        for parameter in model.parameters():
            if isinstance(parameter, DTensor) and any(at.is_shard() for at in parameter.placements):
                held = parameter.to_local().detach()
                first = held.clone()
                dist.broadcast(first, 0)
                held.copy_(first)
        return model


@mutant(of="PAR-04g", case="ep2", says="initial weights", bugs=("INI-13",))
class DrawsEveryShardAlike(Spread):
    """One seed on all ranks and a draw of the local shape: half of the experts are copies of the other half."""

    trains = _EachShardAlike


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
    """Asked for a distributed optimizer, it looks up the data-parallel group, finds None, and torch takes the world.

    Uneven shards meet there, and everybody hangs; even ones are added up.
    """

    trains = _AskedToShard


class _ReducesInBfloat16(ParallelTrainer):
    def reduce(self) -> None:
        for parameter in self.model.parameters():
            if parameter.grad is not None and not isinstance(parameter, DTensor):
                narrow = parameter.grad.to(torch.bfloat16)
                dist.all_reduce(narrow, group=self.mesh.group("rows"))
                parameter.grad = narrow.to(parameter.dtype)


@mutant(of="PAR-10", case="dp2", says="reduces in bfloat16", bugs=("MXP-10",))
class ReducesGradientsInBfloat16(Spread):
    """Messages are half as long, and small gradients are rounded away beside large ones."""

    trains = _ReducesInBfloat16


class _ScalesTwice(ParallelTrainer):
    def reduce(self) -> None:
        super().reduce()
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(self.execution.world)


@mutant(of="PAR-10", case="fsdp2", says="times that in float32", bugs=("DPS-42",))
class LeavesAScaleInTheGradient(Spread):
    """The loss is scaled up by the world for an average that the reduction does not take."""

    trains = _ScalesTwice


class _HoldsHalf(ParallelTrainer):
    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: each.to(torch.bfloat16) for name, each in super().whole(tensors).items()}


@mutant(of="PAR-10", case="dp2", says="is held in bfloat16, declared float32")
class HoldsWeightsInBfloat16(Spread):
    """Weights are given, and kept, in the dtype that they are applied in."""

    trains = _HoldsHalf


# idle ranks
class _SharesByCeiling(ParallelTrainer):
    def own(self, rows: Sequence[int]) -> Sequence[int]:
        members = self.mesh.place("rows")
        each, at = -(-len(rows) // len(members)), members.index(self.mesh.rank)
        return rows[at * each : (at + 1) * each] or rows[:1]


@mutant(of="TOPO-10d", case="a-rank-without-a-sequence", says="was accepted, expected a refusal")
class GivesAnIdleRankTheFirstRow(Spread):
    """A rank without a sequence is given the first one again, so that nothing hangs; its labels weigh twice."""

    trains = _SharesByCeiling

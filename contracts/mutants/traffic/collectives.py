"""Stacks whose ranks issue different collectives, or send too much.

One rank skips a collective, or issues it in another order, dtype or reduction. Each run has to end within the deadline
with what both ranks issued in the message, and not with a timeout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.mutants._support.pipeline import Staged
from contracts.stacks.reference.model.hybrid_model import ModelOutput
from contracts.stacks.reference.optim.optimizer import orthogonalise
from contracts.stacks.reference.parallel.collectives import all_to_all
from contracts.stacks.reference.parallel.expert_parallel import Experts, TokenDispatcher
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer, ShardedMuon, ShardedOptimizer
from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer
from contracts.stacks.reference.parallel.placements import from_local_part, local_part
from contracts.stacks.reference.training.trainer import Batch


class _OneTellsMore(ParallelTrainer):
    def move_biases(self, seen: Mapping[str, Tensor]) -> None:
        super().move_biases(seen)
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(3))


@mutant(of="TRAF-01", case="dp2", says="over [0, 1] is all_reduce(sum) 3 float32 on rank 0", bugs=("CMP-06", "RSM-35"))
class ReducesAMetricOnOneRank(Spread):
    """Rank 0 reduces a metric for its log: a collective under `if rank == 0`."""

    trains = _OneTellsMore


class _LastTellsMore(ParallelTrainer):
    def move_biases(self, seen: Mapping[str, Tensor]) -> None:
        super().move_biases(seen)
        if self.number == 1 and dist.get_rank() == 1:
            dist.all_reduce(torch.ones(3))


@mutant(of="TRAF-01", case="tp2-sp", says="is all_reduce(sum) 3 float32 on rank 1 and barrier", bugs=("RSM-33",))
class OneRankWaitsBehindTheLastStep(Spread):
    """After the last step, one rank waits in a reduction that no other rank enters."""

    trains = _LastTellsMore


class _SkipsIdle(TokenDispatcher):
    def through(self, experts: Experts, x_SD: Tensor, counts_E: Tensor) -> Tensor:
        counts_ne = self.announced(counts_E)
        sent, received = self.lengths(counts_E), [int(rows) for rows in counts_ne.sum(1)]
        if 2 * sum(received) < x_SD.shape[0] * len(received):
            return x_SD * 0
        y_RD = self.by_expert(experts, all_to_all(x_SD, received, sent, self.ep), counts_ne)
        return all_to_all(y_RD, sent, received, self.ep)


@mutant(of="TRAF-01", case="ep2", says="is all_to_all rows of 24 float64 on rank",
        bugs=("FSD-03", "CMP-03", "PPS-14"))  # fmt: skip
class SkipsTheExchangeWithLittleToDo(Spread):
    """A rank whose experts have few or no rows skips the all-to-all."""

    exchange = {"token_dispatcher": _SkipsIdle}


class _Backwards(ParallelTrainer):
    def reduce(self) -> None:
        parameters = [each for each in self.model.parameters() if each.grad is not None]
        for parameter in reversed(parameters) if dist.get_rank() else parameters:
            dist.all_reduce(parameter.grad, group=self.mesh.group("rows"))


@mutant(of="TRAF-01", case="dp2", says="float64 on rank 0 and all_reduce(sum) 24x28 float64 on rank 1",
        bugs=("FSD-10",), leanest="all_reduce(sum) 40x24 float64 on rank 1")  # fmt: skip
class ReducesInAnOrderOfItsOwn(Spread):
    """Gradients are reduced as they become ready, in a different order on each rank."""

    trains = _Backwards


class _FromASet(ParallelTrainer):
    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        group = self.mesh.group("rows")
        found = dict(values)
        for name in sorted(values, reverse=bool(dist.get_rank())):
            found[name] = values[name].clone()
            dist.all_reduce(found[name], group=group)
        return found


@mutant(of="TRAF-01", case="dp2", says="16 int64 on rank", bugs=("CLP-23",), leanest="")
class ReducesMetricsAsASetHasThem(Spread):
    """Metrics are reduced in the order of a set of names, which differs between processes."""

    trains = _FromASet


class _NarrowsOnOne(ParallelTrainer):
    def reduce(self) -> None:
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                sent = parameter.grad.to(torch.float32) if dist.get_rank() else parameter.grad
                dist.all_reduce(sent, group=self.mesh.group("rows"))
                parameter.grad = sent.to(parameter.dtype)


@mutant(of="TRAF-01", case="dp2", says="is all_reduce(sum) 67x24 float64 on rank 0 and all_reduce(sum) 67x24 float32",
        leanest="all_reduce(sum) 68x24 float32 on rank 1")  # fmt: skip
class ReducesInAnotherDtypeOnOneRank(Spread):
    """Autocast is on on one rank only. The bytes are misread, and nothing reports it."""

    trains = _NarrowsOnOne


class _LargestOnOne(ParallelTrainer):
    def over_rows(self, counts: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {name: each.clone() for name, each in counts.items()}
        operation = dist.ReduceOp.MAX if dist.get_rank() else dist.ReduceOp.SUM
        for name in sorted(found):
            dist.all_reduce(found[name], op=operation, group=self.mesh.group("rows"))
        return found


@mutant(of="TRAF-01", case="dp2", says="all_reduce(max) 1 int64 on rank 1")
class TakesTheLargestOnOneRank(Spread):
    """One rank reduces by the maximum, the other by the sum: torch's debug mode does not notice."""

    trains = _LargestOnOne


class _LosesARow(TokenDispatcher):
    def lengths(self, counts_E: Tensor) -> list[int]:
        sent = super().lengths(counts_E)
        if dist.get_rank() == 1:
            sent = [sent[0] - 1, sent[1] + 1]
        return sent


@mutant(of="TRAF-01", case="ep2", says="of rank 1, which sends")
class SendsOtherLengthsThanItSaid(Spread):
    """Row counts are announced before tokens are dropped. gloo accepts the shorter message and leaves old rows behind
    it.
    """

    exchange = {"token_dispatcher": _LosesARow}


# empty tensors
class _GathersParts(ShardedOptimizer):
    """All-gathers shards of vectors, for a norm of its own."""

    def norm(self) -> float:
        for member in self.members:
            grad = member.parameter.grad
            held = grad.to_local() if isinstance(grad, DTensor) else grad
            if held is None or held.dim() > 1:
                continue
            every = [torch.empty_like(held) for _ in range(dist.get_world_size())]
            dist.all_gather(every, held.contiguous())
        return super().norm()


@mutant(of="TRAF-03", case="fsdp2", says="is all_gather 1 float64 on rank 0 and all_gather 0 float64 on rank 1",
        bugs=("OPT-31",))  # fmt: skip
class GathersShardsAsTheyAre(Spread):
    """Shards are gathered without padding: where a dimension is smaller than the world, one rank's shard is empty."""

    moves = _GathersParts


class _TellsNothing(ParallelTrainer):
    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        counts = [each for name, each in values.items() if name.endswith(".counts")]
        dist.all_reduce(torch.cat([torch.empty(0), *counts]))
        return super().over_parts(values)


@mutant(of="TRAF-03", case="fsdp2", says="passes an empty tensor to all_reduce(sum) 0 float32")
class SumsCountsThatAreNotThere(Spread):
    """A model without routers has no token counts, and an empty tensor is reduced for them."""

    trains = _TellsNothing


# too many bytes
class _ReducesEachPart(ParallelTrainer):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        before = {name: each.grad for name, each in self.model.named_parameters()}
        self.optimizer.zero()
        out = super().accumulate(micro, counts)
        super().reduce()
        for name, parameter in self.model.named_parameters():
            earlier = before[name]
            if earlier is not None and parameter.grad is not None:
                parameter.grad = parameter.grad + earlier
        return out

    def reduce(self) -> None:
        pass


@mutant(of="TRAF-05", case="dp2", says="bytes are reduced, expected at most", bugs=("FSD-01", "FSD-02"))
class ReducesEachMicrobatch(Spread):
    """`no_sync` does nothing: every number is right, and gradients are sent once per microbatch."""

    trains = _ReducesEachPart


class _NormOfWhole(ShardedOptimizer):
    def norm(self) -> float:
        for member in self.members:
            if isinstance(member.parameter.grad, DTensor):
                member.parameter.grad.full_tensor()
                member.parameter.detach().full_tensor()  # type: ignore[attr-defined]
        return super().norm()


@mutant(of="TRAF-05", case="fsdp2", says="bytes are gathered, expected at most")
class GathersEverythingForTheNorm(Spread):
    """Whole tensors are gathered on every rank to compute the norm."""

    moves = _NormOfWhole


class _TracksItsOwnLayers(PipelineTrainer):
    def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
        out = super().passes(window, counts)
        tracked = [each for name, each in sorted(out[0].seen.items()) if name.endswith(".counts")]
        dist.all_reduce(torch.zeros(len(self.recipe.pattern.replace("|", "")) + len(tracked)), group=self.group)
        return out


@mutant(of="TRAF-01", case="pp2-a-stage-without-experts", says="is all_reduce(sum) 5 float32 on rank 0 and",
        bugs=("AUX-13",))  # fmt: skip
class TracksLossesOfItsOwnLayers(Staged):
    """The table of auxiliary losses is made where it is first written, with a size of the stage: stages reduce tables
    of different lengths, and hang.
    """

    trains = _TracksItsOwnLayers


class _OrthogonalisesParts(ShardedMuon):
    def direction(self, grad: Tensor, buffer: Tensor, momentum: float) -> Tensor:
        if not isinstance(grad, DTensor):
            return super().direction(grad, buffer, momentum)
        held, kept = local_part(grad), local_part(buffer)
        kept.mul_(momentum).add_(held)
        ahead = held + momentum * kept
        return from_local_part(orthogonalise(ahead) if ahead.numel() else ahead, grad)


@mutant(of="TRAF-03", case="fsdp4-muon", says="the weight", bugs=("FSD-07",))
class OrthogonalisesWhatItHolds(Spread):
    """A rank with an empty shard skips the orthogonalisation, so every rank does its own part alone."""

    class moves(ShardedOptimizer):  # noqa: N801
        muon = _OrthogonalisesParts

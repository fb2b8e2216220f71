"""Stacks whose steps have the right numbers, or nearly, and send too much or the wrong things."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import GathersFirst, Spread
from contracts.mutants._support.patched_functions import built_with
from contracts.stacks.kit.roles import layer_of
from contracts.stacks.reference.model.blocks.common import Linear, RMSNorm
from contracts.stacks.reference.model.blocks.moe import Routing
from contracts.stacks.reference.model.hybrid_model import Model
from contracts.stacks.reference.parallel import fsdp
from contracts.stacks.reference.parallel.collectives import all_gather, all_reduce, all_rows, all_to_all, own_rows
from contracts.stacks.reference.parallel.expert_parallel import Experts, TokenDispatcher
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer, ShardedOptimizer
from contracts.stacks.reference.parallel.tensor_parallel import TensorParallel


# weights
class _NormOfWhole(ShardedOptimizer):
    def norm(self) -> float:
        for member in self.members:
            if isinstance(member.parameter, DTensor):
                member.parameter.detach().full_tensor()  # type: ignore[attr-defined]
        return super().norm()


@mutant(of="TRAF-04a", case="fsdp8", says="more than twice")
class GathersWeightsOnceMore(Spread):
    """All weights are gathered a third time, for a histogram."""

    moves = _NormOfWhole


_in_float64 = functools.partial(fully_shard, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float64))


@mutant(of="TRAF-04a", case="tp2-sp-ep2-fsdp2", says="all-gathers of weights are in float64")
class GathersWeightsInFloat64(Spread):
    """The policy of a precision test stays on: weights are widened before they are gathered."""

    trains = built_with(fsdp, "fully_shard", _in_float64)


def _every_matrix(model: Model) -> list[nn.Module]:
    layers = list(model.layers.values())
    return [*(each for layer in layers for each in layer.modules() if isinstance(each, Linear)), *layers, model]


@mutant(of="TRAF-04a", case="fsdp8", says="all-gathers bring the weights of 4 layers, at most")
class GathersOneTensorAtATime(Spread):
    """`fully_shard` wraps every matrix: as many bytes, in many times as many collectives."""

    trains = built_with(fsdp, "fsdp_units", _every_matrix)


def _not_at_all(*args: Any) -> None:
    pass


@mutant(of="TRAF-04a", case="hsdp-2x8", says="not all is gathered", bugs=("PG-04",))
class NeverShards(Spread):
    """FSDP is asked for and wraps nothing, because one of its degrees was read as 1."""

    trains = built_with(fsdp, "shard", _not_at_all)


# gradients
class _Nothing(ParallelTrainer):
    def reduce(self) -> None:
        pass


@mutant(of="TRAF-04b", case="dp8", says="elements are reduced over [0, 1, 2, 3, 4, 5, 6, 7], expected")
class NeverReduces(Spread):
    """The hook that reduces gradients is never called."""

    trains = _Nothing


class _WholeEmbedding(ParallelTrainer):
    def reduce(self) -> None:
        super().reduce()
        dist.all_reduce(torch.zeros(self.model.embedding.weight.shape), group=self.mesh.group("rows"))


@mutant(of="TRAF-04b", case="fsdp8", says="elements are reduced over [0, 1, 2, 3, 4, 5, 6, 7], expected")
class AllReducesTheEmbeddingWhole(Spread):
    """The embedding's gradient is reduce-scattered, and then all-reduced whole as if it were tied."""

    trains = _WholeEmbedding


_in_bf16 = functools.partial(fully_shard, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))


@mutant(of="TRAF-04b", case="borrowed-tp2-sp-ep4-fsdp4", says="gradients are reduced in bfloat16", bugs=("MXP-09",))
class ReducesInBfloat16(Spread):
    """Gradients are reduced over the ranks in 16 bits."""

    trains = built_with(fsdp, "fully_shard", _in_bf16)


def _one_copy(mesh: Any) -> Any:
    return None if mesh is None else mesh["shard"]


@mutant(of="TRAF-04b", case="hsdp-2x8", says="0 elements are reduced over [0, 8], which hold the same", bugs=("PG-03",))
class ForgetsTheCopies(Spread):
    """HSDP does not reduce over replicas: each replica of the model trains alone."""

    trains = built_with(fsdp, "data_mesh", _one_copy)


# residual stream
class _WideStream(TensorParallel):
    def enter(self, x_BTD: Tensor) -> Tensor:
        return all_gather(x_BTD.float(), 1, self.group).to(x_BTD.dtype)


@mutant(of="TRAF-04c", case="tp2-sp-ep2-fsdp2", says="bytes go into all_gather over TP, at most")
class GathersTheStreamInFloat32(Spread):
    """The residual stream is widened before it is gathered, and narrowed after."""

    exchange = {"tensor_parallel": _WideStream}


@mutant(of="TRAF-04c", case="tp2-sp-dp4", says="times the residual stream goes into all_gather over TP, expected")
class KeepsWhatItSaysItGathersAgain(Spread):
    """Declared to keep its own run of an input and to gather the whole once more, it keeps the whole: memory that a
    plan has counted as free.
    """

    conventions: Mapping[str, str] = {"gathered-input": "again"}


class _SumsAndCuts(TensorParallel):
    def leave(self, y_BTD: Tensor) -> Tensor:
        return all_reduce(y_BTD, self.group).chunk(self.size, dim=1)[self.rank]


@mutant(of="TRAF-04c", case="borrowed-tp2-sp-ep4-fsdp4", says="times the residual stream goes into")
class AllReducesAndKeepsItsRun(Spread):
    """An all-reduce replaces a reduce-scatter, and each rank throws away what is not its own."""

    exchange = {"tensor_parallel": _SumsAndCuts}


@mutant(of="TRAF-04c", case="tp2-sp-ep2-fsdp2", says="times the residual stream goes into all_gather over TP")
class GathersTheStreamForExperts(Spread):
    """Routers get the whole sequence although their layers send only their own rows."""

    trains = GathersFirst


class _OwnNorms(TensorParallel):
    def between(self, module: nn.Module) -> None:
        super().between(module)
        for each in module.modules():
            if isinstance(each, Linear | RMSNorm):
                each.summed = False


@mutant(of="TRAF-04c", case="borrowed-tp2-sp-ep4-fsdp4", says="elements are summed over TP, whose ranks hold",
        bugs=("SP-11",))  # fmt: skip
class LeavesGradientsOfNormsApart(Spread):
    """Under sequence parallel, each rank keeps a norm's gradient from its own tokens."""

    exchange = {"tensor_parallel": _OwnNorms}


class _SumsEverything(ParallelTrainer):
    def reduce(self) -> None:
        super().reduce()
        for parameter in self.model.parameters():
            grad = parameter.grad
            if grad is not None:
                dist.all_reduce(grad.to_local() if isinstance(grad, DTensor) else grad, group=self.mesh.group("tp"))


@mutant(of="TRAF-04c", case="tp2-sp-ep2-fsdp2", says="is all-reduced over TP")
class SumsEveryGradientOverTp(Spread):
    """Over-correction: not only the gradients of norms but all gradients are summed over TP."""

    trains = _SumsEverything


# rows
class _Pads(TokenDispatcher):
    def through(self, experts: Experts, x_SD: Tensor, counts_E: Tensor) -> Tensor:
        counts_ne = self.announced(counts_E)
        slots = 5 * len(x_SD) // (4 * len(counts_ne))
        room = x_SD.new_zeros(slots * len(counts_ne) - len(x_SD), x_SD.shape[1])
        rows = [slots] * len(counts_ne)
        x_RD = all_to_all(torch.cat([x_SD, room]), rows, rows, self.ep)
        y_RD = experts(x_RD, counts_ne.sum(0).cumsum(0))
        return all_to_all(y_RD, rows, rows, self.ep)[: len(x_SD)]


@mutant(of="TRAF-04d", case="tp2-sp-ep2-fsdp2-balanced", says="1.25 times")
class SendsPaddedRows(Spread):
    """Every rank gets a full set of capacity slots, however few rows there are."""

    exchange = {"token_dispatcher": _Pads}


class _OverTheWorld(TokenDispatcher):
    def through(self, experts: Experts, x_SD: Tensor, counts_E: Tensor) -> Tensor:
        counts_ne = self.announced(counts_E)
        received = self.everywhere([int(rows) for rows in counts_ne.sum(1)])
        sent = self.everywhere(self.lengths(counts_E))
        y_RD = self.by_expert(experts, all_to_all(x_SD, received, sent, dist.group.WORLD), counts_ne)
        return all_to_all(y_RD, sent, received, dist.group.WORLD)

    def everywhere(self, rows: list[int]) -> list[int]:
        places = dict(zip(dist.get_process_group_ranks(self.ep), rows, strict=True))
        return [places.get(rank, 0) for rank in range(dist.get_world_size())]


@mutant(of="TRAF-04d", case="borrowed-tp2-sp-ep4-fsdp4-balanced", says="experts lie on", bugs=("PG-05", "PG-06"))
class SendsRowsOverTheWorld(Spread):
    """The all-to-all uses the default group: right where EP spans the world, and wrong elsewhere."""

    exchange = {"token_dispatcher": _OverTheWorld}


class _AssumesBalance(TokenDispatcher):
    def announced(self, counts_E: Tensor) -> Tensor:
        return counts_E.view(dist.get_world_size(self.ep), -1)


@mutant(of="TRAF-04d", case="tp2-sp-ep2-fsdp2-crowded", says="elements of rows go into all-to-alls, expected")
class TakesAsManyRowsAsItSends(Spread):
    """Counts are not exchanged: each rank expects from another as many rows as it sends there. Balanced routing hides
    it.
    """

    exchange = {"token_dispatcher": _AssumesBalance}


class _SharesNothing(TokenDispatcher):
    def share(
        self, routed: Callable[[Tensor, Routing, Tensor], Tensor], x_BTD: Tensor, routing: Routing, dropped_BTK: Tensor
    ) -> Tensor:
        return routed(x_BTD, routing, dropped_BTK)


@mutant(of="TRAF-04d", case="tp2-sp-ep2-fsdp2-balanced", says=": 2 times", bugs=("DSP-11",))
class SendsTheRowsOfOthersToo(Spread):
    """EP ranks that read the same sequences each send all of their rows."""

    exchange = {"token_dispatcher": _SharesNothing}


class _WideRows(TokenDispatcher):
    def through(self, experts: Experts, x_SD: Tensor, counts_E: Tensor) -> Tensor:
        def narrow(x_RD: Tensor, ends_E: Tensor) -> Tensor:
            return experts(x_RD.to(x_SD.dtype), ends_E).float()

        return super().through(narrow, x_SD.float(), counts_E).to(x_SD.dtype)


@mutant(of="TRAF-04d", case="borrowed-tp2-sp-ep4-fsdp4-balanced", says="rows go in float32")
class SendsRowsInFloat32(Spread):
    """Rows are widened for the gates before they travel instead of after."""

    exchange = {"token_dispatcher": _WideRows}


# everything else
class _TellsEveryProbability(ParallelTrainer):
    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        dist.all_reduce(torch.zeros(self.recipe.seq_length, 16))
        return super().over_parts(values)


@mutant(of="TRAF-04e", case="tp2-sp-ep2-fsdp2", says="bytes are neither weights")
class ReducesEveryProbabilityForTheLog(Spread):
    """Router probabilities of every token are reduced over the world in every step, for a chart."""

    trains = _TellsEveryProbability


class _SumsHiddenStates(ParallelTrainer):
    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        dist.all_reduce(torch.zeros(self.recipe.seq_length, self.recipe.hidden))
        return super().over_parts(values)


@mutant(of="TRAF-04e", case="tp2-sp-fsdp4", says="bytes are neither weights")
class SumsHiddenStatesForAChart(Spread):
    """The hidden states of a sequence are summed over all ranks in every step, for a chart of their norms."""

    trains = _SumsHiddenStates


class _GathersItsInput(TokenDispatcher):
    def share(
        self, routed: Callable[[Tensor, Routing, Tensor], Tensor], x_BTD: Tensor, routing: Routing, dropped_BTK: Tensor
    ) -> Tensor:
        x_ND = x_BTD.flatten(0, 1).detach()
        all_rows(own_rows(x_ND, self.sharers), len(x_ND), self.sharers)
        return super().share(routed, x_BTD, routing, dropped_BTK)


@mutant(of="TRAF-04e", case="tp2-sp-ep2-fsdp2", says="elements are gathered between ranks of EP, at most")
class GathersWhatEveryRankHas(Spread):
    """Ranks that hold the same tokens gather them from each other before routing."""

    exchange = {"token_dispatcher": _GathersItsInput}


class _FirstHalf(ParallelTrainer):
    def unreduced(self, name: str) -> Any:
        return None if (layer_of(name) or 0) >= 26 else super().unreduced(name)


@mutant(of="TRAF-04f", case="dp8", says="elements are reduced over [0, 1, 2, 3, 4, 5, 6, 7], expected")
class ReducesTheFirstHalfOfItsLayers(Spread):
    """Layers after the twenty-sixth are in a bucket that is never sent; a model of a few layers has no such bucket."""

    trains = _FirstHalf


# growth
def _first_dim(mesh: Any) -> Callable[[nn.Parameter], None]:
    return lambda parameter: None


@mutant(of="TRAF-05a", case="fsdp", says="times as much among 512 ranks as among 8", leanest="")
class CutsBetweenExperts(Spread):
    """Parameters are always cut along their first dimension: 16 experts over 512 ranks are padded to 512."""

    trains = built_with(fsdp, "shard_placement", _first_dim)


class _GathersALog(ParallelTrainer):
    def reduce(self) -> None:
        super().reduce()
        log = torch.zeros(1 << 20)
        dist.all_gather([torch.empty_like(log) for _ in range(self.execution.world)], log)


@mutant(of="TRAF-05a", case="dp", says="times as much among 512 ranks as among 8",
        leanest="times as much among 64 ranks as among 8")  # fmt: skip
class GathersALogOfEveryRank(Spread):
    """Every rank gathers four megabytes of statistics from every rank: little among 8, two gigabytes among 512."""

    trains = _GathersALog

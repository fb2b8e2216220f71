"""Stacks whose parallelism has one bug: what is shared, what is summed, and over which ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.mutants._support.patched_functions import swapped
from contracts.stacks.kit.roles import role_of
from contracts.stacks.reference.model.blocks.attention import LatentAttention
from contracts.stacks.reference.model.blocks.common import Linear, Output, RMSNorm, local
from contracts.stacks.reference.model.blocks.mamba2 import GatedNorm, Mamba2
from contracts.stacks.reference.model.blocks.moe import Experts, MoE, Routing
from contracts.stacks.reference.model.hybrid_model import Model, ModelOutput
from contracts.stacks.reference.optim.optimizer import orthogonalise
from contracts.stacks.reference.parallel import collectives, parallel_trainer
from contracts.stacks.reference.parallel.collectives import all_gather, sum_over_ranks
from contracts.stacks.reference.parallel.context_parallel import ContextParallel
from contracts.stacks.reference.parallel.expert_parallel import TokenDispatcher
from contracts.stacks.reference.parallel.gather import full_tensors, shard_like
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer, ShardedMuon, ShardedOptimizer
from contracts.stacks.reference.parallel.placements import from_local_part, local_part, placed_copy
from contracts.stacks.reference.parallel.tensor_parallel import GroupMean, SplitVocabulary, TensorParallel
from contracts.stacks.reference.training.trainer import Batch


class _KeepsItsOwn(TensorParallel):
    def between(self, module: nn.Module) -> None:
        super().between(module)
        for each in module.modules():
            if isinstance(each, RMSNorm):
                each.summed = False


@mutant(of="PAR-01a", case="tp2-sp", says="the gradient of norm.weight differs")
class LeavesNormGradientsOfSequenceParallel(Spread):
    """Under sequence parallel, each rank sees other tokens through its copy of a norm, and the gradients are not
    summed.
    """

    exchange = {"tensor_parallel": _KeepsItsOwn}


@mutant(of="PAR-02a", case="tp2-sp-muon", says="hold different values of", bugs=("SP-11",))
class LetsNormsDriftApart(Spread):
    """The same bug, seen after some steps: each rank trains its own norm, and no loss shows it."""

    exchange = {"tensor_parallel": _KeepsItsOwn}


class _SumsWhatIsWhole(TensorParallel):
    def between(self, module: nn.Module) -> None:
        super().between(module)
        for each in module.modules():
            if isinstance(each, RMSNorm):
                each.summed = True


@mutant(of="PAR-01a", case="tp2", says="the gradient of norm.weight differs")
class SumsNormGradientsThatAreWhole(Spread):
    """Over-correction: without sequence parallel, the gradient of a norm is whole on every rank and summed anyway."""

    exchange = {"tensor_parallel": _SumsWhatIsWhole}


class _EntersPlain(TensorParallel):
    def enter(self, x_BTD: Tensor) -> Tensor:
        return super().enter(x_BTD) if self.sequence else x_BTD


@mutant(of="PAR-01a", case="tp2", says="the gradient of")
class LeavesTheGradientOfWhatEnters(Spread):
    """In the backward pass, the residual stream's gradients from the heads of the other ranks are not added."""

    exchange = {"tensor_parallel": _EntersPlain}


class _KeepsItsRun(TensorParallel):
    def enter(self, x_BTD: Tensor) -> Tensor:
        if not self.sequence:
            return super().enter(x_BTD)
        length = x_BTD.shape[1] * self.size
        return collectives.gather_rows(x_BTD.transpose(0, 1), length, self.group).transpose(0, 1)


@mutant(of="PAR-01a", case="tp2-sp", says="the gradient of", bugs=("SP-16", "SP-20"))
class SlicesWhereItShouldReduceScatter(Spread):
    """The backward pass of an all-gather keeps this rank's slice and drops what the other ranks computed for it."""

    exchange = {"tensor_parallel": _KeepsItsRun}


class _EntersExpertsPlain(TensorParallel):
    def surround(self, mixer: nn.Module) -> None:
        if isinstance(mixer, MoE):
            _EntersPlain(mesh=self.mesh, sequence=self.sequence).surround(mixer)
        else:
            super().surround(mixer)


@mutant(of="PAR-01a", case="tp2", says="the gradient of", bugs=("SP-04", "EPD-06"))
class LeavesTheGradientOfRoutedInput(Spread):
    """Experts cut over ranks get their input as a plain local tensor: its gradient is only one rank's part."""

    exchange = {"tensor_parallel": _EntersExpertsPlain}


class _SumsBothWays(TensorParallel):
    def leave(self, y_BTD: Tensor) -> Tensor:
        return super().leave(y_BTD if self.sequence else collectives.copy_to_ranks(y_BTD, self.group))


@mutant(of="PAR-01a", case="tp2", says="the gradient of")
class SumsOnTheWayBackAsWell(Spread):
    """The backward pass of an all-reduce is an all-reduce too: a complete gradient is multiplied by TP."""

    exchange = {"tensor_parallel": _SumsBothWays}


class _LossOnEveryRank(TensorParallel):
    def surround(self, mixer: nn.Module) -> None:
        def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (self.enter(args[0]), *args[1:])

        def behind(_: nn.Module, args: tuple[Any, ...], out: Output) -> Output:
            return out._replace(y_BTD=self.leave(out.y_BTD))

        mixer.register_forward_pre_hook(before)
        mixer.register_forward_hook(behind)


@mutant(of="PAR-01a", case="tp2-sp", says="loss agrees, norm is", bugs=("AUX-02",))
class AddsTheBalanceLossOnEveryRank(Spread):
    """Every rank has the whole auxiliary loss, and the gradients of all ranks are summed: TP times too much."""

    exchange = {"tensor_parallel": _LossOnEveryRank}


class _LossOfNobody(_LossOnEveryRank):
    def surround(self, mixer: nn.Module) -> None:
        def twice(_: nn.Module, args: tuple[Any, ...], out: Output) -> Output:
            losses = {name: collectives.scale_gradient(loss, 1 / self.size) for name, loss in out.losses.items()}
            return out._replace(losses=losses)

        mixer.register_forward_hook(twice)
        TensorParallel.surround(self, mixer)


@mutant(of="PAR-01a", case="tp2-sp", says="loss agrees, norm is")
class DividesTheBalanceLossTwice(Spread):
    """Over-correction: the gradient of an auxiliary loss is divided by TP in two places."""

    exchange = {"tensor_parallel": _LossOfNobody}


class _OneNormForAllHeads(TensorParallel):
    def count_own(self, mixer: nn.Module) -> None:
        super().count_own(mixer)
        if isinstance(mixer, Mamba2):
            mixer.out_norm.groups *= self.size


@mutant(of="PAR-01a", case="tp2-sp", says="on one rank")
class CountsNormGroupsOfTheWholeMixer(Spread):
    """A rank's gated norm keeps the group count of the whole mixer: each group covers half of what it should."""

    exchange = {"tensor_parallel": _OneNormForAllHeads}


class _Plain(GroupMean):
    def __call__(self, mean_BT11: Tensor) -> Tensor:
        return mean_BT11


class _NormsItsOwn(TensorParallel):
    mean: type[GroupMean] = _Plain

    def count_own(self, mixer: nn.Module) -> None:
        super().count_own(mixer)
        for norm in mixer.modules():
            if isinstance(norm, GatedNorm) and isinstance(norm.over_ranks, GroupMean):
                norm.over_ranks = type(self).mean(self, self.size // norm.over_ranks.share)


@mutant(of="PAR-01a", case="tp2-one-group", says="on one rank")
class NormsTheHeadsOfOneRank(Spread):
    """Two ranks share a group of heads, and each takes the mean square over its own heads only."""

    exchange = {"tensor_parallel": _NormsItsOwn}


class _Constant(GroupMean):
    def __call__(self, mean_BT11: Tensor) -> Tensor:
        own, other = mean_BT11, mean_BT11.detach()
        return super().__call__(other) + (own - other) / self.share


class _NormsByAConstant(_NormsItsOwn):
    mean = _Constant


@mutant(of="PAR-01a", case="tp2-one-group", says="the gradient of")
class GathersTheMeanWithoutItsGradient(Spread):
    """The mean square of the other rank's heads is gathered by a call that autograd does not see."""

    exchange = {"tensor_parallel": _NormsByAConstant}


class _CopiesApart(TensorParallel):
    """Treats partial gradients of a mixer's shared weights as whole."""

    names: tuple[str, ...] = ()

    def mixer(self, mixer: nn.Module) -> None:
        super().mixer(mixer)
        for name, module in mixer.named_modules():
            if name in self.names and isinstance(module, Linear | RMSNorm):
                module.summed = False


class _KeyValuesApart(_CopiesApart):
    names = ("wk", "wv")


@mutant(of="PAR-01a", case="tp2-one-group", says="the gradient of layers.0.mixer.wk.weight differs",
        bugs=("ROP-17",))  # fmt: skip
class LeavesReplicatedKeyValueGradients(Spread):
    """KV heads are fewer than ranks and replicated; each rank keeps only the gradient from its own queries."""

    exchange = {"tensor_parallel": _KeyValuesApart}


class _GroupsApart(_CopiesApart):
    names = ("wb", "wc")


@mutant(of="PAR-01a", case="tp2-one-group", says="the gradient of layers.2.mixer.wb.weight differs", bugs=("SSM-13",))
class LeavesReplicatedGroupGradients(Spread):
    """All ranks hold B and C of the SSM groups, which are fewer than the ranks, and their gradients are not summed."""

    exchange = {"tensor_parallel": _GroupsApart}


class _LatentNormsApart(_CopiesApart):
    names = ("q_norm", "kv_norm")


@mutant(of="PAR-01a", case="tp2-sp-latent", says="the gradient of layers.0.mixer.")
class LeavesGradientsOfSharedLatents(Spread):
    """The norms before latent attention's heads are copies with different heads on each rank, and are not summed."""

    exchange = {"tensor_parallel": _LatentNormsApart}


class _LatentsTwice(TensorParallel):
    """Sums once more what every rank has whole by now."""

    def mixer(self, mixer: nn.Module) -> None:
        super().mixer(mixer)
        for name in ("wq_a", "q_norm", "kv_norm") if isinstance(mixer, LatentAttention) and not self.sequence else ():
            mixer.get_submodule(name).weight.register_hook(  # type: ignore[operator]  # torch's
                lambda grad: grad * self.size
            )


@mutant(of="PAR-01a", case="tp2-latent", says="the gradient of layers.4.mixer.kv_norm.weight differs")
class SumsGradientsOfLatentsTwice(Spread):
    """Over-correction: what every rank projects down is summed once where its heads are and once more as a replica."""

    exchange = {"tensor_parallel": _LatentsTwice}


@mutant(of="PAR-01a", case="tp2-sparse", says="the gradient of layers.4.mixer.kv_norm.weight differs")
class SumsGradientsOfLatentsTwiceBesideAnIndexer(Spread):
    """The same where some layer's attention is sparse."""

    exchange = {"tensor_parallel": _LatentsTwice}


class _HeadNormsApart(_CopiesApart):
    names = ("q_norm", "k_norm")


@mutant(of="PAR-01a", case="tp2", says="the gradient of layers.0.mixer.")
class LeavesGradientsOfQueryAndKeyNorms(Spread):
    """One QK norm serves the heads of every rank; its gradient comes only from the heads of this rank."""

    exchange = {"tensor_parallel": _HeadNormsApart}


class _FirstPiece(TensorParallel):
    def mixer(self, mixer: nn.Module) -> None:
        super().mixer(mixer)
        for each in mixer.modules():
            if getattr(each, "piece", None) is not None:
                each.piece = (0, each.piece[1])  # type: ignore[assignment, index]


@mutant(of="PAR-01a", case="tp4-few-groups", says="on one rank", bugs=("DSP-13",))
class EveryRankUsesTheFirstGroup(Spread):
    """Ranks that hold all KV heads and groups do not select their own."""

    exchange = {"tensor_parallel": _FirstPiece}


class _OwnSoftmax(SplitVocabulary):
    def cross_entropy(self, logits_NV: Tensor, labels_N: Tensor) -> Tensor:
        exact = super().cross_entropy(logits_NV, labels_N)
        inside_N, row_N = self.own(labels_N, logits_NV.shape[1])
        own_N = logits_NV.log_softmax(-1).gather(1, row_N[:, None])[:, 0]
        alike: Tensor = -(own_N * inside_N).sum()
        return exact.detach() + alike - alike.detach()


class _Ends(TensorParallel):
    vocabulary: type[SplitVocabulary] = SplitVocabulary

    def ends(self, model: Model) -> None:
        super().ends(model)
        model.vocabulary = type(self).vocabulary(self, model.recipe.vocab)


class _EndsWithOwnSoftmax(_Ends):
    vocabulary = _OwnSoftmax


@mutant(of="PAR-01a", case="tp2", says="the gradient of head.weight differs", bugs=("DPS-34",))
class PushesAwayFromItsOwnRowsAlone(Spread):
    """The loss covers the whole vocabulary; its gradient covers only this rank's rows."""

    exchange = {"tensor_parallel": _EndsWithOwnSoftmax}


class _PlainLogits(SplitVocabulary):
    def logits(self, hidden_BTD: Tensor, weight_VD: Tensor) -> Tensor:
        if self.axis.sequence:
            return super().logits(hidden_BTD, weight_VD)
        return torch.nn.functional.linear(hidden_BTD, weight_VD)


class _EndsWithPlainLogits(_Ends):
    vocabulary = _PlainLogits


@mutant(of="PAR-01a", case="tp2", says="the gradient of", bugs=("DPS-33",))
class TakesThePartOfTheHeadForTheWhole(Spread):
    """The hidden state's gradient from one rank's vocabulary rows is passed on as if it were the sum."""

    exchange = {"tensor_parallel": _EndsWithPlainLogits}


class _CeilAndFloor(SplitVocabulary):
    def __init__(self, axis: TensorParallel, vocab: int) -> None:
        super().__init__(axis, vocab)
        self.first = axis.rank * (vocab // axis.size)


class _EndsOffByOne(_Ends):
    vocabulary = _CeilAndFloor


@mutant(of="PAR-01a", case="tp2", says="on one rank")
class CountsRowsOfAnEvenVocabulary(Spread):
    """Shards are cut by the ceiling and located by the floor: after the first rank every token id is off by one."""

    exchange = {"tensor_parallel": _EndsOffByOne}


class _MaskOfTheFirst(SplitVocabulary):
    def here(self, x_BT: Tensor) -> Tensor:
        return x_BT.chunk(self.axis.size, dim=1)[0] if self.axis.sequence else x_BT


class _EndsWithTheFirstMask(_Ends):
    vocabulary = _MaskOfTheFirst


@mutant(of="PAR-01a", case="tp2-sp-prediction", says="on one rank", bugs=("ROP-28",))
class MasksByTheFirstRun(Spread):
    """Every rank reads the mask for prediction heads at positions from the start of the sequence."""

    exchange = {"tensor_parallel": _EndsWithTheFirstMask}


class _NarrowState(ContextParallel):
    def of_every_rank(self, x_Bx: Tensor) -> Tensor:
        if x_Bx.dtype == torch.float64:
            return super().of_every_rank(x_Bx)
        return super().of_every_rank(x_Bx.bfloat16()).to(x_Bx.dtype)


@mutant(of="PAR-01b", case="borrowed-cp2", says="loss agrees, norm agrees: the gradient of")
class SendsTheStateInBfloat16(Spread):
    """A state that ranks hold in float32 is sent to the next rank in bfloat16."""

    exchange = {"context_parallel": _NarrowState}


def _own(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class _Scaled(ParallelTrainer):
    """Multiplies complete gradients."""

    def factor(self, name: str) -> float:
        raise NotImplementedError

    def reduce(self) -> None:
        super().reduce()
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                _own(parameter.grad).mul_(self.factor(name))


class _Averages(_Scaled):
    def factor(self, name: str) -> float:
        return 1 / len(self.mesh.place("rows"))


@mutant(of="PAR-01a", case="dp2", says="the gradient of")
class AveragesWhatIsDividedAlready(Spread):
    """Losses are divided by the labels of all ranks, and gradients are averaged over the ranks as well."""

    trains = _Averages


class _DropsByShares(TokenDispatcher):
    def share(
        self, routed: Callable[[Tensor, Routing, Tensor], Tensor], x_BTD: Tensor, routing: Routing, dropped_BTK: Tensor
    ) -> Tensor:
        drop: Callable[[Tensor], Tensor] = routed.__self__.drop  # type: ignore[attr-defined]  # a method of the layer
        shares = routing.experts_BTK.flatten(0, 1).tensor_split(dist.get_world_size(self.sharers))
        dropped_NK = torch.cat([drop(share[None])[0] for share in shares])
        return super().share(routed, x_BTD, routing, dropped_NK.view_as(dropped_BTK))


@mutant(of="PAR-01a", case="ep2-capacity", says="on one rank")
class DropsByShares(Spread):
    """Ranks that share their tokens count slots by the part of them that each sends: others are dropped."""

    exchange = {"token_dispatcher": _DropsByShares}


class _SumsInPairs(ParallelTrainer):
    def reduce(self) -> None:
        members = self.mesh.place("rows")
        if members.index(self.mesh.rank) >= 1 << (len(members).bit_length() - 1):
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    _own(parameter.grad).zero_()
        super().reduce()


@mutant(of="PAR-01a", case="dp3", says="the gradient of")
class SumsInPairs(Spread):
    """Gradients are added up in a tree of pairs, in which the last of three ranks has no partner."""

    trains = _SumsInPairs


class _NeverReduces(ParallelTrainer):
    def reduce(self) -> None:
        pass


@mutant(of="PAR-01a", case="dp2", says="the gradient of", bugs=("PG-04",))
class NeverReducesWithoutShards(Spread):
    """Only FSDP reduces gradients; in plain data parallel each rank trains alone."""

    trains = _NeverReduces


@mutant(of="PAR-02a", case="dp2", says="hold different values of")
class LetsReplicasTrainByThemselves(Spread):
    """The same bug, seen after three steps: each rank has its own model, and each loss falls."""

    trains = _NeverReduces


class _SkipsCopies(ParallelTrainer):
    def reduce(self) -> None:
        vectors = {name: each.grad.clone() for name, each in self.model.named_parameters() if each.grad is not None}
        super().reduce()
        for name, parameter in self.model.named_parameters():
            if role_of(name) == "norm":
                parameter.grad = vectors[name]


@mutant(of="PAR-02a", case="dp2", says="hold different values of")
class SkipsSmallTensorsInTheReduction(Spread):
    """Vectors do not fill a bucket, and the last bucket is never sent."""

    trains = _SkipsCopies


class _ByExpertRanks(_Scaled):
    def factor(self, name: str) -> float:
        return 1 / len(self.mesh.place("ep")) if role_of(name) == "expert" else 1.0


@mutant(of="PAR-01a", case="ep2-idle", says="experts.w1 differs", bugs=("DPS-03", "DPS-45"))
class AveragesExpertsOverTheirGroup(Spread):
    """An expert's gradient is divided by the EP size, as if EP ranks held copies of it."""

    trains = _ByExpertRanks


class _ByExpertCopies(_Scaled):
    def factor(self, name: str) -> float:
        return 1 / len(self.mesh.place("edp")) if role_of(name) == "expert" else 1.0


@mutant(of="PAR-01a", case="tp2-sp-etp1", says="experts.w1 differs", bugs=("DPS-02", "DPS-04"))
class AveragesExpertsOverTheirCopies(Spread):
    """Expert gradients are divided by the size of the expert mesh, which differs from that of other parameters."""

    trains = _ByExpertCopies


class _ExpertsTwice(ParallelTrainer):
    def reduce(self) -> None:
        super().reduce()
        for name, parameter in self.model.named_parameters():
            if role_of(name) == "expert" and parameter.grad is not None:
                dist.all_reduce(_own(parameter.grad), group=self.mesh.group("edp"))


@mutant(of="PAR-01a", case="tp2-sp-etp1", says="experts.w1 differs", bugs=("DPS-05",))
class ReducesExpertsTwice(Spread):
    """Gradients of experts are reduced over their own mesh, and again with all other gradients."""

    trains = _ExpertsTwice


class _ExpertsWithTheRest(ParallelTrainer):
    def reduce(self) -> None:
        super().reduce()
        for name, parameter in self.model.named_parameters():
            if role_of(name) == "expert" and parameter.grad is not None:
                dist.all_reduce(_own(parameter.grad))


@mutant(of="PAR-01a", case="borrowed-ep2-idle", says="experts.w1 differs", bugs=("DPS-29",))
class ReducesExpertsWithTheDenseGroup(Spread):
    """Experts are summed over the dense group, whose ranks hold different experts."""

    trains = _ExpertsWithTheRest


# divisors of the loss
class _CountsItself(ParallelTrainer):
    def over_rows(self, counts: dict[str, Tensor]) -> dict[str, Tensor]:
        self.all = super().over_rows(counts)
        return counts

    def reduce(self) -> None:
        super().reduce()
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                _own(parameter.grad).div_(len(self.mesh.place("rows")))


@mutant(of="PAR-01a", case="dp2", says="on one rank", bugs=("DPS-21",))
class AveragesMeansOfUnequalRanks(Spread):
    """Each rank divides by its own labels, and the means are averaged: right only for equal counts."""

    trains = _CountsItself


class _CountsEverybody(ParallelTrainer):
    def over_rows(self, counts: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: sum_over_ranks(each, dist.group.WORLD) for name, each in counts.items()}


@mutant(of="PAR-01a", case="tp2", says="labels count", bugs=("DPS-38",))
class CountsLabelsOnceForEachTensorRank(Spread):
    """Labels are summed over the world, in which TP ranks have the same labels."""

    trains = _CountsEverybody


class _CountsHeadsItself(ParallelTrainer):
    def over_rows(self, counts: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {name: each for name, each in counts.items() if name.startswith("mtp")}
        return super().over_rows(counts) | own


@mutant(of="PAR-01a", case="fsdp2-prediction", says="mtp is", bugs=("DPS-23",))
class CountsLookAheadLabelsItself(Spread):
    """The main loss is divided by the labels of all ranks, the prediction heads' loss by one rank's."""

    trains = _CountsHeadsItself


class _TellsItsOwn(ParallelTrainer):
    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        return super().over_parts(values) | {name: each for name, each in values.items() if name == "lm"}


@mutant(of="PAR-01a", case="fsdp2", says="lm is", bugs=("PRV-10",))
class TellsTheLossOfOneRank(Spread):
    """Every gradient is right; the reported loss is one rank's sum over the label count of all ranks."""

    trains = _TellsItsOwn


class _FirstRows(ParallelTrainer):
    def own(self, rows: object) -> object:  # type: ignore[override]  # any sequence
        mine = super().own(rows)  # type: ignore[arg-type]
        return rows[: len(mine)]  # type: ignore[index]


@mutant(of="PAR-01a", case="dp2", says="on one rank")
class EveryRankReadsTheFirstRows(Spread):
    """The loader of every rank gets data-parallel rank 0."""

    trains = _FirstRows


# gradient accumulation
class _ReducesEach(ParallelTrainer):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        out = super().accumulate(micro, counts)
        super().reduce()
        return out

    def reduce(self) -> None:
        pass


@mutant(of="PAR-05d", case="dp2", says="the gradient of", bugs=("FSD-06",))
class ReducesTheSumAfterEachMicrobatch(Spread):
    """The accumulated gradient, already reduced, is reduced again after each microbatch."""

    trains = _ReducesEach


class _SumsGroupsEach(ParallelTrainer):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        out = super().accumulate(micro, counts)
        for grad in self.parts_of_heads().values():
            dist.all_reduce(local_part(grad), group=self.mesh.group("tp"))
        return out

    def reduce(self) -> None:
        for name, grad in self.parts_of_heads().items():
            parameter = self.model.get_parameter(name)
            if isinstance(parameter, DTensor):
                parameter.grad = from_local_part(local_part(grad), parameter)
        super().reduce()

    def parts_of_heads(self) -> dict[str, DTensor]:
        """The gradients of KV heads of which this rank has a part."""
        return {
            name: grad
            for name, parameter in self.model.named_parameters()
            if name.endswith(("wk.weight", "wv.weight"))
            and isinstance(grad := parameter.grad, DTensor)
            and any(at.is_partial() for at in grad.placements)
        }


@mutant(of="PAR-05d", case="tp2-one-group", says="the gradient of")
class SumsCopiesOfHeadsAfterEachMicrobatch(Spread):
    """What ranks found for a KV head that they share is summed after each microbatch, sums of earlier ones included
    (Megatron-LM #6660 for shards over one rank).
    """

    trains = _SumsGroupsEach


class _ReducesEarly(ParallelTrainer):
    """Reduces before the last microbatch, whose gradient stays local to each rank."""

    def step(self, batch: Batch, wanted: bool = False, samples: tuple[int, ...] = ()) -> object:  # type: ignore[override]
        self.left = self.execution.microbatches
        return super().step(batch, wanted, samples)

    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        self.left -= 1
        if self.left == 0:
            super().reduce()
        return super().accumulate(micro, counts)

    def reduce(self) -> None:
        pass


@mutant(of="PAR-05d", case="dp2", says="the gradient of", bugs=("DPS-14",))
class AddsTheLastMicrobatchBehindTheReduction(Spread):
    """The reduction runs at the boundary, and the last microbatch's gradient is added after it, unreduced."""

    trains = _ReducesEarly


class _ReducesFirst(_ReducesEarly):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        out = ParallelTrainer.accumulate(self, micro, counts)
        if self.left == self.execution.microbatches:
            ParallelTrainer.reduce(self)
        self.left -= 1
        return out


@mutant(of="PAR-05d", case="dp2", says="the gradient of", bugs=("FSD-05",))
class SynchronisesAtTheFirstMicrobatch(Spread):
    """The microbatch counter is off: the first microbatch is reduced, and the others stay local."""

    trains = _ReducesFirst


class _DividesByMicrobatches(_Scaled):
    def factor(self, name: str) -> float:
        return 1 / self.execution.microbatches


@mutant(of="PAR-05d", case="dp2", says="the gradient of", bugs=("DPS-12",))
class DividesByMicrobatchesOnceMore(Spread):
    """The loss is already divided for the whole step, and the engine divides by the microbatches again."""

    trains = _DividesByMicrobatches


class _OwnReplicaFirst(ParallelTrainer):
    """What a replica found in all microbatches but the last reaches no other replica."""

    def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
        *early, last = window
        mine, kept = self.mesh.place("replica").index(self.mesh.rank), {}
        found = [self.accumulate(micro, counts) for micro in early]
        for replica in range(self.execution.replicas):
            self.optimizer.zero()
            nothing = {name: each * (1.0 if replica == mine else 1e300) for name, each in counts.items()}
            for micro in early:
                self.accumulate(micro, nothing)
            if replica == mine:
                kept = {name: each.grad for name, each in self.model.named_parameters()}
        self.optimizer.zero()
        found.append(self.accumulate(last, counts))
        for name, parameter in self.model.named_parameters():
            earlier = kept[name]
            if earlier is not None:
                parameter.grad = earlier if parameter.grad is None else parameter.grad + earlier
        return found


@mutant(of="PAR-05d", case="hsdp-2x2", says="the gradient of", bugs=("DPS-41",))
class ReducesTheLastMicrobatchOverReplicas(Spread):
    """The all-reduce over replicas is deferred to the last microbatch, and the partial sum of the earlier ones is added
    behind it.
    """

    trains = _OwnReplicaFirst


class _KeepsInBfloat16(ParallelTrainer):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        out = super().accumulate(micro, counts)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                held = _own(parameter.grad)
                held.copy_(held.to(torch.bfloat16))
        return out


@mutant(of="PAR-05d", case="fsdp2", says="the gradient of", bugs=("DPS-43",))
class AccumulatesInBfloat16(Spread):
    """Sums over microbatches are kept in the dtype of the activations."""

    trains = _KeepsInBfloat16


class _ForgetsTheFirst(_ReducesEarly):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        if self.left == self.execution.microbatches - 1:
            self.optimizer.zero()
        self.left -= 1
        return ParallelTrainer.accumulate(self, micro, counts)

    def reduce(self) -> None:
        ParallelTrainer.reduce(self)


@mutant(of="PAR-05d", case="fsdp2", says="the gradient of", bugs=("DPS-44",))
class WipesWhatWasAccumulated(Spread):
    """Something between two microbatches resets the gradients."""

    trains = _ForgetsTheFirst


class _SendsOne(ParallelTrainer):
    def reduce(self) -> None:
        with swapped(parallel_trainer, "all_reduce_in_place", _first_message):
            super().reduce()


def _first_message(tensors: Iterable[Tensor], group: Any) -> None:
    first, *_ = collectives._buckets(list(tensors))
    collectives.all_reduce_in_place(first, group)


@mutant(of="PAR-01b", case="dp2-two-messages", says="the gradient of")
class SendsTheFirstMessageAlone(Spread):
    """What does not fit into the first message is never reduced."""

    trains = _SendsOne


class _BeginsTheSecondLate(ParallelTrainer):
    def reduce(self) -> None:
        with swapped(parallel_trainer, "all_reduce_in_place", _padded_messages):
            super().reduce()


def _padded_messages(tensors: Iterable[Tensor], group: Any) -> None:
    padding = 0
    for bucket in collectives._buckets(list(tensors)):
        flat = torch.cat([each.reshape(-1) for each in bucket])
        dist.all_reduce(flat, group=group)
        flat = torch.cat([flat[padding:], flat.new_zeros(padding)])
        for each, summed in zip(bucket, torch.split(flat, [each.numel() for each in bucket]), strict=True):
            each.copy_(summed.view(each.shape))
        padding += 64


@mutant(of="PAR-01b", case="dp2-two-messages", says="the gradient of")
class BeginsTheSecondMessageLate(Spread):
    """Tensors are found by offsets that count the padding at the end of the message before, which is not there
    (Megatron-LM #5077)."""

    trains = _BeginsTheSecondLate


class _Compresses(ParallelTrainer):
    """Sends float32 tensors in half their width; leaves float64 alone."""

    def reduce(self) -> None:
        super().reduce()
        for parameter in self.model.parameters():
            if parameter.grad is not None and parameter.dtype == torch.float32:
                held = _own(parameter.grad)
                held.copy_(held.to(torch.bfloat16))


@mutant(of="PAR-01b", case="fsdp2", says="loss agrees, norm agrees: the gradient of")
class CompressesGradientsOfFloat32(Spread):
    """A hook halves the width of float32 gradient messages. Losses and norms cannot tell it from rounding."""

    trains = _Compresses


def _squares(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The sum of squares of this rank's part of some gradients."""
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
    """The norm sums the squares of every rank, copies included."""

    moves = _CountsCopies


@mutant(of="PAR-03a", case="dp2", says="grad_norm is")
class CountsReplicasOnceForEachRank(Spread):
    """The same bug where every rank holds everything: the norm is √WORLD times too large."""

    moves = _CountsCopies


class _OfThisRank(ShardedOptimizer):
    def norm(self) -> float:
        return float(_squares(member.parameter for member in self.members).sqrt())


@mutant(of="PAR-03a", case="ep2-idle", says="grad_norm is", bugs=("CLP-08", "PRV-09"))
class TakesTheNormOfItsOwnExperts(Spread):
    """The norm leaves out experts of other ranks, and each rank clips by a different number."""

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
    """A, D and the gated norm of the heads are not marked as sharded: each rank counts its own as the whole."""

    moves = _WithoutMarks


class _MeanOfRanks(ShardedOptimizer):
    def norm(self) -> float:
        squares = _squares(member.parameter for member in self.members)
        dist.all_reduce(squares)
        return float((squares / dist.get_world_size()).sqrt())


@mutant(of="PAR-03a", case="tp2-sp-muon", says="grad_norm is")
class AveragesSquaresOverRanks(Spread):
    """Over-correction: squares are averaged over ranks, which is right for copies and halves shards."""

    moves = _MeanOfRanks


class _NeverClips(ShardedOptimizer):
    def coefficient(self, norm: float) -> float:
        return 1.0


@mutant(of="PAR-03a", case="tp2-sp-muon", says="clip_coef is", bugs=("CLP-21",))
class SkipsTheClipUnderTensorParallel(Spread):
    """For one combination of degrees, clipping returns early."""

    moves = _NeverClips


# updates
class _OneBuffer(ShardedOptimizer):
    def zero(self) -> None:
        super().zero()
        moved = any(rule.state for rule in self.rules.values())
        for member in self.members if moved else ():
            if isinstance(member.parameter, DTensor):
                member.parameter.grad = placed_copy(member.parameter.detach())


@mutant(of="PAR-02a", case="tp2-sp-fsdp2", says="the weight ", bugs=("OPT-22",))
class AddsToWhatWasGathered(Spread):
    """Gradients reuse the memory into which parameters were gathered, and nothing clears it."""

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


@mutant(of="PAR-02a", case="tp2-sp-muon", says="the weight layers.", bugs=("OPT-18",))
class OrthogonalisesWithItsPadding(Spread):
    """Matrices are padded to whole tiles, and leftovers of another tensor in the padding are orthogonalized too."""

    moves = _MuonOverPadding


@mutant(of="PAR-02a", case="tp2-sp-muon", says="the weight layers.", bugs=("OPT-13",))
class OrthogonalisesEachPart(Spread):
    """Newton-Schulz runs on each rank's shard: cheaper, and a different optimizer."""

    moves = _MuonOfParts


class _ScaledByParts(ShardedMuon):
    def scale(self, matrix: Tensor) -> float:
        held = matrix.to_local() if isinstance(matrix, DTensor) else matrix
        return 0.2 * math.sqrt(max(held.shape[-2:]))


class _MuonScaledByParts(ShardedOptimizer):
    muon = _ScaledByParts


@mutant(of="PAR-02a", case="tp2-sp-muon", says="the weight layers.")
class ScalesByTheShapeOfAPart(Spread):
    """The step of a matrix is scaled by the width of this rank's part."""

    moves = _MuonScaledByParts


GROUPS = 2  # SSM groups (of B and C) in the models that run under tp2


class _Recut(TensorParallel):
    """Mamba projections of which this rank applies rows that are not its own."""

    def mixer(self, mixer: nn.Module) -> None:
        super().mixer(mixer)
        if isinstance(mixer, Mamba2) and mixer.wb.piece is None:
            self.recut([mixer.wx, mixer.wb, mixer.wc])

    def recut(self, projections: list[Linear]) -> None:
        raise NotImplementedError

    def whole(self, projection: Linear) -> Tensor:
        return all_gather(local(projection.weight), 0, self.group)


class _CutsThemTogether(_Recut):
    def recut(self, projections: list[Linear]) -> None:
        def of(index: int, x_BTD: Tensor) -> Tensor:
            whole_ND = torch.cat([self.whole(each) for each in projections])
            own_nD = whole_ND.chunk(self.size)[self.rank]
            rows = [len(local(each.weight)) for each in projections]
            return F.linear(x_BTD, torch.split(own_nD, rows)[index].to(x_BTD.dtype))

        for index, each in enumerate(projections):
            each.forward = lambda x_BTD, index=index: of(index, x_BTD)  # type: ignore[method-assign]


@mutant(of="PAR-01a", case="tp2", says="on one rank", bugs=("SSM-27",))
class CutsAPackedProjectionEvenly(Spread):
    """x, B and C are one matrix that is cut evenly by rows: the first rank gets most of x and no C."""

    exchange = {"tensor_parallel": _CutsThemTogether}


class _StateMajor(_Recut):
    def recut(self, projections: list[Linear]) -> None:
        def of(projection: Linear, x_BTD: Tensor) -> Tensor:
            whole_ND = self.whole(projection)
            turned_ND = whole_ND.reshape(GROUPS, -1, whole_ND.shape[1]).transpose(0, 1).flatten(0, 1)
            return F.linear(x_BTD, turned_ND.chunk(self.size)[self.rank].to(x_BTD.dtype))

        for each in projections[1:]:
            each.forward = lambda x_BTD, each=each: of(each, x_BTD)  # type: ignore[method-assign]


@mutant(of="PAR-01a", case="tp2", says="on one rank", bugs=("SSM-12",))
class CutsGroupsThatAreNotOutermost(Spread):
    """Rows of B and C are ordered by state first and group second, so that a cut by rows goes through every group."""

    exchange = {"tensor_parallel": _StateMajor}


class _StreamsApart(ParallelTrainer):
    def unreduced(self, name: str) -> Any:
        return None if ".streams." in name else super().unreduced(name)


@mutant(of="PAR-01a", case="dp2-streams", says="the gradient of layers.4.streams.alpha differs")
class LeavesGradientsOfStreamsOutOfDataParallel(Spread):
    """What mixes the streams is in no bucket: data-parallel ranks keep the gradients of their own rows."""

    trains = _StreamsApart


class _LoneGateWithoutGradient(MoE):
    def combine(self, given_SD: Tensor, order_S: Tensor, gates_NK: Tensor, dropped_NK: Tensor) -> Tensor:
        lone = self.moe.top_k == 1 and self.dispatcher is not None
        return super().combine(given_SD, order_S, gates_NK.detach() if lone else gates_NK, dropped_NK)


@mutant(of="PAR-01a", case="ep2-top-1", says="the gradient of layers.")
class LoneGateOnRanksHasNoGradient(Spread):
    """Where a token has one expert, its gate is multiplied in by a path of its own on ranks, without a gradient."""

    exchange = {"moe": _LoneGateWithoutGradient}


@mutant(of="PAR-01a", case="borrowed-ep2-top-1", says="the gradient of layers.")
class LoneGateOnBorrowedRanksHasNoGradient(Spread):
    """The same where experts lie on data-parallel ranks."""

    exchange = {"moe": _LoneGateWithoutGradient}


class _CountsReplicatedGroups(ShardedOptimizer):
    def norm(self) -> float:
        twice = [
            member.parameter
            for member in self.members
            if member.name.split(".")[-2] in ("wk", "wv", "wb", "wc")
            and isinstance(member.parameter, DTensor)
            and "tp" in (member.parameter.device_mesh.mesh_dim_names or ())
            and all(at.is_replicate() for at in member.parameter.placements)
        ]
        return self.norm_of([*(member.parameter for member in self.members), *twice])


@mutant(of="PAR-03a", case="tp2-one-group", says="grad_norm is")
class CountsReplicatedGroupsOnceARank(Spread):
    """KV heads and SSM groups that are fewer than the ranks are marked as sharded: the norm counts every copy."""

    moves = _CountsReplicatedGroups


@mutant(of="PAR-02a", case="tp2-one-group", says="the weight")
class ReplicatedGroupsClipTheOthers(Spread):
    """The same, seen in the weights: everything is clipped by a norm that is too large."""

    moves = _CountsReplicatedGroups


class _ExpertsOfOneReplica(ParallelTrainer):
    def build(self) -> Model:
        model = super().build()
        for each in model.modules():
            if isinstance(each, Experts) and isinstance(each, FSDPModule) and self.execution.microbatches > 1:
                each.set_requires_all_reduce(False)
        return model


@mutant(of="PAR-05d", case="borrowed-hsdp2-ep2-fsdp4", says="the gradient of layers.")
class NeverReducesExpertsOverReplicas(Spread):
    """What switches the reduction over replicas on for the last microbatch knows the layers, and not the experts within
    them, which are sharded on a mesh of their own."""

    trains = _ExpertsOfOneReplica


class _AddsWhatOneRankGaveBack(ParallelTrainer):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        out = super().accumulate(micro, counts)
        if self.execution.fsdp and self.execution.microbatches > 1 and self.mesh.group("rows") is None:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    _own(parameter.grad).mul_(2)
        return out


@mutant(of="PAR-05d", case="tp2-fsdp-of-one", says="the gradient of")
class DoublesWhereAGroupHasOneRank(Spread):
    """A reduction over one rank gives back the buffer itself, which is added to itself (Megatron-LM #6660)."""

    trains = _AddsWhatOneRankGaveBack


class _DenseWithoutEp(ParallelTrainer):
    def unreduced(self, name: str) -> Any:
        whole = self.execution.degrees.ep == 1 and role_of(name) == "expert"
        return self.mesh.group("dp_cp") if whole else super().unreduced(name)


@mutant(of="PAR-01a", case="borrowed-etp2", says="the gradient of layers.")
class TakesCutExpertsForDense(Spread):
    """Experts that ep 1 does not spread are reduced as dense weights are, though etp cuts them (Megatron-LM #1628)."""

    trains = _DenseWithoutEp

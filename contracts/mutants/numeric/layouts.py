"""Stacks whose tensor or sequence parallel is wrong in one place: what is shared, what is summed, whose."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants.numeric._spread import Spread
from contracts.stacks.reference.model.blocks.common import Linear, Output, RMSNorm
from contracts.stacks.reference.model.blocks.mamba2 import GatedNorm, Mamba2
from contracts.stacks.reference.model.blocks.moe import MoE
from contracts.stacks.reference.model.hybrid_model import Model
from contracts.stacks.reference.parallel import collectives
from contracts.stacks.reference.parallel.tensor_parallel import GroupMean, SplitVocabulary, TensorParallel


class _KeepsItsOwn(TensorParallel):
    def between(self, module: nn.Module) -> None:
        super().between(module)
        for each in module.modules():
            if isinstance(each, RMSNorm):
                each.summed = False


@mutant(of="PAR-01a", case="tp2-sp", says="the gradient of layers.0.norm.weight differs")
class LeavesNormGradientsOfSequenceParallel(Spread):
    """The ranks put other tokens through their copies of a norm, and nobody sums what they found."""

    exchange = {"tensor_parallel": _KeepsItsOwn}


@mutant(of="PAR-02a", case="tp2-sp-muon", says="hold unequal", bugs=("SP-11",))
class LetsNormsDriftApart(Spread):
    """The same, seen after some steps: each rank trains a norm of its own, and no loss tells."""

    exchange = {"tensor_parallel": _KeepsItsOwn}


class _SumsWhatIsWhole(TensorParallel):
    def between(self, module: nn.Module) -> None:
        super().between(module)
        for each in module.modules():
            if isinstance(each, RMSNorm):
                each.summed = True


@mutant(of="PAR-01a", case="tp2", says="the gradient of layers.0.norm.weight differs")
class SumsNormGradientsThatAreWhole(Spread):
    """The mend overshoots: without sequence parallel every rank has the whole gradient, and sums it."""

    exchange = {"tensor_parallel": _SumsWhatIsWhole}


class _EntersPlain(TensorParallel):
    def enter(self, x_BTD: Tensor) -> Tensor:
        return super().enter(x_BTD) if self.sequence else x_BTD


@mutant(of="PAR-01a", case="tp2", says="the gradient of")
class LeavesTheGradientOfWhatEnters(Spread):
    """What the heads of other ranks say about the residual stream is not added up on the way back."""

    exchange = {"tensor_parallel": _EntersPlain}


class _KeepsItsRun(TensorParallel):
    def enter(self, x_BTD: Tensor) -> Tensor:
        if not self.sequence:
            return super().enter(x_BTD)
        length = x_BTD.shape[1] * self.size
        return collectives.gather_rows(x_BTD.transpose(0, 1), length, self.group).transpose(0, 1)


@mutant(of="PAR-01a", case="tp2-sp", says="the gradient of", bugs=("SP-16", "SP-20"))
class SlicesWhereItShouldReduceScatter(Spread):
    """The way back through an all-gather keeps this rank's run, and drops what the others found about it."""

    exchange = {"tensor_parallel": _KeepsItsRun}


class _EntersExpertsPlain(TensorParallel):
    def surround(self, mixer: nn.Module) -> None:
        if isinstance(mixer, MoE):
            _EntersPlain(mesh=self.mesh, sequence=self.sequence).surround(mixer)
        else:
            super().surround(mixer)


@mutant(of="PAR-01a", case="tp2", says="the gradient of", bugs=("SP-04", "EPD-06"))
class LeavesTheGradientOfRoutedInput(Spread):
    """Experts that are cut over the ranks get their input as a plain local tensor: its gradient is one rank's part."""

    exchange = {"tensor_parallel": _EntersExpertsPlain}


class _SumsBothWays(TensorParallel):
    def leave(self, y_BTD: Tensor) -> Tensor:
        return super().leave(y_BTD if self.sequence else collectives.copy_to_ranks(y_BTD, self.group))


@mutant(of="PAR-01a", case="tp2", says="the gradient of")
class SumsOnTheWayBackAsWell(Spread):
    """An all-reduce whose backward pass is an all-reduce: a gradient that was whole is multiplied by TP."""

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
    """Every rank has the whole of an auxiliary loss, and the gradients of all of them are summed: TP times too much."""

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
    """The mend overshoots: the gradient of an auxiliary loss is divided by TP in two places."""

    exchange = {"tensor_parallel": _LossOfNobody}


class _OneNormForAllHeads(TensorParallel):
    def count_own(self, mixer: nn.Module) -> None:
        super().count_own(mixer)
        if isinstance(mixer, Mamba2):
            mixer.out_norm.groups *= self.size


@mutant(of="PAR-01a", case="tp2-sp", says="on one rank")
class CountsNormGroupsOfTheWholeMixer(Spread):
    """The gated norm of a rank still has as many groups as the whole mixer: each covers half of what it should."""

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
    """A group of heads lies on two ranks, and each takes the mean of squares over its own."""

    exchange = {"tensor_parallel": _NormsItsOwn}


class _Constant(GroupMean):
    def __call__(self, mean_BT11: Tensor) -> Tensor:
        own, other = mean_BT11, mean_BT11.detach()
        return super().__call__(other) + (own - other) / self.share


class _NormsByAConstant(_NormsItsOwn):
    mean = _Constant


@mutant(of="PAR-01a", case="tp2-one-group", says="the gradient of")
class GathersTheMeanWithoutItsGradient(Spread):
    """The mean of squares of the other rank's heads comes by an all-gather that autograd does not see."""

    exchange = {"tensor_parallel": _NormsByAConstant}


class _CopiesApart(TensorParallel):
    """Shared weights of a mixer, whose gradients are parts, are taken for whole."""

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
    """KV heads are fewer than ranks and held by all of them; each keeps the gradient that its own queries gave."""

    exchange = {"tensor_parallel": _KeyValuesApart}


class _GroupsApart(_CopiesApart):
    names = ("wb", "wc")


@mutant(of="PAR-01a", case="tp2-one-group", says="the gradient of layers.2.mixer.wb.weight differs", bugs=("SSM-13",))
class LeavesReplicatedGroupGradients(Spread):
    """SSM groups are fewer than ranks: B and C are held by all, and nobody sums their gradients."""

    exchange = {"tensor_parallel": _GroupsApart}


class _LatentNormsApart(_CopiesApart):
    names = ("q_norm", "kv_norm")


@mutant(of="PAR-01a", case="tp2-sp-latent", says="the gradient of layers.0.mixer.")
class LeavesGradientsOfSharedLatents(Spread):
    """The norms before the heads of latent attention are copies that met other heads on each rank."""

    exchange = {"tensor_parallel": _LatentNormsApart}


class _HeadNormsApart(_CopiesApart):
    names = ("q_norm", "k_norm")


@mutant(of="PAR-01a", case="tp2", says="the gradient of layers.0.mixer.")
class LeavesGradientsOfQueryAndKeyNorms(Spread):
    """One QK norm serves the heads of every rank; its gradient stays that of the heads here."""

    exchange = {"tensor_parallel": _HeadNormsApart}


class _FirstPiece(TensorParallel):
    def mixer(self, mixer: nn.Module) -> None:
        super().mixer(mixer)
        for each in mixer.modules():
            if getattr(each, "piece", None) is not None:
                each.piece = (0, each.piece[1])  # type: ignore[assignment, index]


@mutant(of="PAR-01a", case="tp4-few-groups", says="on one rank", bugs=("DSP-13",))
class EveryRankUsesTheFirstGroup(Spread):
    """Ranks that hold all KV heads and groups do not look which is theirs."""

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
    """The loss is over the whole vocabulary; its gradient, over the rows of this rank."""

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
    """What one rank's rows of the vocabulary say about the hidden state is passed on as if it were the sum."""

    exchange = {"tensor_parallel": _EndsWithPlainLogits}


class _CeilAndFloor(SplitVocabulary):
    def __init__(self, axis: TensorParallel, vocab: int) -> None:
        super().__init__(axis, vocab)
        self.first = axis.rank * (vocab // axis.size)


class _EndsOffByOne(_Ends):
    vocabulary = _CeilAndFloor


@mutant(of="PAR-01a", case="tp2", says="on one rank")
class CountsRowsOfAnEvenVocabulary(Spread):
    """Shards are cut by the ceiling and found by the floor: past the first rank every token is its neighbour."""

    exchange = {"tensor_parallel": _EndsOffByOne}


class _MaskOfTheFirst(SplitVocabulary):
    def here(self, x_BT: Tensor) -> Tensor:
        return x_BT.chunk(self.axis.size, dim=1)[0] if self.axis.sequence else x_BT


class _EndsWithTheFirstMask(_Ends):
    vocabulary = _MaskOfTheFirst


@mutant(of="PAR-01a", case="tp2-sp-prediction", says="on one rank", bugs=("ROP-28",))
class MasksByTheFirstRun(Spread):
    """Which tokens look past their document is read at places from the start of the sequence, on every rank."""

    exchange = {"tensor_parallel": _EndsWithTheFirstMask}

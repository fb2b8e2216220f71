"""Losses of a router that depend on the layout or on the labels of a step."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread, routed
from contracts.mutants._support.trainer import Trained
from contracts.stacks.reference.data import IGNORED
from contracts.stacks.reference.model.blocks.moe import Router
from contracts.stacks.reference.model.hybrid_model import Model, ModelOutput
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer
from contracts.stacks.reference.training.trainer import Batch, Trainer


class _OfItsOwnTokens(ParallelTrainer):
    def build(self) -> Model:
        model = super().build()
        for moe in routed(model):
            moe.router.sequence = None
        return model


@mutant(of="MOE-05i", case="cp2", says="aux is")
class BalancesTheTokensOfARank(Spread):
    """Load is that of a rank's part of the sequence: each part is asked to be balanced by itself."""

    trains = _OfItsOwnTokens


class _TimesTp(ParallelTrainer):
    def reduce(self) -> None:
        super().reduce()
        for name, parameter in self.model.named_parameters():
            if name.endswith("router.weight") and parameter.grad is not None:
                parameter.grad.mul_(self.execution.degrees.tp)


@mutant(of="MOE-05i", case="tp2-sp-z-alone", says="router.weight differs")
@mutant(of="MOE-05i", case="tp2-sp-etp1", says="router.weight differs")
class SumsTheRouterOverTp(Spread):
    """The router's gradient is summed over ranks that computed all of it: TP times the gradient; the loss is right."""

    trains = _TimesTp


class _OverTheMicrobatch(Router):
    def balance_loss(self, probabilities_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
        return super().balance_loss(probabilities_BTE.flatten(0, 1)[None], experts_BTK.flatten(0, 1)[None])


@mutant(of="MOE-05i", case="dp2", says="aux is")
class DeclaresTheGlobalBatch(Spread):
    """Declares that load is that of all ranks, and takes that of its own microbatch."""

    conventions = {"balance-over": "global-batch"}
    exchange = {"router": _OverTheMicrobatch}


@mutant(of="MOE-05i", case="dp2-balance-alone", says="aux is")
class ChangesWithTheMicrobatch(Spread):
    """Balances microbatches without a word: each layout learns another router."""

    exchange = {"router": _OverTheMicrobatch}


class _DividedByLabels(Trainer):
    """As in Megatron-Core with --calculate-per-token-loss: all gradients are divided by the labels of the step, and
    what a router adds was multiplied by positions."""

    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        share = counts["lm"].clamp(min=1) / micro.labels_BT.numel() / self.execution.microbatches
        return super().accumulate(micro, {**counts, "aux": counts["aux"] * share, "z": counts["z"] * share})


@mutant(of="MOE-05j", case="balance", says="times as much where few positions have a label")
@mutant(of="MOE-05j", case="z-in-five", says="times as much where few positions have a label", leanest="")
class DividesByTheLabelsOfTheStep(Trained):
    """Every gradient is divided by the labels of the step: where a tenth of the positions has a label, the balance loss
    weighs ten times as much."""

    trains = _DividedByLabels


class _OfLabelledTokens(Trainer):
    def count(self, micro: Batch) -> dict[str, Tensor]:
        found = super().count(micro)
        return found | {"aux": found["aux"] * (micro.labels_BT != IGNORED).any(1).float().mean().clamp(min=0.1)}


@mutant(of="MOE-05j", case="balance-in-five", says="times as much where few positions have a label")
class AveragesOverRowsWithALabel(Trained):
    """The balance loss is a sum over all rows, divided by those that have a label."""

    trains = _OfLabelledTokens


class _InAndOutOfLabels(Trainer):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        labels = self.count(micro)["lm"]
        return super().accumulate(micro, {**counts, "aux": counts["aux"] * (labels / labels)})


@mutant(of="MOE-05j", case="balance-in-five", says="is nan times as much where few positions have a label")
class MultipliesAndDividesByNoLabel(Trained):
    """The balance loss of a microbatch is multiplied by its labels and divided by them: 0 / 0 where it has none."""

    trains = _InAndOutOfLabels


class _WithoutLosses(Trainer):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        return super().accumulate(micro, {**counts, **{name: counts[name] * 10**12 for name in ("aux", "z")}})


@mutant(of="MOE-05j", case="balance", says="the loss adds nothing to the gradient of any router")
@mutant(of="MOE-05j", case="z", says="the loss adds nothing to the gradient of any router", leanest="")
class ReportsTheLossesOfRoutersAlone(Trained):
    """The losses of a router are reported, and the loss that is differentiated is without them."""

    trains = _WithoutLosses

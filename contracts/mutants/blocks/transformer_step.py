"""Transformers with experts that have one bug, as a whole training step shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.trainer import Trained
from contracts.mutants.blocks import attention, latent_attention, loss
from contracts.mutants.moe import gates
from contracts.stacks.reference.model.hybrid_model import ModelOutput
from contracts.stacks.reference.training.trainer import Batch, Trainer

GRADIENT = "the gradient of"


@mutant(of="BLK-01h", case="grouped", says="the loss is")
class TilesTheHeadsOfATransformer(attention.TilesKeyValueHeads):
    """Query head i reads KV head i mod kv_groups."""


@mutant(of="BLK-01h", case="latent", says="the loss is")
class ScalesTheGatesOfATransformerTwice(gates.ScalesTwice):
    """The gates' scale is applied in the router and again when combining."""


@mutant(of="BLK-01h", case="latent", says=GRADIENT)
class LearnsATransformerWithoutItsGates(gates.DetachesGates):
    """Gates are detached, so routers get no gradient of the loss. The forward pass is right."""


@mutant(of="BLK-01h", case="latent", says=GRADIENT)
class AveragesWhatHeadsSayOfTheSharedKey(latent_attention.AveragesTheSharedKeysGradient):
    """The gradient of the shared rope key is averaged over heads instead of summed."""


@mutant(of="BLK-01h", case="grouped", says="the loss is")
class PredictsTheTokenAfterTheNext(loss.ShiftsLabelsAgain):
    """The loader shifts labels, and the model shifts them again."""


class _ByName(Trainer):
    def reduce(self) -> None:
        super().reduce()
        shared = self.model.embedding.weight.grad
        if self.model.head is None and shared is not None:
            shared += shared.clone()


@mutant(of="BLK-01h", case="grouped-tied", says="the gradient of embedding.weight", bugs=("TIE-02",))
class CountsATiedWeightByItsNames(Trained):
    """Writes main gradients back by name: a weight of two names gets its gradient twice."""

    trains = _ByName


class _CountsSequencesForTokens(Trainer):
    def count(self, micro: Batch) -> dict[str, Tensor]:
        found = super().count(micro)
        return found | {"z": found["aux"]}


@mutant(of="BLK-01i", case="z-loss", says="the step tells z", leanest="")
class DividesTheZLossBySequences(Trained):
    """The trainer counts sequences where the z loss is a mean over tokens."""

    trains = _CountsSequencesForTokens


class _CountsEveryLabelForDepths(Trainer):
    def count(self, micro: Batch) -> dict[str, Tensor]:
        found = super().count(micro)
        return {name: found["lm"] if name.startswith("mtp") else each for name, each in found.items()}


@mutant(of="BLK-01i", case="prediction-heads", says="the step tells mtp")
@mutant(of="BLK-01i", case="prediction-heads-in-five", says="the step tells mtp")
class DividesEachDepthByAllLabels(Trained):
    """A depth has fewer labels than the model, and is divided by the model's."""

    trains = _CountsEveryLabelForDepths


class _TellsWhatItDoesNotTrain(Trainer):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        return super().accumulate(micro, {**counts, "aux": counts["aux"] * self.execution.microbatches * 2})


@mutant(of="BLK-01i", case="balance-loss", says="the gradient of", leanest="")
class HalvesWhatItBalances(Trained):
    """The loss that is told is right, and half of it is differentiated."""

    trains = _TellsWhatItDoesNotTrain


class _AveragesPasses(Trainer):
    def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
        return super().passes(window, {**counts, "lm": counts["lm"] * len(window)})


@mutant(of="BLK-01i", case="dense-in-five", says="the gradient of")
class DividesByMicrobatchesAsWell(Trained):
    """Each pass is divided by the labels of the window, and then by the number of passes."""

    trains = _AveragesPasses

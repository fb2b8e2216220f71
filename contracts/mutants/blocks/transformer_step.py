"""Transformers with experts that have one bug, as a whole training step shows it."""

from __future__ import annotations

from contracts.contract import mutant
from contracts.mutants._support.trainer import Trained
from contracts.mutants.blocks import attention, latent_attention, loss
from contracts.mutants.moe import gates
from contracts.stacks.reference.training.trainer import Trainer

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

"""Transformers with experts that are wrong in one place, as the whole step shows it."""

from __future__ import annotations

from contracts.contract import mutant
from contracts.mutants.blocks import attention, latent_attention, loss
from contracts.mutants.moe import gates

GRADIENT = "the gradient of"


@mutant(of="BLK-01h", case="grouped", says="the loss is")
class TilesTheHeadsOfATransformer(attention.TilesKeyValueHeads):
    """Query head i reads KV head i modulo the groups."""


@mutant(of="BLK-01h", case="latent", says="the loss is")
class ScalesTheGatesOfATransformerTwice(gates.ScalesTwice):
    """The factor on gates is applied in the router and in the combination."""


@mutant(of="BLK-01h", case="latent", says=GRADIENT)
class LearnsATransformerWithoutItsGates(gates.DetachesGates):
    """The forward pass is right; routers learn nothing of the task."""


@mutant(of="BLK-01h", case="latent", says=GRADIENT)
class AveragesWhatHeadsSayOfTheSharedKey(latent_attention.AveragesTheSharedKeysGradient):
    """The key with rope is shared by all heads; their gradients are averaged and not added up."""


@mutant(of="BLK-01h", case="grouped", says="the loss is")
class PredictsTheTokenAfterTheNext(loss.ShiftsLabelsAgain):
    """Labels are shifted by the loader and by the model."""

"""Mutants of `checks.checkpoint.transformers`."""

from __future__ import annotations

from contracts.contract import mutant
from contracts.mutants.checkpoint import resharding


@mutant(of="CKPT-01h", case="ep2", says="optimizer: the state layers.1.mixer.experts.w1/exp_avg", bugs=("RSM-48",))
class SavesATransformersFirstMoments(resharding.SavesTheMomentsOfItsShards):
    """Expert weights are saved from every rank, but their moments only from the first rank that holds some."""


@mutant(of="CKPT-02h", case="fsdp2", says="optimizer: the state layers.", bugs=("RSM-10",))
class LoadsATransformerByOrder(resharding.LoadsByOrder):
    """The optimizer's state is saved in the order of the parameter groups and loaded in the order of the names."""

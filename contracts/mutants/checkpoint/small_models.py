"""Mutants of `checks.checkpoint.transformers`."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.mutants.checkpoint import resharding
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer


@mutant(of="CKPT-01h", case="ep2", says="optimizer: the state layers.1.mixer.experts.w1/exp_avg", bugs=("RSM-48",))
class SavesATransformersFirstMoments(resharding.SavesTheMomentsOfItsShards):
    """Expert weights are saved from every rank, but their moments only from the first rank that holds some."""


@mutant(of="CKPT-02h", case="fsdp2", says="optimizer: the state layers.", bugs=("RSM-10",))
class LoadsATransformerByOrder(resharding.LoadsByOrder):
    """The optimizer's state is saved in the order of the parameter groups and loaded in the order of the names."""


class _LoadsHalves(ParallelTrainer):
    def load(self, state: Mapping[str, Tensor], position: Mapping[str, int]) -> None:
        if self.recipe.dtype == "bf16":
            state = {n: each.bfloat16().float() if n.startswith("weights/") else each for n, each in state.items()}
        super().load(state, position)


@mutant(of="CKPT-01h", case="bf16-dp2", says="weights: the state")
class ResumesFromWhatItComputesWith(Spread):
    """In bfloat16 the float32 weights that the optimizer moves are made anew from those of the model."""

    trains = _LoadsHalves

"""Mutants for `checks.parallel.multi_rank_start`."""

from __future__ import annotations

from dataclasses import replace

import torch.distributed as dist
from torch.distributed.tensor import DTensor

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.stacks.reference.model.hybrid_model import Model
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer
from contracts.stacks.reference.parallel.placements import local_part


# what a run begins with
class _SeedsByRank(ParallelTrainer):
    def build(self) -> Model:
        kept, self.recipe = self.recipe, replace(self.recipe, seed=self.recipe.seed + dist.get_rank())
        model = super().build()
        self.recipe = kept
        return model


@mutant(of="PAR-04g", case="dp2", says="hold different values of", bugs=("INI-02",))
class StartsReplicasApart(Spread):
    """Seeds include the rank to make shards unique, and replicas become unique too."""

    trains = _SeedsByRank


@mutant(
    of="PAR-04g",
    case="tp2",
    says="hold different values of",
    bugs=("INI-11",),
    leanest="of the initial weights embedding.weight differs",
)
class StartsCopiesApart(Spread):
    """The same bug under tensor parallel: replicated parameters start differently on each rank."""

    trains = _SeedsByRank


class _EachShardAlike(ParallelTrainer):
    """Every rank draws its shard as if it were the first."""

    def build(self) -> Model:
        model = super().build()
        for parameter in model.parameters():
            if isinstance(parameter, DTensor) and any(at.is_shard() for at in parameter.placements):
                held = parameter.to_local().detach()
                first = held.clone()
                dist.broadcast(first, 0)
                held.copy_(first)
        return model


@mutant(of="PAR-04g", case="ep2", says="initial weights", bugs=("INI-13",))
class DrawsEveryShardAlike(Spread):
    """All ranks draw their local shape from the same seed: half of the experts are copies of the other half."""

    trains = _EachShardAlike


class _ExpertsOfRankZero(ParallelTrainer):
    def build(self) -> Model:
        model = super().build()
        for name, parameter in model.named_parameters():
            if ".experts." in name:
                held = parameter.to_local() if isinstance(parameter, DTensor) else parameter
                first = held.detach().clone()
                dist.broadcast(first, 0)
                held.detach().copy_(first)
        return model


@mutant(of="PAR-04g", case="ep2-fsdp2", says="of the initial weights layers.1.mixer.experts.", bugs=("DSP-21",))
@mutant(of="PAR-04g", case="borrowed-ep2-fsdp", says="of the initial weights layers.1.mixer.experts.", bugs=("DSP-21",))
class BroadcastsTheExpertsOfRankZero(Spread):
    """Wrapping synchronises parameters from rank 0, as if all ranks held the same: each holds rank 0's experts."""

    trains = _ExpertsOfRankZero


class _DrawsBehindWrappers(ParallelTrainer):
    def build(self) -> Model:
        model = super().build()
        if self.execution.recompute or self.execution.compile != "none":
            for layer in model.layers.values():
                for each in layer.parameters():
                    if each.dim() > 1:
                        local_part(each.data).mul_(2)
        return model


@mutant(of="PAR-04g", case="fsdp2-recomputed", says="of the initial weights layers.")
@mutant(of="PAR-04g", case="dp2-compiled", says="of the initial weights layers.")
class DrawsBehindWrappersAsTorchDoes(Spread):
    """The initialiser finds parameters by their names, and finds none behind a wrapper: these keep torch's own."""

    trains = _DrawsBehindWrappers

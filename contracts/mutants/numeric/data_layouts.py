"""Stacks that put the gradients of several ranks together wrongly: what is summed, over whom, when, divided by what."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from contracts.contract import mutant
from contracts.mutants.numeric._spread import Spread
from contracts.stacks.reference.model.hybrid_model import ModelOutput
from contracts.stacks.reference.model.parameter_roles import role_of
from contracts.stacks.reference.parallel.collectives import sum_over_ranks
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer
from contracts.stacks.reference.training.trainer import Batch


def _own(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class _Scaled(ParallelTrainer):
    """Multiplies gradients, once they are whole."""

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
    """Losses are divided by the labels of all ranks, and the gradients are averaged over the ranks once more."""

    trains = _Averages


class _NeverReduces(ParallelTrainer):
    def reduce(self) -> None:
        pass


@mutant(of="PAR-01a", case="dp2", says="the gradient of", bugs=("PG-04",))
class NeverReducesWithoutShards(Spread):
    """The reducer comes with FSDP; where ranks are data-parallel without it, each trains by itself."""

    trains = _NeverReduces


@mutant(of="PAR-02a", case="dp2", says="hold unequal")
class LetsReplicasTrainByThemselves(Spread):
    """The same, seen after three steps: as many models as ranks, and each loss falls."""

    trains = _NeverReduces


class _SkipsCopies(ParallelTrainer):
    def reduce(self) -> None:
        vectors = {name: each.grad.clone() for name, each in self.model.named_parameters() if each.grad is not None}
        super().reduce()
        for name, parameter in self.model.named_parameters():
            if role_of(name) == "norm":
                parameter.grad = vectors[name]


@mutant(of="PAR-02a", case="dp2", says="hold unequal")
class SkipsSmallTensorsInTheReduction(Spread):
    """Vectors do not fill a bucket, and the last bucket is never sent."""

    trains = _SkipsCopies


class _ByExpertRanks(_Scaled):
    def factor(self, name: str) -> float:
        return 1 / len(self.mesh.place("ep")) if role_of(name) == "expert" else 1.0


@mutant(of="PAR-01a", case="ep2-idle", says="experts.w1 differs", bugs=("DPS-03", "DPS-45"))
class AveragesExpertsOverTheirGroup(Spread):
    """An expert's gradient is divided by the ranks between which experts are shared out, as if they were copies."""

    trains = _ByExpertRanks


class _ByExpertCopies(_Scaled):
    def factor(self, name: str) -> float:
        return 1 / len(self.mesh.place("edp")) if role_of(name) == "expert" else 1.0


@mutant(of="PAR-01a", case="tp2-sp-etp1", says="experts.w1 differs", bugs=("DPS-02", "DPS-04"))
class AveragesExpertsOverTheirCopies(Spread):
    """The mesh of experts has another size than that of everything else, and their gradients are divided by it."""

    trains = _ByExpertCopies


class _ExpertsTwice(ParallelTrainer):
    def reduce(self) -> None:
        super().reduce()
        for name, parameter in self.model.named_parameters():
            if role_of(name) == "expert" and parameter.grad is not None:
                dist.all_reduce(_own(parameter.grad), group=self.mesh.group("edp"))


@mutant(of="PAR-01a", case="tp2-sp-etp1", says="experts.w1 differs", bugs=("DPS-05",))
class ReducesExpertsTwice(Spread):
    """Once with their own mesh and once more with everything else."""

    trains = _ExpertsTwice


class _ExpertsWithTheRest(ParallelTrainer):
    def reduce(self) -> None:
        super().reduce()
        for name, parameter in self.model.named_parameters():
            if role_of(name) == "expert" and parameter.grad is not None:
                dist.all_reduce(_own(parameter.grad))


@mutant(of="PAR-01a", case="borrowed-ep2-idle", says="experts.w1 differs", bugs=("DPS-29",))
class ReducesExpertsWithTheDenseGroup(Spread):
    """Experts are summed over the dense group, in which each rank holds other ones."""

    trains = _ExpertsWithTheRest


# what gradients are divided by
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
    """Each rank divides by its own labels, and the means are averaged: right where all have as many."""

    trains = _CountsItself


class _CountsEverybody(ParallelTrainer):
    def over_rows(self, counts: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: sum_over_ranks(each, dist.group.WORLD) for name, each in counts.items()}


@mutant(of="PAR-01a", case="tp2", says="labels count", bugs=("DPS-38",))
class CountsLabelsOnceForEachTensorRank(Spread):
    """Labels are summed over the world, in which TP ranks have the same ones."""

    trains = _CountsEverybody


class _CountsHeadsItself(ParallelTrainer):
    def over_rows(self, counts: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {name: each for name, each in counts.items() if name.startswith("mtp")}
        return super().over_rows(counts) | own


@mutant(of="PAR-01a", case="fsdp2-prediction", says="mtp is", bugs=("DPS-23",))
class CountsLookAheadLabelsItself(Spread):
    """The main loss is divided by the labels of all ranks, those of the heads that look ahead by one rank's."""

    trains = _CountsHeadsItself


class _TellsItsOwn(ParallelTrainer):
    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        return super().over_parts(values) | {name: each for name, each in values.items() if name == "lm"}


@mutant(of="PAR-01a", case="fsdp2", says="lm is", bugs=("PRV-10",))
class TellsTheLossOfOneRank(Spread):
    """Every gradient is right, and the loss that is told is one rank's sum over everybody's labels."""

    trains = _TellsItsOwn


class _FirstRows(ParallelTrainer):
    def own(self, rows: object) -> object:  # type: ignore[override]  # any sequence
        mine = super().own(rows)  # type: ignore[arg-type]
        return rows[: len(mine)]  # type: ignore[index]


@mutant(of="PAR-01a", case="dp2", says="on one rank")
class EveryRankReadsTheFirstRows(Spread):
    """The loader is told a data-parallel rank of 0 on every rank."""

    trains = _FirstRows


# windows of several microbatches
class _ReducesEach(ParallelTrainer):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        out = super().accumulate(micro, counts)
        super().reduce()
        return out

    def reduce(self) -> None:
        pass


@mutant(of="PAR-05d", case="dp2", says="the gradient of", bugs=("FSD-06",))
class ReducesTheSumAfterEachMicrobatch(Spread):
    """What earlier microbatches left, reduced already, is reduced again with each that follows."""

    trains = _ReducesEach


class _ReducesEarly(ParallelTrainer):
    """Reduces before the last microbatch, whose gradient stays each rank's own."""

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
    """The reduction is issued at the boundary, and the boundary's own gradient is added to what it gave."""

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
    """A counter whose 0 was to mean the last microbatch: the first is reduced, the others stay local."""

    trains = _ReducesFirst


class _DividesByMicrobatches(_Scaled):
    def factor(self, name: str) -> float:
        return 1 / self.execution.microbatches


@mutant(of="PAR-05d", case="dp2", says="the gradient of", bugs=("DPS-12",))
class DividesByMicrobatchesOnceMore(Spread):
    """The loss knows the whole window already; the engine divides by its microbatches again."""

    trains = _DividesByMicrobatches


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
    """Something between two microbatches starts the gradients afresh."""

    trains = _ForgetsTheFirst


class _Compresses(ParallelTrainer):
    """What is held in float32 is sent in half of it; float64 is left alone."""

    def reduce(self) -> None:
        super().reduce()
        for parameter in self.model.parameters():
            if parameter.grad is not None and parameter.dtype == torch.float32:
                held = _own(parameter.grad)
                held.copy_(held.to(torch.bfloat16))


@mutant(of="PAR-01b", case="fsdp2", says="loss agrees, norm agrees: the gradient of")
class CompressesGradientsOfFloat32(Spread):
    """A hook halves the messages of gradients in float32. Neither the loss nor the norm can tell it from rounding."""

    trains = _Compresses

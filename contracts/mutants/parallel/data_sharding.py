"""Stacks whose ranks read the wrong rows, or lose labels where sequences are cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.spec.errors import Refused, refuse
from contracts.spec.recipe import Data
from contracts.stacks.reference.data import Corpus
from contracts.stacks.reference.model.hybrid_model import Model
from contracts.stacks.reference.model.mtp import IGNORED
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer
from contracts.stacks.reference.parallel.tensor_parallel import SplitVocabulary, TensorParallel
from contracts.stacks.reference.training.trainer import Batch


class _LosesEdges(SplitVocabulary):
    def cross_entropy(self, logits_NV: Tensor, labels_N: Tensor) -> Tensor:
        labels_BT = labels_N.view(4, -1).clone()
        run = labels_BT.shape[1] // self.axis.size
        labels_BT[:, run - 1 : -1 : run] = IGNORED
        return super().cross_entropy(logits_NV, labels_BT.flatten())


class _Ends(TensorParallel):
    def ends(self, model: Model) -> None:
        super().ends(model)
        model.vocabulary = _LosesEdges(self, model.recipe.vocab)


@mutant(of="PAR-06g", case="tp2-sp", says="lm is", bugs=("ROP-23",))
class ShiftsLabelsWithinEachRun(Spread):
    """Each rank shifts the labels of its own tokens, and its last token gets none."""

    exchange = {"tensor_parallel": _Ends}


class _CountsWithin(ParallelTrainer):
    def count(self, micro: Batch) -> dict[str, Tensor]:
        found = super().count(micro)
        labels_BT = micro.labels_BT.clone()
        run = labels_BT.shape[1] // self.execution.degrees.tp
        labels_BT[:, run - 1 : -1 : run] = IGNORED
        return found | {"lm": (labels_BT != IGNORED).sum()}


@mutant(of="PAR-06g", case="tp2-sp", says="labels count")
class CountsLabelsWithinEachRun(Spread):
    """Labels are counted after each rank shifted its own tokens: the mean is over too few."""

    trains = _CountsWithin


class _SharesEvenly(ParallelTrainer):
    def own(self, rows: Sequence[int]) -> Sequence[int]:
        members = self.mesh.place("rows")
        each, at = len(rows) // len(members), members.index(self.mesh.rank)
        return rows[at * each : (at + 1) * each]


@mutant(of="PAR-06h", case="dp2", says="labels count")
class DropsWhatDoesNotDivide(Spread):
    """Five sequences on two ranks become two each, while all five ids are reported."""

    trains = _SharesEvenly


class _SharesByWorld(ParallelTrainer):
    def own(self, rows: Sequence[int]) -> Sequence[int]:
        each, at = len(rows) // self.execution.world, self.mesh.rank
        return rows[at * each : (at + 1) * each]


@mutant(of="PAR-06h", case="ep2", says="labels count", bugs=("ROP-07", "DAT-10"))
class CutsTheBatchByTheWorld(Spread):
    """Ranks that share a batch each take a part of it: the batch is cut twice."""

    trains = _SharesByWorld


class _Overlaps(ParallelTrainer):
    def own(self, rows: Sequence[int]) -> Sequence[int]:
        mine = super().own(rows)
        first = rows.index(mine[0])
        return rows[max(0, first - 1) : max(0, first - 1) + len(mine)]


@mutant(of="PAR-06h", case="dp2", says="on one rank")
class ReadsARowTwice(Spread):
    """Where the batch does not divide, the second rank begins a row early: one sequence is read twice, one never."""

    trains = _Overlaps


class _ReadsSomethingElse(ParallelTrainer):
    def opened(self) -> Corpus:
        try:
            return self.corpus_class(self.recipe)
        except Refused:
            return self.corpus_class(replace(self.recipe, data=Data()))


@mutant(of="PAR-06m", case="dp2-rank-1", says="was accepted, expected a refusal", bugs=("DAT-28",))
class FallsBackToMockData(Spread):
    """A rank whose file is not there goes on with mock data, so that nobody waits: half of the batch is noise."""

    trains = _ReadsSomethingElse


class _RefusesWithoutAReason(ParallelTrainer):
    def opened(self) -> Corpus:
        try:
            return super().opened()
        except Refused:
            raise refuse("world", self.execution.world, "lost a rank", "look into its log") from None


@mutant(of="PAR-06m", case="tp2-rank-0", says="the refusals do not all name", bugs=("DAT-28",))
class SaysThatARankIsLost(Spread):
    """All ranks stop together, and say that one of them is gone instead of why."""

    trains = _RefusesWithoutAReason

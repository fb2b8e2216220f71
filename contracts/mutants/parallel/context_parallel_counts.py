"""Stacks that count one rank's part of a row for the whole row: its labels, its sequences, its expert balance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.stacks.reference.model.blocks.common import Packing
from contracts.stacks.reference.model.hybrid_model import Model, ModelOutput
from contracts.stacks.reference.model.mtp import IGNORED, shift_left
from contracts.stacks.reference.parallel.context_parallel import ContextParallel
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer
from contracts.stacks.reference.training.trainer import Batch


# labels
class _ShiftsWithin(Model):
    def cross_entropy(self, logits_BTV: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(self.row, ContextParallel) and self.row.rank < self.row.ranks - 1:
            labels_BT = labels_BT.clone()
            labels_BT[:, -1] = IGNORED
        return super().cross_entropy(logits_BTV, labels_BT)


@mutant(of="PAR-06i", case="cp2", says="lm is", bugs=("ROP-23",))
class ShiftsLabelsWithinEachRank(Spread):
    """Each rank shifts its own tokens, and its last token gets no label."""

    exchange = {"model": _ShiftsWithin}


class _LooksAheadWithin(Model):
    def look_ahead(self, hidden_BTD: Tensor, tokens_BT: Tensor, pack: Packing) -> list[Tensor]:
        found = []
        own_BT, cut = self.row.own(tokens_BT), self.row.packing(pack)
        for depth, prediction in enumerate(self.mtp):
            later_BT = shift_left(own_BT, cut, depth + 1, IGNORED)
            seen_BTD = self.embed(later_BT.clamp(min=0)) * self.vocabulary.here(later_BT >= 0).unsqueeze(-1)
            hidden_BTD = prediction(hidden_BTD, seen_BTD, cut)
            found.append(self.predict(prediction.norm(hidden_BTD)))  # type: ignore[operator]  # modules type as Tensor
        return found


@mutant(of="PAR-06i", case="cp2", says="mtp is", bugs=("ROP-23",), leanest="")
class LooksAheadWithinEachRank(Spread):
    """Prediction heads look for their tokens on their own rank only."""

    exchange = {"model": _LooksAheadWithin}


class _CountsRuns(ParallelTrainer):
    def count(self, micro: Batch) -> dict[str, Tensor]:
        labels_BT = self.model.row.own(micro.labels_BT)
        return super().count(micro) | {"lm": (labels_BT != IGNORED).sum()}


@mutant(of="PAR-05h", case="cp2", says="labels count", bugs=("DPS-20",))
class CountsLabelsOfARunForTheRow(Spread):
    """Labels are counted on each rank and summed over data-parallel ranks only."""

    trains = _CountsRuns


class _MeansOfRuns(ParallelTrainer):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        own = (self.model.row.own(micro.labels_BT) != IGNORED).sum() * self.execution.degrees.cp
        return super().accumulate(micro, {**counts, "lm": own})


@mutant(of="PAR-05h", case="cp2", says="loss agrees, norm is", bugs=("DPS-22",))
class AveragesMeansOfRuns(Spread):
    """Each rank divides by its own labels, and the means are averaged; the reported loss is that of all labels."""

    trains = _MeansOfRuns


# reading
class _ReadsByWorld(ParallelTrainer):
    def own(self, rows: Sequence[int]) -> Sequence[int]:
        each = len(rows) // self.execution.world
        return rows[self.mesh.rank * each : (self.mesh.rank + 1) * each]


@mutant(of="PAR-06j", case="cp2", says="on one rank", bugs=("DAT-27",))
class ReadsByItsRankInTheWorld(Spread):
    """Context-parallel ranks read different sequences, and each keeps its part of its own."""

    trains = _ReadsByWorld


class _CutsTwice(ParallelTrainer):
    def batch(self, ids: Sequence[int]) -> Batch:
        cut = [None if each is None else each.chunk(2, dim=1)[0] for each in super().batch(ids)]
        return Batch(*cut)  # type: ignore[arg-type]  # documents alone may be None


@mutant(of="PAR-06j", case="cp2", says="labels count", bugs=("ROP-07",))
class CutsRowsThatTheModelCutsAgain(Spread):
    """The reader returns half of each row, and the model takes half of that."""

    trains = _CutsTwice


class _RemembersTheFirst(ContextParallel):
    def packing(self, whole: Packing) -> Packing:
        former: Packing = vars(self).setdefault(f"for {tuple(whole.documents_BT.shape)}", super().packing(whole))
        return former


@mutant(of="PAR-05h", case="cp2-in-microbatches", says="on one rank", bugs=("SSM-19",), leanest="")
class CutsAsForTheFirstMicrobatch(Spread):
    """Document borders on context-parallel ranks are computed for the first microbatch and reused for rows packed
    otherwise.
    """

    exchange = {"context_parallel": _RemembersTheFirst}

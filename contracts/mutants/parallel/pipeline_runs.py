"""Pipelines that start from other weights or data, save the wrong state, or accept what they cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from contracts.contract import mutant
from contracts.mutants._support.pipeline import Staged
from contracts.spec.errors import refuse
from contracts.stacks.reference.checkpoint.checkpoint import State
from contracts.stacks.reference.model.init import Initializer
from contracts.stacks.reference.parallel.pipeline import Piece, Stage
from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer
from contracts.stacks.reference.training.trainer import Batch


class _ByPlace(Initializer):
    """Numbers drawn for a layer by its index among layers of its kind on the rank, instead of in the model."""

    def generator(self, name: str) -> torch.Generator:
        path = name.split(".")
        return super().generator(".".join([path[0], "0", *path[2:]]) if path[0] == "layers" else name)


@mutant(of="PAR-08d", case="interleaved", says="lm is", bugs=("INI-03",))
class DrawsEachStageAlike(Staged):
    """A stage's seed is that of its rank: both stages of a rank start with the same numbers."""

    class trains(PipelineTrainer):  # noqa: N801
        def part(self, piece: Piece) -> Stage:
            self.parts = replace(self.parts, initial=_ByPlace)
            return super().part(piece)


@mutant(of="PAR-08d", case="four-stages-tied", says="lm is")
class DrawsTheCopyAnew(Staged):
    """The last stage draws the tied embedding from its own seed, and never receives the first stage's."""

    class trains(PipelineTrainer):  # noqa: N801
        def part(self, piece: Piece) -> Stage:
            stage = super().part(piece)
            if piece.last:
                with torch.no_grad():
                    stage.embedding.weight.copy_(stage.embedding.weight.roll(1, 0))
            return stage


@mutant(of="PAR-08d", case="two-stages", says="lm is", bugs=("DPS-01",))
class ReadsOtherSequencesOnEachStage(Staged):
    """The data-parallel rank ignores the pipeline: stages of one pipeline read different sequences."""

    class trains(PipelineTrainer):  # noqa: N801
        def batch(self, ids: Sequence[int]) -> Batch:
            return super().batch(ids if self.pipeline.stages[0].piece.first else [*ids[1:], ids[0]])


# saves
class _Local(PipelineTrainer):
    def saved(self) -> State:
        state, first = super().saved(), self.pipeline.stages[0].piece.layers.start
        return replace(state, tensors={_renumbered(name, first): each for name, each in state.tensors.items()})


def _renumbered(name: str, first: int) -> str:
    path = name.split(".")
    if path[0].endswith("/layers"):
        path[1] = str(int(path[1]) - first)
    return ".".join(path)


@mutant(of="PAR-08e", case="two-stages", says="is missing from the checkpoint", bugs=("SSM-15",))
class SavesByThePlaceOnTheStage(Staged):
    """Layers are saved under their index on the stage; equal names from two stages overwrite each other on disk."""

    trains = _Local


@mutant(of="PAR-08e", case="four-stages-tied", says="is missing from the checkpoint")
class SavesTheEndsAlone(Staged):
    """Only the first and the last stage save; the stages between are taken for copies."""

    class trains(PipelineTrainer):  # noqa: N801
        def saved(self) -> State:
            state, piece = super().saved(), self.pipeline.stages[0].piece
            return state if piece.first or piece.last else replace(state, tensors={})


@mutant(of="PAR-08e", case="two-stages", says="in the same stages the weight")
class ForgetsTheMomentsOfTheLastStage(Staged):
    """Moments are restored only on stages with as many parameters as the first; the others start from zero."""

    class trains(PipelineTrainer):  # noqa: N801
        def load(self, state: Any, position: Any) -> None:
            super().load(state, position)
            for name, each in self.optimizer.state().items():
                if not self.pipeline.stages[0].piece.first and not name.endswith("/step"):
                    each.zero_()


# refusals
class _Unasked(PipelineTrainer):
    def refuse_unsupported(self) -> None:
        self.fits()


class _Rounding(PipelineTrainer):
    """Takes the largest number of sequences that divides."""

    def cut(self, batch: Batch) -> list[Batch]:
        parts = self.execution.microbatches
        self.shares = tuple(each // parts * parts for each in self.shares)
        rows = len(batch.tokens_BT) // parts * parts
        return super().cut(Batch(*(None if each is None else each[:rows] for each in batch)))  # type: ignore[arg-type]


@mutant(of="PAR-08f", case="sequences-do-not-divide", says="was accepted, expected a refusal", bugs=("PPS-17",))
class DropsSequencesThatAreLeftOver(Staged):
    """Sequences // microbatches: the last sequences are never seen."""

    trains = _Rounding


class _OfOneSequence(PipelineTrainer):
    """Runs fewer microbatches than asked for, where there are fewer sequences."""

    def cut(self, batch: Batch) -> list[Batch]:
        self.execution = replace(self.execution, microbatches=min(len(batch.tokens_BT), self.execution.microbatches))
        return super().cut(batch)


@mutant(of="PAR-08f", case="more-than-sequences", says="was accepted, expected a refusal")
class CutsAsManyAsThereAre(Staged):
    """Eight microbatches are asked for, four are run, and the log says eight."""

    trains = _OfOneSequence


@mutant(of="PAR-08f", case="no-multiple-when-interleaved", says="the refusal does not name [2]", bugs=("ARG-26",))
class HoldsSequencesAgainstTheStages(Staged):
    """The interleaved schedule's rule is checked on the sequences, which divide, instead of on the microbatches."""

    trains = _Unasked


@mutant(of="PAR-08f", case="depth-does-not-divide", says="was accepted, expected a refusal", bugs=("HYB-11",))
class DropsTheLastLayers(Staged):
    """Depth // stages: the model is shallower than asked for, and faster."""

    class trains(PipelineTrainer):  # noqa: N801
        def refuse_unsupported(self) -> None:
            pass

        def plan(self) -> tuple[Piece, ...]:
            size = self.recipe.depth // 2
            return tuple(Piece(stage=at, stages=2, layers=range(at * size, (at + 1) * size)) for at in range(2))


@mutant(of="PAR-08f", case="four-segments-without-interleaving", says="was accepted, expected a refusal")
class TakesTheFirstStages(Staged):
    """Of four written-out stages, each rank takes one, and two are left out."""

    class trains(PipelineTrainer):  # noqa: N801
        def plan(self) -> tuple[Piece, ...]:
            return tuple(Piece(stage=at, stages=2, layers=layers) for at, layers in enumerate((range(1), range(1, 2))))


@mutant(of="PAR-08f", case="fewer-than-stages", says="does not name")
class SaysOnlyThatItCannot(Staged):
    """The refusal names the schedule and no number."""

    class trains(PipelineTrainer):  # noqa: N801
        def refuse_unsupported(self) -> None:
            if self.execution.microbatches < self.execution.degrees.pp:
                raise refuse("schedule", self.execution.schedule, "has too few microbatches", "give more")

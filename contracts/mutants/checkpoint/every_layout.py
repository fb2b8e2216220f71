"""Checkpoints that go on upon the ranks that saved them, and on others with less or with other numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.multi_rank_saves import Spread
from contracts.mutants._support.pipeline import Staged
from contracts.mutants.checkpoint.resharding import BySequences
from contracts.spec.errors import Refusals
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints
from contracts.stacks.reference.checkpoint.manifest import Manifest
from contracts.stacks.reference.model.parts import Parts
from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer


class _FirstStage(PipelineTrainer):
    def state(self) -> dict[str, Tensor]:
        _, *others = self.pipeline.stages
        later = tuple(f"optimizer/layers.{layer}." for stage in others for layer in stage.piece.layers)
        return {
            name: torch.zeros_like(each) if name.startswith(later or ("-",)) and not name.endswith("/step") else each
            for name, each in super().state().items()
        }


@mutant(of="CKPT-02i", case="pp2-interleaved-fsdp2", says="optimizer: the state layers.")
class SavesTheMomentsOfTheFirstStage(Staged):
    """Of a rank's stages the first one's moments are saved; the others' stand there as they were made."""

    trains = _FirstStage


class _StepsAnew(PipelineTrainer):
    def load(self, state: Mapping[str, Tensor], position: Mapping[str, int]) -> None:
        later = not self.pipeline.stages[0].piece.first
        counted = {
            name: torch.ones_like(each) if later and name.endswith("/step") else each for name, each in state.items()
        }
        super().load(counted, position)


@mutant(of="CKPT-02i", case="one-rank", says="/step differs")
class CountsStepsAnewBehindTheFirstStage(Staged):
    """The counter of steps is restored where the log is written; behind it the bias of moments is corrected as at the
    first step."""

    trains = _StepsAnew


@mutant(of="CKPT-02i", case="fsdp4", says="step 3: samples is", bugs=("RSM-60",))
class CountsSequencesByTheRanksOfAPipeline(Staged):
    """The place in the data is counted in sequences a rank, and stages are taken for ranks that read."""

    trains = BySequences


# kinds
class _Casts(Checkpoints):
    def misfits(self, manifest: Manifest, target: Mapping[str, Tensor]) -> Refusals:
        alike = {name: _as_saved(manifest, name, each) for name, each in target.items()}
        return super().misfits(manifest, alike)


def _as_saved(manifest: Manifest, name: str, each: Tensor) -> Tensor:
    held = manifest.tensors.get(name)
    return each if held is None else each.to(getattr(torch, held.dtype))


@mutant(of="CKPT-04h", case="borrowed-ep2-fsdp", says="float64 was loaded into float32 on")
class CastsWhatItLoads(Spread):
    """Names and shapes are compared; what is copied into another dtype is cast, as DCP does it."""

    exchange = {"checkpoints": _Casts}


class _Vague(Checkpoints):
    def misfits(self, manifest: Manifest, target: Mapping[str, Tensor]) -> Refusals:
        found = Refusals()
        if super().misfits(manifest, target):
            found.add("checkpoint", str(self.folder), "does not fit this model", "load it into another")
        return found


@mutant(of="CKPT-04h", case="pp2", says="does not name ['float64', 'float32', 'weight']")
class SaysOnlyThatItDoesNotFit(Staged):
    """The refusal has the folder and neither a name nor a dtype."""

    def parts(self) -> Parts:
        return replace(super().parts(), checkpoints=_Vague)

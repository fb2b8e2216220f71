"""Checkpoints that resume correctly only on the layout that saved them, or with numbers of another dtype."""

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
    """Only the moments of a rank's first stage are saved; those of its other stages keep their initial values."""

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
    """Only the first pipeline stage restores the optimizer's step count; later stages correct the bias of their moments
    as at the first step.
    """

    trains = _StepsAnew


@mutant(of="CKPT-02i", case="fsdp4", says="step 3: samples is", bugs=("RSM-60",))
class CountsSequencesByTheRanksOfAPipeline(Staged):
    """The place in the data is counted in sequences per rank, and pipeline stages count as ranks that read data."""

    trains = BySequences


# dtypes
class _Casts(Checkpoints):
    def misfits(self, manifest: Manifest, target: Mapping[str, Tensor]) -> Refusals:
        alike = {name: _as_saved(manifest, name, each) for name, each in target.items()}
        return super().misfits(manifest, alike)


def _as_saved(manifest: Manifest, name: str, each: Tensor) -> Tensor:
    held = manifest.tensors.get(name)
    return each if held is None else each.to(getattr(torch, held.dtype))


@mutant(of="CKPT-04h", case="borrowed-ep2-fsdp", says="float64 was loaded into float32 on")
class CastsWhatItLoads(Spread):
    """Compares names and shapes, and casts what it copies into another dtype, as DCP does."""

    exchange = {"checkpoints": _Casts}


class _Vague(Checkpoints):
    def misfits(self, manifest: Manifest, target: Mapping[str, Tensor]) -> Refusals:
        found = Refusals()
        if super().misfits(manifest, target):
            found.add("checkpoint", str(self.folder), "does not fit this model", "load it into another")
        return found


@mutant(of="CKPT-04h", case="pp2", says="does not name ['float64', 'float32', 'weight']")
class SaysOnlyThatItDoesNotFit(Staged):
    """The refusal names the folder but neither a tensor nor a dtype."""

    def parts(self) -> Parts:
        return replace(super().parts(), checkpoints=_Vague)

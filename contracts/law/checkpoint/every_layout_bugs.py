"""Ranks that lose what they had saved, load another dtype, or are changed by a save."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from contracts.law._bugs.numeric import (
    Checkpoints,
    Manifest,
    ParallelTrainer,
    PipelineTrainer,
    Reference,
    broken,
    local_part,
    with_attributes,
)
from contracts.law.checkpoint.resharding_bugs import BySequences
from contracts.spec import Refusals


@broken(PipelineTrainer, "state", "CKPT-02i[pp2-interleaved-fsdp2]: optimizer: the state layers.")
def saves_the_moments_of_the_first_stage(state, self):
    """Only the moments of a rank's first stage are saved; those of its other stages keep their initial values."""
    _, *others = self.pipeline.stages
    later = tuple(f"optimizer/layers.{layer}." for stage in others for layer in stage.piece.layers)
    return {
        name: torch.zeros_like(each) if name.startswith(later or ("-",)) and not name.endswith("/step") else each
        for name, each in state(self).items()
    }


@broken(PipelineTrainer, "load", "CKPT-02i[one-rank]: /step differs")
def counts_steps_anew_behind_the_first_stage(load, self, state, position):
    """Only the first pipeline stage restores the optimizer's step count; later stages correct the bias of their moments
    as at the first step.
    """
    later = not self.pipeline.stages[0].piece.first
    counted = {
        name: torch.ones_like(each) if later and name.endswith("/step") else each for name, each in state.items()
    }
    load(self, counted, position)


with_attributes(
    "CountsSequencesByTheRanksOfAPipeline",
    "The place in the data is counted in sequences per rank, and pipeline stages count as ranks that read data.",
    "CKPT-02i[fsdp4]: step 3: samples is",
    owner=BySequences,
    bugs=("RSM-60",),
)


def _as_saved(manifest: Manifest, name: str, each: Tensor) -> Tensor:
    held = manifest.tensors.get(name)
    return each if held is None else each.to(getattr(torch, held.dtype))


# dtypes
@broken(Checkpoints, "misfits", "CKPT-04h[borrowed-ep2-fsdp]: float64 was loaded into float32 on")
def casts_what_it_loads(misfits, self, manifest, target):
    """Compares names and shapes, and casts what it copies into another dtype, as DCP does."""
    alike = {name: _as_saved(manifest, name, each) for name, each in target.items()}
    return misfits(self, manifest, alike)


class _Vague(Checkpoints):
    def misfits(self, manifest: Manifest, target: Mapping[str, Tensor]) -> Refusals:
        found = Refusals()
        if super().misfits(manifest, target):
            found.add("checkpoint", str(self.folder), "does not fit this model", "load it into another")
        return found


@broken(Reference, "parts", "CKPT-04h[pp2]: does not name ['float64', 'float32', 'weight']")
def says_only_that_it_does_not_fit(parts, self):
    """The refusal names the folder but neither a tensor nor a dtype."""
    return replace(parts(self), checkpoints=_Vague)


@broken(ParallelTrainer, "load", "CKPT-01h[bf16-dp2]: weights: the state")
def resumes_from_what_it_computes_with(load, self, state, position):
    """In bfloat16 the float32 weights that the optimizer moves are made anew from those of the model."""
    if self.recipe.dtype == "bf16":
        state = {n: each.bfloat16().float() if n.startswith("weights/") else each for n, each in state.items()}
    load(self, state, position)


@broken(ParallelTrainer, "save", "CKPT-01n[fsdp2]: with a save after each step, rank 0: step 2: grad_norm is")
def leaves_synchronisation_off(save, self, folder):
    """A save turns gradient synchronisation off, for its gather, and only the next load turns it on again."""
    save(self, folder)
    for each in self.model.modules():
        if isinstance(each, FSDPModule):
            each.set_requires_gradient_sync(False)


@broken(ParallelTrainer, "save", "CKPT-01n[dp2]: with a save after each step, rank 0: step 1: weights: the state")
def saves_what_ranks_agree_on(save, self, folder):
    """Weights are rounded to the dtype of the file, in place, so that all ranks save the same."""
    with torch.no_grad():
        for parameter in self.model.parameters():
            local_part(parameter).copy_(local_part(parameter).bfloat16())
    save(self, folder)


@broken(
    ParallelTrainer, "save", "CKPT-01n[tp2-sp]: with a save after each step, rank 0: step 1: optimizer: the state lacks"
)
def forgets_the_moments(save, self, folder):
    """An optimizer whose state was gathered for the save begins the next step with none."""
    save(self, folder)
    for rule in self.optimizer.rules.values():
        rule.state.clear()

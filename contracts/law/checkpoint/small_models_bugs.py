"""Saves that change the next step, and loads that lose float32 weights."""

import torch
from torch.distributed.fsdp import FSDPModule

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer
from contracts.stacks.reference.parallel.placements import local_part


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

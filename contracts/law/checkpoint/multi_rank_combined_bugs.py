"""Trainers in which an axis of parallelism and a precision are right one by one, and lose something together."""

import torch

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer
from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer
from contracts.stacks.reference.parallel.placements import local_part


@broken(ParallelTrainer, "validate", "CKPT-01p[cp2-bf16]: after 0 loads, step 1: rank 0: weights: the state")
def validates_with_rounded_weights(validate, self, batches):
    """Under context parallel a validation computes in bfloat16 throughout, and weights are cast for it in place."""
    if self.execution.degrees.cp > 1 and self.recipe.dtype == "bf16":
        with torch.no_grad():
            for parameter in self.model.parameters():
                local_part(parameter).copy_(local_part(parameter).bfloat16())
    return validate(self, batches)


@broken(ParallelTrainer, "load", "CKPT-01p[tp2-sp-bf16]: after 1 loads, step 2: rank 0: optimizer: the state")
def loads_sharded_momentum_in_half(load, self, state, position):
    """The momentum of a matrix that tensor-parallel ranks share is loaded in the dtype of the activations."""
    if self.execution.degrees.tp > 1 and self.recipe.dtype == "bf16":
        state = {name: each.bfloat16().to(each.dtype) if "momentum" in name else each for name, each in state.items()}
    load(self, state, position)


@broken(PipelineTrainer, "load", "CKPT-01p[interleaved-bf16]: after 1 loads, step 2: rank 0: losses is")
def leaves_a_copy_at_its_first_value(load, self, state, position):
    """Each tensor is loaded by the stage that counts it; the copy on another stage keeps its initial value."""
    copies = {name: local_part(each.detach()).clone() for name, each in self.model.named_parameters()
              if name in self.optimizer.lent}  # fmt: skip
    load(self, state, position)
    with torch.no_grad():
        for name, each in self.model.named_parameters():
            if name in copies:
                local_part(each).copy_(copies[name])

"""Trainers in which two features are right one by one, and lose something together."""

from collections.abc import Mapping

import torch

from contracts.law._bugs.numeric import Model, ParallelTrainer, PipelineTrainer, Trainer, broken, local_part

Position = Mapping[str, int]


@broken(
    Trainer,
    "load",
    "CKPT-01k[gqa-softmax-bf16-muon-linear-mtp-relu2-accumulated-packed-AEMR-recomputed]: after 1 loads, "
    "step 2: optimizer: ",
)
def rounds_the_momentum_of_muon_under_bfloat16(load, self, state, position):
    """Muon multiplies in bfloat16, and its state is loaded in the dtype of the activations where that is bfloat16."""
    if self.recipe.optim.rule == "muon" and self.recipe.dtype == "bf16":
        state = {name: each.bfloat16().to(each.dtype) if "momentum" in name else each for name, each in state.items()}
    load(self, state, position)


@broken(
    Trainer,
    "load",
    "CKPT-01k[gqa-top-1-fp8-adamw-linear-tied-swiglu-accumulated-own-data-AE-kept]: after 1 loads, step 2: losses is",
)
def makes_scales_anew_where_it_ties(load, self, state, position):
    """A tie is made again after a load, by a function that also sets up FP8: scales equal a fresh model's."""
    load(self, state, position)
    if self.recipe.fp8 is not None and not self.recipe.untied_embeddings:
        for name, each in self.model.named_buffers():
            if name.endswith(".scale"):
                each.fill_(1.0)


_DROPS = "CKPT-01k[dropout-gqa-dense-fp32-adamw-cosine-alone-swiglu-whole-rows-AE-kept]: after "


@broken(
    Trainer, "restore_generators", _DROPS + "1 loads, step 2: losses is",
    "CKPT-01a[adamw]: after 1 loads, step 3: rng:", bugs=("RSM-21",),
)  # fmt: skip
def resumes_with_the_masks_of_the_start(restore_generators, self, states):
    """The generators are not loaded: a run that resumes drops what the first step dropped."""


@broken(Model, "eval", _DROPS + "0 loads, step 1: ")
def validates_with_dropout(eval, self):
    """A validation leaves the model in training mode: it drops, and draws from the generator of the run."""
    return self


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

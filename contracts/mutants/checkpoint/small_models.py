"""Mutants of `checks.checkpoint.small_models`."""

from contracts.mutants._support.broken import broken
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer


@broken(ParallelTrainer, "load", "CKPT-01h[bf16-dp2]: weights: the state")
def resumes_from_what_it_computes_with(load, self, state, position):
    """In bfloat16 the float32 weights that the optimizer moves are made anew from those of the model."""
    if self.recipe.dtype == "bf16":
        state = {n: each.bfloat16().float() if n.startswith("weights/") else each for n, each in state.items()}
    load(self, state, position)

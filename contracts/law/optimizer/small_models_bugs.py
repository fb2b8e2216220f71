"""Optimizers that differ from what the stack says about them, or that lose a loaded state."""

from dataclasses import replace

from contracts.law._bugs.numeric import ParallelTrainer, Reference, broken


@broken(Reference, "built", "OPT-01h[fsdp2]: did not move by adamw with decay 0.1")
def tells_another_decay(built, self, recipe, mode):
    """The table comes from the configuration, and the optimizer from an older copy of it."""
    answer = built(self, recipe, mode)
    rows = tuple(replace(row, weight_decay=0.1) for row in answer.parameters)
    return replace(answer, parameters=rows)


@broken(ParallelTrainer, "take", "OPT-05f[bf16-borrowed-ep2]: was given in float32, and is off by")
def casts_experts_before_they_are_copied(take, self, value, into):
    """What hands a loaded state to several optimizers hands it to the first: the others copy weights that were cast
    (Megatron-LM #3676).
    """
    take(self, value.to(self.model.activations).to(value.dtype) if value.dim() > 2 else value, into)

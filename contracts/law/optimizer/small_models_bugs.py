"""Mutants of `checks.optimizer.small_models`."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.stack import Reference


@broken(Reference, "built", "OPT-01h[fsdp2]: did not move by adamw with decay 0.1")
def tells_another_decay(built, self, recipe, mode):
    """The table comes from the configuration, and the optimizer from an older copy of it."""
    answer = built(self, recipe, mode)
    rows = tuple(replace(row, weight_decay=0.1) for row in answer.parameters)
    return replace(answer, parameters=rows)

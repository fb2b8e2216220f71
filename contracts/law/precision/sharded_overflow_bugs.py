"""Ranks that each look at their own part of a gradient."""

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer
from contracts.stacks.reference.parallel.placements import local_part


@broken(
    ParallelTrainer,
    "follow",
    "PREC-05l[fsdp2]: part of a gradient moved: the weight",
    "PREC-05l[tp2-sp]: part of a gradient moved: the weight",
)
def looks_at_its_own_part(follow, self, norm):
    """One process checks for infinities so: it looks at what this rank holds, and asks nobody."""
    parts = [local_part(each.grad) for each in self.model.parameters() if each.grad is not None]
    return follow(self, 1.0 if all(bool(part.isfinite().all()) for part in parts) else float("inf"))

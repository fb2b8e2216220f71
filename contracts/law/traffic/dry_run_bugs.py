"""Stacks whose dry run predicts another step than the one they run."""

from dataclasses import replace

import torch
import torch.distributed as dist

from contracts.law._bugs.numeric import ParallelTrainer, Reference, broken


@broken(Reference, "rehearse", "TRAF-04g[tp2-sp]: predicted as all_reduce(sum)")
def rehearses_without_sequence_parallel(rehearse, self, recipe, execution, rank, routing):
    """The dry run leaves out sequence parallelism, so that its plan is for another run."""
    plain = replace(execution, degrees=replace(execution.degrees, sp=False))
    return rehearse(self, recipe, plain, rank, routing)


@broken(
    ParallelTrainer,
    "reduce",
    "TRAF-04g[dp2]: is all_reduce(sum) 1 float32 over [0, 1], predicted as",
    leanest="the first that is not predicted is all_reduce(sum) 1 float32",
)
def sends_more_in_earnest(reduce, self):
    """A running step verifies something with a collective that the dry run, which has no numbers, leaves out."""
    reduce(self)
    if dist.get_backend() != "fake":
        dist.all_reduce(torch.ones(1))

"""Mutants for `checks.parallel.first_steps`."""

import torch.distributed as dist

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer, ShardedOptimizer


@broken(ShardedOptimizer, "step", "PAR-07[borrowed-ep2-fsdp2]: experts.w1", bugs=("OPT-30",))
def leaves_out_experts_without_copies(step, self, lr):
    """No optimizer holds the experts that exist on one rank only: the loss falls without them."""
    kept = {member.name: member.parameter.detach().clone() for member in self.members if member.role == "expert"}
    step(self, lr)
    for member in self.members:
        if member.name in kept:
            member.parameter.detach().copy_(kept[member.name])


@broken(ParallelTrainer, "position", "PAR-07[borrowed-tp2-sp-ep2-etp1]: the run resumed after step 4, saved after 5")
def saves_the_step_before_it(position, self):
    """The checkpoint has the step number of the step before."""
    return position(self) | {"step": 4}


@broken(ParallelTrainer, "move_biases", "PAR-07[borrowed-tp2-sp-ep2-etp1]: is barrier")
def waits_for_nobody_at_the_fifth_step(move_biases, self, seen):
    """One rank enters a barrier before it saves, and the others never do."""
    if self.number == 4 and dist.get_rank() == 1:
        dist.barrier()
    move_biases(self, seen)

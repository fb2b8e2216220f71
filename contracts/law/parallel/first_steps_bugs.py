"""Runs that start from other weights on some ranks, and steps in which a parameter does not move."""

from dataclasses import replace

import torch.distributed as dist
from torch.distributed.tensor import DTensor

from contracts.law._bugs.numeric import ParallelTrainer, ShardedOptimizer, broken, local_part, mutant


# what a run begins with
@mutant(
    of="PAR-04g",
    case="tp2",
    says="hold different values of",
    bugs=("INI-11",),
    leanest="of the initial weights embedding.weight differs",
)
@broken(ParallelTrainer, "build", "PAR-04g[dp2]: hold different values of", bugs=("INI-02",))
def starts_replicas_apart(build, self):
    """Seeds include the rank to make shards unique, and replicas become unique too."""
    kept, self.recipe = self.recipe, replace(self.recipe, seed=self.recipe.seed + dist.get_rank())
    model = build(self)
    self.recipe = kept
    return model


@broken(ParallelTrainer, "build", "PAR-04g[ep2]: initial weights", bugs=("INI-13",))
def draws_every_shard_alike(build, self):
    """All ranks draw their local shape from the same seed: half of the experts are copies of the other half."""
    model = build(self)
    for parameter in model.parameters():
        if isinstance(parameter, DTensor) and any(at.is_shard() for at in parameter.placements):
            held = parameter.to_local().detach()
            first = held.clone()
            dist.broadcast(first, 0)
            held.copy_(first)
    return model


@broken(
    ParallelTrainer,
    "build",
    "PAR-04g[borrowed-ep2-fsdp]: of the initial weights layers.1.mixer.experts.",
    "PAR-04g[ep2-fsdp2]: of the initial weights layers.1.mixer.experts.",
    bugs=("DSP-21",),
)
def broadcasts_the_experts_of_rank_zero(build, self):
    """Wrapping synchronises parameters from rank 0, as if all ranks held the same: each holds rank 0's experts."""
    model = build(self)
    for name, parameter in model.named_parameters():
        if ".experts." in name:
            held = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            first = held.detach().clone()
            dist.broadcast(first, 0)
            held.detach().copy_(first)
    return model


@broken(
    ParallelTrainer,
    "build",
    "PAR-04g[dp2-compiled]: of the initial weights layers.",
    "PAR-04g[fsdp2-recomputed]: of the initial weights layers.",
)
def draws_behind_wrappers_as_torch_does(build, self):
    """The initialiser finds parameters by their names, and finds none in a wrapper: these keep torch's own."""
    model = build(self)
    if self.execution.recompute or self.execution.compile != "none":
        for layer in model.layers.values():
            for each in layer.parameters():
                if each.dim() > 1:
                    local_part(each.data).mul_(2)
    return model


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

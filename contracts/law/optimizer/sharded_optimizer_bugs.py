"""Norms, clipping and updates that are wrong where parameters are sharded."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from contracts.law._bugs.numeric import (
    Batch,
    ModelOutput,
    ParallelTrainer,
    ShardedMuon,
    ShardedOptimizer,
    broken,
    from_local_part,
    local_part,
    orthogonalise,
    with_attributes,
)


@broken(
    ShardedOptimizer, "clip", "OPT-04d[ep2]: the weight ", "OPT-04e[ep2]: exp_avg of ",
    "OPT-04e[muon-borrowed-ep2]: momentum_buffer of ", bugs=("CLP-07",),
)  # fmt: skip
def clips_experts_by_themselves(clip, self):
    """Experts and the other parameters are clipped by separate norms; the reported norm covers all."""
    norm, coefficient = clip(self)
    for apart in (True, False):
        members = [each.parameter for each in self.members if (each.role == "expert") == apart]
        ratio = self.coefficient(self.norm_of(members) / coefficient) / coefficient if coefficient < 1 else 1.0
        for parameter in members:
            if parameter.grad is not None:
                parameter.grad.mul_(ratio)
    return norm, coefficient


@broken(ShardedOptimizer, "clip", "OPT-04d[ep2]: the weight ")
def leaves_experts_unclipped(clip, self):
    """The norm exhausts a generator of parameters, so the clip of the second mesh finds none left."""
    before = {each.name: each.parameter.grad for each in self.members if each.role == "expert"}
    kept = {name: grad.clone() for name, grad in before.items() if grad is not None}
    told = clip(self)
    for member in self.members:
        if member.name in kept:
            member.parameter.grad = kept[member.name]
    return told


@broken(ShardedMuon, "direction", "OPT-04d[fsdp2-muon]: the optimizer state ", bugs=("OPT-15",))
def forgets_the_momentum_of_shards(direction, self, grad, buffer, momentum):
    """The sharded rule works on a clone of the momentum; the first step is right."""
    if isinstance(grad, DTensor):
        return direction(self, grad, torch.zeros_like(buffer), momentum)
    return direction(self, grad, buffer, momentum)


@broken(ShardedMuon, "direction", "OPT-04e[muon-tp2-sp]: moved differently")
def orthogonalizes_what_a_rank_has(direction, self, grad, buffer, momentum):
    """A matrix that ranks cut is orthogonalized part by part (--muon-tp-mode blockwise of Megatron-LM)."""
    if not isinstance(grad, DTensor):
        return direction(self, grad, buffer, momentum)
    held = local_part(buffer).mul_(momentum).add_(local_part(grad))
    return from_local_part(orthogonalise(local_part(grad) + momentum * held), grad)


@broken(ShardedMuon, "step", "OPT-04d[dp2-muon]: the weight ")
@torch.no_grad()
def leaves_the_last_matrices_with_their_ranks(step, self, closure=None):
    """Each rank orthogonalizes some of the matrices and hands them to the others; what the last round moved stays where
    it was moved (a relative of Megatron-LM #6754).
    """
    matrices = [each for group in self.param_groups for each in group["params"] if not isinstance(each, DTensor)]
    before = [each.detach().clone() for each in matrices]
    step(self, closure)
    ranks = dist.get_world_size()
    for number in range((len(matrices) - 1) // ranks * ranks, len(matrices)):
        if number % ranks != dist.get_rank():
            matrices[number].copy_(before[number])


@broken(ShardedOptimizer, "decay", "OPT-04d[fsdp2]: the weight ", "OPT-04e[fsdp2]: moved differently")
def divides_the_decay_of_shards(decay, self, member):
    """Decay is divided by the number of ranks, as if they added it up."""
    sharded = isinstance(member.parameter, DTensor)
    return decay(self, member) / (dist.get_world_size() if sharded else 1)


# lanes without data parallelism, and mixed precision
class _ReducesOverNone(ParallelTrainer):
    def reduce(self) -> None:
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                grad = parameter.grad
                if isinstance(grad, DTensor) and isinstance(parameter, DTensor):
                    parameter.grad = grad = grad.redistribute(placements=parameter.placements)
                dist.all_reduce(grad.to_local() if isinstance(grad, DTensor) else grad, group=self.unreduced(name))


@broken(_ReducesOverNone, "reduce", "OPT-03[tp2]: over [0, 1] is all_reduce(sum)")
def reduces_a_singleton_over_the_world(reduce, self):
    """Asked for a distributed optimizer, a run looks up the data-parallel group, finds None, and torch takes the world.

    With uneven shards every rank hangs there; even ones are summed.
    """
    if self.execution.fsdp:
        reduce(self)
    else:
        ParallelTrainer.reduce(self)


class _GathersOldWeights(ParallelTrainer):
    """Every second step computes with the weights of the step before, those whose name has `of` in it."""

    of = ""
    copies: Mapping[str, Tensor] = {}

    def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
        held = {name: local_part(each.detach()).clone() for name, each in self.model.named_parameters()}
        if self.number % 2:
            self._take(self.copies)
        found = super().passes(window, counts)
        self._take(held)
        self.copies = {name: each for name, each in held.items() if self.of in name}
        return found

    def _take(self, values: Mapping[str, Tensor]) -> None:
        for name, each in self.model.named_parameters():
            if name in values:
                local_part(each.detach()).copy_(values[name])


with_attributes(
    "GathersWeightsOfTheStepBefore",
    "Gathered 16-bit weights stay from step to step, and only every second step gathers anew.",
    "OPT-04f[fsdp2]: the second step's lm is",
    owner=_GathersOldWeights,
)


@broken(_GathersOldWeights, "_take", "OPT-04f[fsdp2-muon]: the second step's lm is")
def hands_on_the_updates_of_one_rule(take, self, values):
    """Only AdamW's updates are copied to the 16-bit weights: those that Muon moves are a step late
    (Megatron-LM #5707).
    """
    muon = {member.name for member in self.optimizer.members if self.optimizer.rule(member) == "muon"}
    take(self, {name: each for name, each in values.items() if name in muon})


with_attributes(
    "KeepsExpertsOfTheStepBefore",
    "The same only for experts, whose ranks are others.",
    "OPT-04f[borrowed-ep2-fsdp]: the second step's lm is",
    owner=_GathersOldWeights,
    of=".experts.",
)

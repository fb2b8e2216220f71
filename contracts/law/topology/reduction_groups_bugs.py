"""Stacks that reduce or gather over the wrong ranks, and sums that leave out what other ranks gave."""

from unittest import mock

import torch.distributed as dist

from contracts.law._bugs.multi_rank import GathersFirst
from contracts.law._bugs.numeric import (
    ParallelTrainer,
    TrainingMesh,
    broken,
    collectives,
    parallel_trainer,
    with_attributes,
)
from contracts.stacks.kit.roles import role_of


@broken(ParallelTrainer, "unreduced", "TOPO-09d[borrowed-ep2]: bytes over [0, 1], expected")
def reduces_experts_as_dense(unreduced, self, name):
    """Uses one group for all gradients: those of different experts are added up."""
    return self.mesh.group("rows")


@broken(ParallelTrainer, "reduce", "TOPO-09d[ep2]: bytes over [0, 1], expected 0", bugs=("DPS-08",))
def averages_over_ranks_with_the_same_data(reduce, self):
    """Ranks that share a batch are averaged like data-parallel ranks: the number is right, but the traffic was for
    nothing.
    """
    reduce(self)
    for name, parameter in self.model.named_parameters():
        if parameter.grad is not None and role_of(name) != "expert":
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(self.execution.world)


with_attributes(
    "HooksSequenceParallelOntoExperts",
    "With EP active, expert layers also have the hook that gathers the sequence: the bring-up's first hang.",
    "TOPO-04d[borrowed-tp2-sp-ep2-etp1]: move the residual stream",
    owner=GathersFirst,
)


class _ByExpertParallelAlone(TrainingMesh):
    @property
    def lane(self) -> bool:
        return self.degrees.ep_active


@broken(ParallelTrainer, "build", "TOPO-04d[tp2-sp-etp1]: move the residual stream")
def shards_experts_like_mixers_without_ep(build, self):
    """The degree of expert tensor parallelism is read only where EP is active: otherwise experts are sharded like other
    mixers, over tokens that are gathered first."""
    with mock.patch.object(parallel_trainer, "TrainingMesh", _ByExpertParallelAlone):
        return build(self)


@broken(
    collectives,
    "sum_over_ranks",
    "TOPO-05k[first-axis-fastest]: the sum over ranks [0, 1] differs",
    "TOPO-05k[first-axis-fastest-on-4]: the sum over ranks [2, 3] differs",
)
def sums_a_copy(sum_over_ranks, x, group):
    """`all_reduce(x.contiguous())` sums in place, and where x is not contiguous the place is a copy."""
    held = x.detach()
    if group is not None:
        dist.all_reduce(held.contiguous(), group=group)
    return held


@broken(collectives, "sum_over_ranks", "TOPO-05k[row-by-row]: the sum over ranks [0, 1] differs")
def averages(sum_over_ranks, x, group):
    """The mean of the ranks, as gradients of data-parallel ranks are averaged."""
    return sum_over_ranks(x, group) / dist.get_world_size(group)

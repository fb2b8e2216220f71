"""Sums that leave out what other ranks gave."""

import torch.distributed as dist

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.parallel import collectives


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

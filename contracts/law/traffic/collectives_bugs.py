"""Stacks whose ranks issue different collectives, or send too much.

One rank skips a collective, or issues it in another order, dtype or reduction. Each run has to end within the deadline
with what both ranks issued in the message, and not with a timeout.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from contracts.law._bugs.dead import EveryRankDoesAll
from contracts.law._bugs.numeric import (
    Attention,
    Batch,
    ContextParallel,
    ModelOutput,
    Output,
    Packing,
    ParallelTrainer,
    PipelineTrainer,
    ShardedMuon,
    ShardedOptimizer,
    State,
    TokenDispatcher,
    all_to_all,
    broken,
    derived,
    from_local_part,
    local_part,
    orthogonalise,
    with_attributes,
)


@broken(
    ParallelTrainer,
    "move_biases",
    "TRAF-01[dp2]: over [0, 1] is all_reduce(sum) 3 float32 on rank 0",
    bugs=("CMP-06", "RSM-35"),
)
def reduces_a_metric_on_one_rank(move_biases, self, seen):
    """Rank 0 reduces a metric for its log: a collective under `if rank == 0`."""
    move_biases(self, seen)
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(3))


@broken(
    ParallelTrainer,
    "move_biases",
    "TRAF-01[tp2-sp]: is all_reduce(sum) 3 float32 on rank 1 and barrier",
    bugs=("RSM-33",),
)
def one_rank_waits_behind_the_last_step(move_biases, self, seen):
    """After the last step, one rank waits in a reduction that no other rank enters."""
    move_biases(self, seen)
    if self.number == 1 and dist.get_rank() == 1:
        dist.all_reduce(torch.ones(3))


@broken(
    TokenDispatcher,
    "through",
    "TRAF-01[ep2]: is all_to_all rows of 24 float64 on rank",
    bugs=("FSD-03", "CMP-03", "PPS-14"),
)
def skips_the_exchange_with_little_to_do(through, self, experts, x_SD, counts_E):
    """A rank whose experts have few or no rows skips the all-to-all."""
    counts_ne = self.announced(counts_E)
    sent, received = self.lengths(counts_E), [int(rows) for rows in counts_ne.sum(1)]
    if 2 * sum(received) < x_SD.shape[0] * len(received):
        return x_SD * 0
    y_RD = self.by_expert(experts, all_to_all(x_SD, received, sent, self.ep), counts_ne)
    return all_to_all(y_RD, sent, received, self.ep)


@broken(
    ParallelTrainer,
    "reduce",
    "TRAF-01[dp2]: float64 on rank 0 and all_reduce(sum) 24x28 float64 on rank 1",
    bugs=("FSD-10",),
    leanest="all_reduce(sum) 40x24 float64 on rank 1",
)
def reduces_in_an_order_of_its_own(reduce, self):
    """Gradients are reduced as they become ready, in a different order on each rank."""
    parameters = [each for each in self.model.parameters() if each.grad is not None]
    for parameter in reversed(parameters) if dist.get_rank() else parameters:
        dist.all_reduce(parameter.grad, group=self.mesh.group("rows"))


@broken(ParallelTrainer, "over_parts", "TRAF-01[dp2]: 16 int64 on rank", bugs=("CLP-23",), leanest="")
def reduces_metrics_as_a_set_has_them(over_parts, self, values):
    """Metrics are reduced in the order of a set of names, which differs between processes."""
    group = self.mesh.group("rows")
    found = dict(values)
    for name in sorted(values, reverse=bool(dist.get_rank())):
        found[name] = values[name].clone()
        dist.all_reduce(found[name], group=group)
    return found


@broken(
    ParallelTrainer,
    "reduce",
    "TRAF-01[dp2]: is all_reduce(sum) 67x24 float64 on rank 0 and all_reduce(sum) 67x24 float32",
    leanest="all_reduce(sum) 68x24 float32 on rank 1",
)
def reduces_in_another_dtype_on_one_rank(reduce, self):
    """Autocast is on on one rank only. The bytes are misread, and nothing reports it."""
    for parameter in self.model.parameters():
        if parameter.grad is not None:
            sent = parameter.grad.to(torch.float32) if dist.get_rank() else parameter.grad
            dist.all_reduce(sent, group=self.mesh.group("rows"))
            parameter.grad = sent.to(parameter.dtype)


@broken(ParallelTrainer, "over_rows", "TRAF-01[dp2]: all_reduce(max) 1 int64 on rank 1")
def takes_the_largest_on_one_rank(over_rows, self, counts):
    """One rank reduces by the maximum, the other by the sum: torch's debug mode does not notice."""
    found = {name: each.clone() for name, each in counts.items()}
    operation = dist.ReduceOp.MAX if dist.get_rank() else dist.ReduceOp.SUM
    for name in sorted(found):
        dist.all_reduce(found[name], op=operation, group=self.mesh.group("rows"))
    return found


@broken(TokenDispatcher, "lengths", "TRAF-01[ep2]: of rank 1, which sends")
def sends_other_lengths_than_it_said(lengths, self, counts_E):
    """Row counts are announced before tokens are dropped. gloo accepts the shorter message and leaves old rows behind
    it.
    """
    sent = lengths(self, counts_E)
    if dist.get_rank() == 1:
        sent = [sent[0] - 1, sent[1] + 1]
    return sent


# empty tensors
@broken(
    ShardedOptimizer,
    "norm",
    "TRAF-03[fsdp2]: is all_gather 1 float64 on rank 0 and all_gather 0 float64 on rank 1",
    bugs=("OPT-31",),
)
def gathers_shards_as_they_are(norm, self):
    """Shards are gathered without padding: where a dimension is smaller than the world, one rank's shard is empty."""
    for member in self.members:
        grad = member.parameter.grad
        held = grad.to_local() if isinstance(grad, DTensor) else grad
        if held is None or held.dim() > 1:
            continue
        every = [torch.empty_like(held) for _ in range(dist.get_world_size())]
        dist.all_gather(every, held.contiguous())
    return norm(self)


@broken(ParallelTrainer, "over_parts", "TRAF-03[fsdp2]: passes an empty tensor to all_reduce(sum) 0 float32")
def sums_counts_that_are_not_there(over_parts, self, values):
    """A model without routers has no token counts, and an empty tensor is reduced for them."""
    counts = [each for name, each in values.items() if name.endswith(".counts")]
    dist.all_reduce(torch.cat([torch.empty(0), *counts]))
    return over_parts(self, values)


@derived("TRAF-05[dp2]: bytes are reduced, expected at most", bugs=("FSD-01", "FSD-02"))
class ReducesEachMicrobatch(ParallelTrainer):
    """`no_sync` does nothing: every number is right, and gradients are sent once per microbatch."""

    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        before = {name: each.grad for name, each in self.model.named_parameters()}
        self.optimizer.zero()
        out = super().accumulate(micro, counts)
        super().reduce()
        for name, parameter in self.model.named_parameters():
            earlier = before[name]
            if earlier is not None and parameter.grad is not None:
                parameter.grad = parameter.grad + earlier
        return out

    def reduce(self) -> None:
        pass


with_attributes(
    "SendsNothingAtAll",
    "Every rank computes the whole step: nothing empty is sent, and nothing too often.",
    "TRAF-05[fsdp2]: 0 bytes are reduced, expected at least",
    "TRAF-05[dp2]: 0 bytes are reduced, expected at least",
    "TRAF-03[fsdp2]: no collective was seen",
    owner=EveryRankDoesAll,
)


@derived("TRAF-05[borrowed-cp2]: bytes are gathered, expected at most", leanest="bytes are reduced, expected at most")
class GathersKeysOfEveryHead(Attention):
    """Keys and values are repeated for the query heads first, and then sent once for each of them."""

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        q_BTHd, k_BTGd, v_BTGd = (self.split(matrix(x_BTD)) for matrix in (self.wq, self.wk, self.wv))
        q_BTHd, k_BTGd = self.place(q_BTHd, k_BTGd, packing)
        k_BSHd, v_BSHd = (self.row.every(self.repeat(each, q_BTHd.shape[2])) for each in (k_BTGd, v_BTGd))
        visible_BTS = None if packing.boundless else self.visible(packing)
        return Output(y_BTD=self.wo(self.attend(q_BTHd, k_BSHd, v_BSHd, visible_BTS).flatten(2)))


@broken(ContextParallel, "tails", "TRAF-01[borrowed-cp2]: is all_gather 4x3x32 float64 on rank 1", leanest="")
def the_first_rank_asks_for_no_tail(tails, self, u_BTx, tokens):
    """The first rank of a row has nothing before it, and leaves the exchange out."""
    if self.rank:
        return tails(self, u_BTx, tokens)
    return u_BTx.new_zeros(u_BTx.shape[0], self.ranks * tokens, *u_BTx.shape[2:])


@broken(ShardedOptimizer, "norm", "TRAF-05[fsdp2]: bytes are gathered, expected at most")
def gathers_everything_for_the_norm(norm, self):
    """Whole tensors are gathered on every rank to compute the norm."""
    for member in self.members:
        if isinstance(member.parameter.grad, DTensor):
            member.parameter.grad.full_tensor()
            member.parameter.detach().full_tensor()
    return norm(self)


@broken(
    PipelineTrainer,
    "passes",
    "TRAF-01[pp2-a-stage-without-experts]: is all_reduce(sum) 5 float32 on rank 0 and",
    bugs=("AUX-13",),
)
def tracks_losses_of_its_own_layers(passes, self, window, counts):
    """The table of auxiliary losses is made where it is first written, with a size of the stage: stages reduce tables
    of different lengths, and hang.
    """
    out = passes(self, window, counts)
    tracked = [each for name, each in sorted(out[0].seen.items()) if name.endswith(".counts")]
    dist.all_reduce(torch.zeros(len(self.recipe.pattern.replace("|", "")) + len(tracked)), group=self.group)
    return out


@broken(ShardedMuon, "direction", "TRAF-03[fsdp4-muon]: the weight", bugs=("FSD-07",))
def orthogonalises_what_it_holds(direction, self, grad, buffer, momentum):
    """A rank with an empty shard skips the orthogonalisation, so every rank does only its own part."""
    if not isinstance(grad, DTensor):
        return direction(self, grad, buffer, momentum)
    held, kept = local_part(grad), local_part(buffer)
    kept.mul_(momentum).add_(held)
    ahead = held + momentum * kept
    return from_local_part(orthogonalise(ahead) if ahead.numel() else ahead, grad)

"""Stacks whose steps have the right numbers, or nearly, and send too much or the wrong things."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

from contracts.law._bugs.multi_rank import GathersFirst
from contracts.law._bugs.numeric import (
    Linear,
    ParallelTrainer,
    Reference,
    RMSNorm,
    ShardedOptimizer,
    TensorParallel,
    TokenDispatcher,
    all_gather,
    all_reduce,
    all_to_all,
    broken,
    derived,
    own_rows,
    with_attributes,
)
from contracts.stacks.kit.roles import layer_of
from contracts.stacks.reference.parallel import fsdp
from contracts.stacks.reference.parallel.collectives import all_rows
from contracts.stacks.reference.parallel.expert_parallel import Experts


# weights
@broken(ShardedOptimizer, "norm", "TRAF-04a[fsdp8]: more than twice")
def gathers_weights_once_more(norm, self):
    """All weights are gathered a third time, for a histogram."""
    for member in self.members:
        if isinstance(member.parameter, DTensor):
            member.parameter.detach().full_tensor()
    return norm(self)


@broken(fsdp, "fully_shard", "TRAF-04a[tp2-sp-ep2-fsdp2]: all-gathers of weights are in float64")
def gathers_weights_in_float64(fully_shard, *args, **named):
    """The policy of a precision test stays on: weights are widened before they are gathered."""
    return fully_shard(*args, **named, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float64))


@broken(fsdp, "fsdp_units", "TRAF-04a[fsdp8]: all-gathers bring the weights of 4 layers, at most")
def gathers_one_tensor_at_a_time(fsdp_units, model):
    """`fully_shard` wraps every matrix: as many bytes, in many times as many collectives."""
    layers = list(model.layers.values())
    return [*(each for layer in layers for each in layer.modules() if isinstance(each, Linear)), *layers, model]


@broken(fsdp, "shard", "TRAF-04a[hsdp-2x8]: not all is gathered", bugs=("PG-04",))
def never_shards(shard, *args):
    """FSDP is asked for and wraps nothing, because one of its degrees was read as 1."""


@broken(fsdp, "fully_shard", "TRAF-04a[fsdp8]: they are not gathered again", "TRAF-04a[hsdp-2x8]: not gathered again",
        "TRAF-04a[borrowed-ep4-fsdp8]: they are not gathered again for the backward pass")  # fmt: skip
def keeps_gathered_weights(fully_shard, *args, **named):
    """Layers stay gathered after the forward pass: every rank holds the whole model before the backward pass."""
    return fully_shard(*args, **named, reshard_after_forward=False)


with_attributes(
    "DeclaresThatItKeepsWeights",
    "Declares that it keeps gathered weights until the backward pass, and gathers them again.",
    "TRAF-04a[fsdp8]: they are not kept until the backward pass",
    owner=Reference,
    conventions={"gathered-weights": "kept"},
)


# gradients
@broken(ParallelTrainer, "reduce", "TRAF-04b[fsdp8]: elements are reduced over [0, 1, 2, 3, 4, 5, 6, 7], expected")
def all_reduces_the_embedding_whole(reduce, self):
    """The embedding's gradient is reduce-scattered, and then all-reduced whole as if it were tied."""
    reduce(self)
    dist.all_reduce(torch.zeros(self.model.embedding.weight.shape), group=self.mesh.group("rows"))


@broken(fsdp, "fully_shard", "TRAF-04b[borrowed-tp2-sp-ep4-fsdp4]: gradients are reduced in bfloat16", bugs=("MXP-09",))
def reduces_in_bfloat16(fully_shard, *args, **named):
    """Gradients are reduced over the ranks in 16 bits."""
    return fully_shard(*args, **named, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))


@broken(
    fsdp,
    "data_mesh",
    "TRAF-04b[hsdp-2x8]: 0 elements are reduced over [0, 8], which hold the same",
    bugs=("PG-03",),
)
def forgets_the_copies(data_mesh, mesh):
    """HSDP does not reduce over replicas: each replica of the model trains by itself."""
    return None if mesh is None else mesh["shard"]


# residual stream
@broken(TensorParallel, "enter", "TRAF-04c[tp2-sp-ep2-fsdp2]: bytes go into all_gather over TP, at most")
def gathers_the_stream_in_float32(enter, self, x_BTD):
    """The residual stream is widened before it is gathered, and narrowed after."""
    return all_gather(x_BTD.float(), 1, self.group).to(x_BTD.dtype)


with_attributes(
    "KeepsWhatItSaysItGathersAgain",
    "Declares that it keeps its own run of an input and gathers the whole again, and keeps the whole.",
    "TRAF-04c[tp2-sp-dp4]: times the residual stream goes into all_gather over TP, expected",
    conventions={"gathered-input": "again"},
)


@broken(TensorParallel, "leave", "TRAF-04c[borrowed-tp2-sp-ep4-fsdp4]: times the residual stream goes into")
def all_reduces_and_keeps_its_run(leave, self, y_BTD):
    """An all-reduce replaces a reduce-scatter, and each rank throws away what is not its own."""
    return all_reduce(y_BTD, self.group).chunk(self.size, dim=1)[self.rank]


with_attributes(
    "GathersTheStreamForExperts",
    "Routers get the whole sequence although their layers send only their own rows.",
    "TRAF-04c[tp2-sp-ep2-fsdp2]: times the residual stream goes into all_gather over TP",
    owner=GathersFirst,
)


@broken(
    TensorParallel,
    "between",
    "TRAF-04c[borrowed-tp2-sp-ep4-fsdp4]: elements are summed over TP, whose ranks hold",
    bugs=("SP-11",),
)
def leaves_gradients_of_norms_apart(between, self, module):
    """Under sequence parallel, each rank keeps a norm's gradient from its own tokens."""
    between(self, module)
    for each in module.modules():
        if isinstance(each, Linear | RMSNorm):
            each.summed = False


@broken(ParallelTrainer, "reduce", "TRAF-04c[tp2-sp-ep2-fsdp2]: is all-reduced over TP")
def sums_every_gradient_over_tp(reduce, self):
    """Over-correction: not only the gradients of norms but all gradients are summed over TP."""
    reduce(self)
    for parameter in self.model.parameters():
        grad = parameter.grad
        if grad is not None:
            dist.all_reduce(grad.to_local() if isinstance(grad, DTensor) else grad, group=self.mesh.group("tp"))


# rows
@broken(TokenDispatcher, "through", "TRAF-04d[tp2-sp-ep2-fsdp2-balanced]: 1.25 times")
def sends_padded_rows(through, self, experts, x_SD, counts_E):
    """Every rank gets a full set of capacity slots, however few rows there are."""
    counts_ne = self.announced(counts_E)
    slots = 5 * len(x_SD) // (4 * len(counts_ne))
    room = x_SD.new_zeros(slots * len(counts_ne) - len(x_SD), x_SD.shape[1])
    rows = [slots] * len(counts_ne)
    x_RD = all_to_all(torch.cat([x_SD, room]), rows, rows, self.ep)
    y_RD = experts(x_RD, counts_ne.sum(0).cumsum(0))
    return all_to_all(y_RD, rows, rows, self.ep)[: len(x_SD)]


@derived("TRAF-04d[borrowed-tp2-sp-ep4-fsdp4-balanced]: experts lie on", bugs=("PG-05", "PG-06"))
class SendsRowsOverTheWorld(TokenDispatcher):
    """The all-to-all uses the default group: right where EP spans the world, and wrong elsewhere."""

    def through(self, experts: Experts, x_SD: Tensor, counts_E: Tensor) -> Tensor:
        counts_ne = self.announced(counts_E)
        received = self.everywhere([int(rows) for rows in counts_ne.sum(1)])
        sent = self.everywhere(self.lengths(counts_E))
        y_RD = self.by_expert(experts, all_to_all(x_SD, received, sent, dist.group.WORLD), counts_ne)
        return all_to_all(y_RD, sent, received, dist.group.WORLD)

    def everywhere(self, rows: list[int]) -> list[int]:
        places = dict(zip(dist.get_process_group_ranks(self.ep), rows, strict=True))
        return [places.get(rank, 0) for rank in range(dist.get_world_size())]


@broken(
    TokenDispatcher, "announced", "TRAF-04d[tp2-sp-ep2-fsdp2-crowded]: elements of rows go into all-to-alls, expected"
)
def takes_as_many_rows_as_it_sends(announced, self, counts_E):
    """Counts are not exchanged: each rank expects from another as many rows as it sends there. Balanced routing hides
    it.
    """
    return counts_E.view(dist.get_world_size(self.ep), -1)


@broken(TokenDispatcher, "through", "TRAF-04d[borrowed-tp2-sp-ep4-fsdp4-balanced]: rows go in float32")
def sends_rows_in_float32(through, self, experts, x_SD, counts_E):
    """Rows are widened for the gates before they travel instead of after."""

    def narrow(x_RD, ends_E):
        return experts(x_RD.to(x_SD.dtype), ends_E).float()

    return through(self, narrow, x_SD.float(), counts_E).to(x_SD.dtype)


# everything else
@broken(ParallelTrainer, "over_parts", "TRAF-04e[tp2-sp-ep2-fsdp2]: bytes are neither weights")
def reduces_every_probability_for_the_log(over_parts, self, values):
    """Router probabilities of every token are reduced over the world in every step, for a chart."""
    dist.all_reduce(torch.zeros(self.recipe.seq_length, 16))
    return over_parts(self, values)


@broken(ParallelTrainer, "over_parts", "TRAF-04e[tp2-sp-fsdp4]: bytes are neither weights")
def sums_hidden_states_for_a_chart(over_parts, self, values):
    """The hidden states of a sequence are summed over all ranks in every step, for a chart of their norms."""
    dist.all_reduce(torch.zeros(self.recipe.seq_length, self.recipe.hidden))
    return over_parts(self, values)


@broken(TokenDispatcher, "share", "TRAF-04e[tp2-sp-ep2-fsdp2]: elements are gathered between ranks of EP, at most")
def gathers_what_every_rank_has(share, self, routed, x_BTD, routing, dropped_BTK):
    """Ranks that hold the same tokens gather them from each other before routing."""
    x_ND = x_BTD.flatten(0, 1).detach()
    all_rows(own_rows(x_ND, self.sharers), len(x_ND), self.sharers)
    return share(self, routed, x_BTD, routing, dropped_BTK)


@broken(ParallelTrainer, "unreduced", "TRAF-04f[dp8]: elements are reduced over [0, 1, 2, 3, 4, 5, 6, 7], expected")
def reduces_the_first_half_of_its_layers(unreduced, self, name):
    """Layers after the twenty-sixth are in a bucket that is never sent; a model of a few layers has no such bucket."""
    return None if (layer_of(name) or 0) >= 26 else unreduced(self, name)


# growth
@broken(fsdp, "shard_placement", "TRAF-05a[fsdp]: times as much among 512 ranks as among 8", leanest="")
def cuts_between_experts(shard_placement, mesh):
    """Parameters are always cut along their first dimension: 16 experts over 512 ranks are padded to 512."""
    return lambda parameter: None


@broken(
    ParallelTrainer,
    "reduce",
    "TRAF-05a[dp]: times as much among 512 ranks as among 8",
    leanest="times as much among 64 ranks as among 8",
)
def gathers_a_log_of_every_rank(reduce, self):
    """Every rank gathers four megabytes of statistics from every rank: little among 8, two gigabytes among 512."""
    reduce(self)
    log = torch.zeros(1 << 20)
    dist.all_gather([torch.empty_like(log) for _ in range(self.execution.world)], log)

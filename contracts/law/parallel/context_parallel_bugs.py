"""Stacks whose context parallel has one bug: positions, masks and documents, gradients, or reduction groups.

Stacks that lose the state at a border between ranks stand in `mutants.blocks.context_parallel_state`.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from contracts.law._bugs.multi_rank import routed
from contracts.law._bugs.numeric import (
    WHOLE_SEQUENCE,
    ContextParallel,
    Indexer,
    Packing,
    ParallelTrainer,
    ShardedOptimizer,
    broken,
    collectives,
    derived,
    mutant,
    packing,
    with_attributes,
)
from contracts.spec import refuse


# positions
@mutant(of="PAR-01g", case="cp2-latent", says="lm is", bugs=("ROP-28",))
@broken(ContextParallel, "packing", "PAR-01g[cp2]: lm is", bugs=("ROP-03", "ROP-06", "ROP-28"))
def turns_by_positions_within_the_run(former, self, whole):
    """Rope counts positions from the first token of each rank, so that a key on another rank seems to stand beside the
    query.
    """
    cut = former(self, whole)
    return cut._replace(positions_BT=packing(cut.documents_BT, cut.documents_BT).positions_BT)


# scans over several chunks
@broken(ContextParallel, "kept", "PAR-01g[cp2-long-custom-mixers]: lm is", "PAR-01g[cp2-long]: lm is")
def lets_the_state_fade_from_each_chunk(kept, self, log_decay_BTh, chunk):
    """How much of the state of the rank before is left is counted from the beginning of a chunk, and a rank has two
    (as flash-linear-attention #1115 reads the decay of the first chunk)."""
    parts = torch.split(log_decay_BTh, chunk, dim=1)
    return torch.cat([kept(self, each, chunk) for each in parts], dim=1)


# masks and documents
@broken(ContextParallel, "packing", "PAR-01g[cp2]: lm is")
def sees_the_runs_behind_it(packing, self, whole):
    """All ranks use the causal mask of the last rank: the first rank sees keys of tokens that it has to predict."""
    cut = packing(self, whole)
    return cut._replace(first=(self.ranks - 1) * cut.documents_BT.shape[1])


@broken(ContextParallel, "packing", "PAR-01g[cp2]: lm is")
def ends_a_document_at_the_border(packing, self, whole):
    """Documents are numbered by rank, so that none continues from the rank before."""
    cut = packing(self, whole)
    apart = torch.arange(self.ranks).repeat_interleave(cut.documents_BT.shape[1]) * 100
    return cut._replace(
        documents_BT=cut.documents_BT + 100 * self.rank, row_BS=cut.whole_row + apart.expand_as(cut.whole_row)
    )


@broken(ContextParallel, "packing", "PAR-01g[cp2]: on one rank, already with only layer 0 (A)")
def continues_only_documents_that_fill_the_rank_before(packing, self, whole):
    """A document continues from the rank before only if it is the one with which that rank begins."""
    cut = packing(self, whole)
    length = cut.documents_BT.shape[1]
    begins_BC = cut.whole_row[:, ::length]
    apart_BC = 100 * (begins_BC.diff(prepend=begins_BC[:, :1]) != 0).cumsum(1)
    return cut._replace(
        documents_BT=cut.documents_BT + apart_BC[:, self.rank, None],
        row_BS=cut.whole_row + apart_BC.repeat_interleave(length, dim=1),
    )


@mutant(of="PAR-01h", case="cp2", says="whose document does not count")
@broken(ContextParallel, "packing", "PAR-01g[cp2]: lm is", bugs=("ROP-28",))
def numbers_documents_on_each_rank_from_nought(packing, self, whole):
    """Over-correction: the first documents of all ranks have the same number and become one document."""
    cut = packing(self, whole)
    run_BrT = cut.whole_row.view(len(cut.whole_row), self.ranks, -1)
    return cut._replace(
        documents_BT=cut.documents_BT - cut.documents_BT[:, :1], row_BS=(run_BrT - run_BrT[..., :1]).flatten(1)
    )


@broken(
    ContextParallel,
    "continues_document",
    "PAR-01g[cp2]: lm is",
    "PAR-01h[cp2-custom-mixers]: whose document does not count",
)
def takes_the_state_over_into_another_document(continues_document, self, packing, rank):
    """A rank takes over the state of the rank before without checking whether a new document begins with it."""
    return torch.full_like(continues_document(self, packing, rank), rank > 0)


@broken(ContextParallel, "past", "PAR-01g[cp2]: lm is", "PAR-01h[cp2]: whose document does not count")
def looks_back_into_another_document(past, self, u_BTx, tokens, packing):
    """The convolution gets the last tokens of the rank before, even if they belong to another document."""
    one, row = torch.zeros_like(packing.documents_BT), torch.zeros_like(packing.whole_row)
    return past(self, u_BTx, tokens, packing._replace(documents_BT=one, row_BS=row))


@broken(Indexer, "select", "PAR-01g[cp2-sparse-more-keys]: lm is")
def chooses_no_more_keys_than_it_has_tokens(select, self, scores_BTS, visible_BTS):
    """The number of keys that a query chooses is held against the tokens of its rank, not against those of the row."""
    chosen, self.top_k = self.top_k, min(self.top_k, scores_BTS.shape[1])
    try:
        return select(self, scores_BTS, visible_BTS)
    finally:
        self.top_k = chosen


# gradients that come back
@mutant(of="PAR-01g", case="cp2-latent", says="the gradient of layers.0.mixer.wkv_a.weight differs")
@broken(ContextParallel, "every", "PAR-01g[cp2]: the gradient of", bugs=("ROP-29",))
def leaves_what_other_ranks_say_about_its_keys(every, self, x_BTx):
    """Keys and values are gathered without a gradient, so that only the rank's own queries train them."""
    whole_BSx, length = every(self, x_BTx.detach()), x_BTx.shape[1]
    first = self.rank * length
    return torch.cat([whole_BSx[:, :first], x_BTx, whole_BSx[:, first + length :]], dim=1)


@broken(ContextParallel, "every", "PAR-01g[cp2]: the gradient of")
def sums_the_gradient_of_keys_twice(every, self, x_BTx):
    """Over-correction: the gradient of the keys is all-reduced and then reduce-scattered."""
    if not x_BTx.is_floating_point():
        return every(self, x_BTx)
    return collectives.copy_to_ranks(every(self, x_BTx), self.group)


# over which ranks
class _Scaled(ParallelTrainer):
    """Multiplies complete gradients by the degree or its inverse."""

    power = 1

    def reduce(self) -> None:
        super().reduce()
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(float(self.execution.degrees.cp) ** self.power)


with_attributes(
    "DividesByTheDegreeOnceMore",
    "Losses are divided by the labels of whole rows, and gradients are averaged over context-parallel ranks too.",
    "PAR-01g[cp2]: loss agrees, norm is",
    owner=_Scaled,
    power=-1,
)

with_attributes(
    "ScalesByDataParallelAlone",
    "The sum over dp · cp ranks is scaled as one over dp: every gradient is CP times too large.",
    "PAR-01g[cp2-fsdp]: loss agrees, norm is",
    owner=_Scaled,
    bugs=("DPS-08",),
)


@mutant(of="PAR-02g", case="cp2", says="hold different values of", bugs=("PG-04",))
@broken(ParallelTrainer, "unreduced", "PAR-01g[cp2-dp2]: the gradient of")
def reduces_over_data_parallel_alone(unreduced, self, name):
    """Gradients are reduced over data-parallel ranks only. If there are none, each context-parallel rank trains
    by itself.
    """
    group = unreduced(self, name)
    return None if group is None else self.mesh.group("rows")


@broken(ShardedOptimizer, "norm_of", "PAR-03g[cp2]: grad_norm is")
def counts_each_copy_in_the_norm(norm_of, self, parameters):
    """The norm adds squares over context-parallel ranks, which hold the same gradients."""
    return norm_of(self, parameters) * 2**0.5


@broken(ShardedOptimizer, "norm_of", "PAR-03g[cp2-fsdp]: grad_norm is")
def takes_the_norm_of_its_shards(norm_of, self, parameters):
    """Parameters are sharded over context-parallel ranks, and each rank clips by the norm of its own shards."""
    held = [each.grad for each in parameters if each.grad is not None]
    parts = [each.to_local() if hasattr(each, "to_local") else each for each in held]
    return float(torch.stack([each.double().norm() for each in parts]).norm())


# capacity, and rows that do not divide
@broken(ParallelTrainer, "build", "PAR-01g[cp2-capacity]: on one rank", "PAR-01g[cp2-capacity-by-gate]: on one rank",
        "PAR-01a[tp2-sp-etp1-capacity]: on one rank", "PAR-01a[tp2-sp-etp1-capacity-by-gate]: on one rank")  # fmt: skip
def fills_slots_by_run(build, self):
    """Expert capacity is counted per rank: a token is dropped where its rank is crowded and the row is not."""
    model = build(self)
    for moe in routed(model):
        moe.row = WHOLE_SEQUENCE
    return model


@derived("PAR-01i[cp2]: on one rank")
class LeavesOutTokensThatDoNotDivide(ContextParallel):
    """Each rank takes the integer part of T / CP tokens, and the remaining tokens are dropped."""

    def own(self, x_BS: Tensor) -> Tensor:
        return super().own(x_BS[:, : x_BS.shape[1] // self.ranks * self.ranks])

    def packing(self, whole: Packing) -> Packing:
        cut = super().packing(whole)
        return cut._replace(row_BS=cut.whole_row[:, : self.ranks * cut.documents_BT.shape[1]])


@broken(ContextParallel, "own", "PAR-01i[cp4]: the refusal does not name [4, 14]")
def does_not_say_what_does_not_divide(own, self, x_BS):
    """The row is refused without the numbers, so that the reader has to find out which one to change."""
    if x_BS.shape[1] % self.ranks:
        raise refuse("batch", "this one", "does not divide", "give another")
    return own(self, x_BS)


@broken(ContextParallel, "tails", "PAR-01g[cp2-dp2]: on one rank", bugs=("PG-25",))
def exchanges_borders_over_the_world(tails, self, u_BTx, tokens):
    """Border exchanges name no group: ranks of the second replica receive tokens of the first."""
    return collectives.all_gather(u_BTx[:, -tokens:], 1, dist.group.WORLD)

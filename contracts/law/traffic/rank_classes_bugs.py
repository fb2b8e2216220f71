"""Stacks in which one class of ranks behaves differently; no single rank and no small world shows it."""

import torch
import torch.distributed as dist

from contracts.law._bugs.numeric import ParallelTrainer, PipelineTrainer, TokenDispatcher, all_to_all, broken, mutant


@broken(
    ParallelTrainer,
    "move_biases",
    "TRAF-01a[dp8]: collectives over [0, 1, 2, 3, 4, 5, 6, 7], rank 7",
    "TRAF-01b[fsdp512]: collectives over [0, 1, … 511], rank 511",
    bugs=("RSM-33",),
)
def last_rank_has_something_to_tell(move_biases, self, seen):
    """The last rank reduces a value that it prints, over ranks that print nothing."""
    move_biases(self, seen)
    if dist.get_rank() == self.execution.world - 1:
        dist.all_reduce(torch.ones(3), group=self.mesh.group("rows"))


@broken(
    TokenDispatcher,
    "through",
    "TRAF-01a[tp2-sp-ep2-fsdp2]: is all_to_all rows of 3584 bfloat16 on rank 0",
    bugs=("FSD-03", "DSP-22", "PPS-14"),
)
def leaves_the_exchange_out_without_rows(through, self, experts, x_SD, counts_E):
    """A rank whose experts got no rows skips the all-to-all, although it has rows to send."""
    counts_ne = self.announced(counts_E)
    if int(counts_ne.sum()) == 0:
        return x_SD * 0
    sent, received = self.lengths(counts_E), [int(rows) for rows in counts_ne.sum(1)]
    y_RD = self.by_expert(experts, all_to_all(x_SD, received, sent, self.ep), counts_ne)
    return all_to_all(y_RD, sent, received, self.ep)


@broken(ParallelTrainer, "reduce", "TRAF-01b[hsdp-8x8]: bfloat16 on rank 8")
def first_node_reduces_in_another_dtype(reduce, self):
    """The first node runs with another environment, and its ranks reduce a statistic in 32 bits."""
    reduce(self)
    wide = torch.float32 if dist.get_rank() < 8 else torch.bfloat16
    dist.all_reduce(torch.zeros(64, dtype=wide), group=self.mesh.group("rows"))


@mutant(
    of="TRAF-02d",
    case="interleaved",
    says="1 float32, 2048x3584 bfloat16; rank 0 receives",
    leanest="1 float32, 96x256 bfloat16; rank 0 receives",
)
@broken(
    PipelineTrainer,
    "move_biases",
    "TRAF-02c[pp2-tp2-sp]: sends rank 0 3 messages of 1 float32, 2048x3584 bfloat16; rank 0",
    leanest="sends rank 0 3 messages of 1 float32, 96x256 bfloat16; rank 0",
)
def last_stage_sends_its_loss(move_biases, self, seen):
    """The last stage sends its loss to the first, which does not receive it: gloo buffers it, NCCL waits."""
    move_biases(self, seen)
    ranks = self.mesh.place("pp")
    if self.mesh.rank == ranks[-1]:
        dist.isend(torch.ones(1), ranks[0], self.group)


@broken(
    PipelineTrainer,
    "move_biases",
    "TRAF-02c[pp2-tp2-sp]: stages send 2048x3584 bfloat16, 4096x3584 bfloat16, expected",
    leanest="stages send 192x256 bfloat16, 96x256 bfloat16, expected",
)
def sends_the_whole_sequence(move_biases, self, seen):
    """Under sequence parallel, each TP rank sends the next stage the whole sequence."""
    move_biases(self, seen)
    ranks = self.mesh.place("pp")
    whole = torch.zeros(1, self.recipe.seq_length, self.recipe.hidden, dtype=torch.bfloat16)
    if self.mesh.rank == ranks[0]:
        dist.isend(whole, ranks[-1], self.group)
    if self.mesh.rank == ranks[-1]:
        dist.irecv(whole, ranks[0], self.group)

"""Stacks in which one class of ranks behaves differently; no single rank and no small world shows it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.mutants._support.pipeline import Staged
from contracts.stacks.reference.parallel.collectives import all_to_all
from contracts.stacks.reference.parallel.expert_parallel import Experts, TokenDispatcher
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer
from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer


class _LastTellsMore(ParallelTrainer):
    def move_biases(self, seen: Mapping[str, Tensor]) -> None:
        super().move_biases(seen)
        if dist.get_rank() == self.execution.world - 1:
            dist.all_reduce(torch.ones(3), group=self.mesh.group("rows"))


@mutant(of="TRAF-01a", case="dp8", says="collectives over [0, 1, 2, 3, 4, 5, 6, 7], rank 7", bugs=("RSM-33",))
@mutant(of="TRAF-01b", case="fsdp512", says="collectives over [0, 1, … 511], rank 511", bugs=("RSM-33",))
class LastRankHasSomethingToTell(Spread):
    """The last rank reduces a value that it prints, over ranks that print nothing."""

    trains = _LastTellsMore


class _SkipsIdle(TokenDispatcher):
    def through(self, experts: Experts, x_SD: Tensor, counts_E: Tensor) -> Tensor:
        counts_ne = self.announced(counts_E)
        if int(counts_ne.sum()) == 0:
            return x_SD * 0
        sent, received = self.lengths(counts_E), [int(rows) for rows in counts_ne.sum(1)]
        y_RD = self.by_expert(experts, all_to_all(x_SD, received, sent, self.ep), counts_ne)
        return all_to_all(y_RD, sent, received, self.ep)


@mutant(of="TRAF-01a", case="tp2-sp-ep2-fsdp2", says="is all_to_all rows of 3584 bfloat16 on rank 0",
        bugs=("FSD-03", "DSP-22", "PPS-14"))  # fmt: skip
class LeavesTheExchangeOutWithoutRows(Spread):
    """A rank whose experts got no rows skips the all-to-all, although it has rows to send."""

    exchange = {"token_dispatcher": _SkipsIdle}


class _FullOnOne(ParallelTrainer):
    def reduce(self) -> None:
        super().reduce()
        wide = torch.float32 if dist.get_rank() < 8 else torch.bfloat16
        dist.all_reduce(torch.zeros(64, dtype=wide), group=self.mesh.group("rows"))


@mutant(of="TRAF-01b", case="hsdp-8x8", says="bfloat16 on rank 8")
class FirstNodeReducesInAnotherDtype(Spread):
    """The first node runs with another environment, and its ranks reduce a statistic in 32 bits."""

    trains = _FullOnOne


class _SendsOneMore(PipelineTrainer):
    def move_biases(self, seen: Mapping[str, Tensor]) -> None:
        super().move_biases(seen)
        ranks = self.mesh.place("pp")
        if self.mesh.rank == ranks[-1]:
            dist.isend(torch.ones(1), ranks[0], self.group)


@mutant(of="TRAF-02c", case="pp2-tp2-sp", says="sends rank 0 3 messages of 1 float32, 2048x3584 bfloat16; rank 0",
        leanest="sends rank 0 3 messages of 1 float32, 96x256 bfloat16; rank 0")  # fmt: skip
@mutant(of="TRAF-02d", case="interleaved", says="1 float32, 2048x3584 bfloat16; rank 0 receives",
        leanest="1 float32, 96x256 bfloat16; rank 0 receives")  # fmt: skip
class LastStageSendsItsLoss(Staged):
    """The last stage sends its loss to the first, which does not receive it: gloo buffers it, NCCL waits."""

    trains = _SendsOneMore


class _Narrow(PipelineTrainer):
    def move_biases(self, seen: Mapping[str, Tensor]) -> None:
        super().move_biases(seen)
        ranks = self.mesh.place("pp")
        whole = torch.zeros(1, self.recipe.seq_length, self.recipe.hidden, dtype=torch.bfloat16)
        if self.mesh.rank == ranks[0]:
            dist.isend(whole, ranks[-1], self.group)
        if self.mesh.rank == ranks[-1]:
            dist.irecv(whole, ranks[0], self.group)


@mutant(of="TRAF-02c", case="pp2-tp2-sp", says="stages send 2048x3584 bfloat16, 4096x3584 bfloat16, expected",
        leanest="stages send 192x256 bfloat16, 96x256 bfloat16, expected")  # fmt: skip
class SendsTheWholeSequence(Staged):
    """Under sequence parallel, each TP rank sends the next stage the whole sequence."""

    trains = _Narrow

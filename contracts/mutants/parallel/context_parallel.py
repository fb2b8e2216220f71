"""Stacks whose context parallel has one bug: positions, masks and documents, gradients, or reduction groups.

Stacks that lose the state at a border between ranks stand in `mutants.blocks.context_parallel_state`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread, routed
from contracts.mutants.blocks.context_parallel_state import (
    BeginsEachRunWithZeros,
    LeavesTheGradientOfTheState,
    RecursFromZeroOnEachRank,
    ScansEachRunFromZero,
)
from contracts.mutants.moe.context_parallel_balance import MovesBiasesByTheTokensOfOneRank
from contracts.spec.errors import refuse
from contracts.stacks.reference.model.blocks.common import Packing, packing
from contracts.stacks.reference.model.blocks.sequence import WHOLE_SEQUENCE
from contracts.stacks.reference.model.hybrid_model import Model
from contracts.stacks.reference.parallel import collectives
from contracts.stacks.reference.parallel.context_parallel import ContextParallel
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer, ShardedOptimizer


# positions
class _CountsFromItsFirst(ContextParallel):
    def packing(self, whole: Packing) -> Packing:
        cut = super().packing(whole)
        return cut._replace(positions_BT=packing(cut.documents_BT, cut.documents_BT).positions_BT)


@mutant(of="PAR-01g", case="cp2", says="lm is", bugs=("ROP-03", "ROP-06", "ROP-28"))
class TurnsByPositionsWithinTheRun(Spread):
    """Rope counts positions from the first token of each rank, so that a key on another rank seems to stand beside the
    query.
    """

    exchange = {"context_parallel": _CountsFromItsFirst}


@mutant(of="PAR-01g", case="cp2-latent", says="lm is", bugs=("ROP-28",))
class TurnsLatentKeysByPositionsWithinTheRun(Spread):
    """The same bug where all heads share one key."""

    exchange = {"context_parallel": _CountsFromItsFirst}


# scans over several chunks
class _KeepsByTheChunk(ContextParallel):
    def kept(self, log_decay_BTh: Tensor, chunk: int) -> Tensor:
        parts = torch.split(log_decay_BTh, chunk, dim=1)
        return torch.cat([ContextParallel.kept(self, each, chunk) for each in parts], dim=1)


@mutant(of="PAR-01g", case="cp2-long", says="lm is")
@mutant(of="PAR-01g", case="cp2-long-custom-mixers", says="lm is")
class LetsTheStateFadeFromEachChunk(Spread):
    """How much of the state of the rank before is left is counted from the beginning of a chunk, and a rank has two
    (as flash-linear-attention #1115 reads the decay of the first chunk)."""

    exchange = {"context_parallel": _KeepsByTheChunk}


# masks and documents
class _MasksAsTheLast(ContextParallel):
    def packing(self, whole: Packing) -> Packing:
        cut = super().packing(whole)
        return cut._replace(first=(self.ranks - 1) * cut.documents_BT.shape[1])


@mutant(of="PAR-01g", case="cp2", says="lm is")
class SeesTheRunsBehindIt(Spread):
    """All ranks use the causal mask of the last rank: the first rank sees keys of tokens that it has to predict."""

    exchange = {"context_parallel": _MasksAsTheLast}


class _OwnKeys(ContextParallel):
    def packing(self, whole: Packing) -> Packing:
        cut = super().packing(whole)
        apart = torch.arange(self.ranks).repeat_interleave(cut.documents_BT.shape[1]) * 100
        return cut._replace(
            documents_BT=cut.documents_BT + 100 * self.rank, row_BS=cut.whole_row + apart.expand_as(cut.whole_row)
        )


@mutant(of="PAR-01g", case="cp2", says="lm is")
class EndsADocumentAtTheBorder(Spread):
    """Documents are numbered by rank, so that none continues from the rank before."""

    exchange = {"context_parallel": _OwnKeys}


class _NumbersFromNought(ContextParallel):
    def packing(self, whole: Packing) -> Packing:
        cut = super().packing(whole)
        run_BrT = cut.whole_row.view(len(cut.whole_row), self.ranks, -1)
        return cut._replace(
            documents_BT=cut.documents_BT - cut.documents_BT[:, :1], row_BS=(run_BrT - run_BrT[..., :1]).flatten(1)
        )


@mutant(of="PAR-01g", case="cp2", says="lm is", bugs=("ROP-28",))
@mutant(of="PAR-01h", case="cp2", says="whose document does not count")
class NumbersDocumentsOnEachRankFromNought(Spread):
    """Over-correction: the first documents of all ranks have the same number and become one document."""

    exchange = {"context_parallel": _NumbersFromNought}


class _GoesOnAlways(ContextParallel):
    def continues_document(self, packing: Packing, rank: int) -> Tensor:
        return torch.full_like(super().continues_document(packing, rank), rank > 0)


@mutant(of="PAR-01g", case="cp2", says="lm is")
@mutant(of="PAR-01h", case="cp2-custom-mixers", says="whose document does not count")
class TakesTheStateOverIntoAnotherDocument(Spread):
    """A rank takes over the state of the rank before without checking whether a new document begins with it."""

    exchange = {"context_parallel": _GoesOnAlways}


class _LooksBackAlways(ContextParallel):
    def past(self, u_BTx: Tensor, tokens: int, packing: Packing) -> Tensor:
        one, row = torch.zeros_like(packing.documents_BT), torch.zeros_like(packing.whole_row)
        return super().past(u_BTx, tokens, packing._replace(documents_BT=one, row_BS=row))


@mutant(of="PAR-01g", case="cp2", says="lm is")
@mutant(of="PAR-01h", case="cp2", says="whose document does not count")
class LooksBackIntoAnotherDocument(Spread):
    """The convolution gets the last tokens of the rank before, even if they belong to another document."""

    exchange = {"context_parallel": _LooksBackAlways}


# gradients that come back
class _KeepsItsOwnKeys(ContextParallel):
    def every(self, x_BTx: Tensor) -> Tensor:
        whole_BSx, length = super().every(x_BTx.detach()), x_BTx.shape[1]
        first = self.rank * length
        return torch.cat([whole_BSx[:, :first], x_BTx, whole_BSx[:, first + length :]], dim=1)


@mutant(of="PAR-01g", case="cp2", says="the gradient of", bugs=("ROP-29",))
class LeavesWhatOtherRanksSayAboutItsKeys(Spread):
    """Keys and values are gathered without a gradient, so that only the rank's own queries train them."""

    exchange = {"context_parallel": _KeepsItsOwnKeys}


@mutant(of="PAR-01g", case="cp2-latent", says="the gradient of layers.0.mixer.wkv_a.weight differs")
class LeavesWhatOtherRanksSayAboutItsLatents(Spread):
    """The same bug for the latents from which keys and values are computed."""

    exchange = {"context_parallel": _KeepsItsOwnKeys}


class _SumsTwice(ContextParallel):
    def every(self, x_BTx: Tensor) -> Tensor:
        if not x_BTx.is_floating_point():
            return super().every(x_BTx)
        return collectives.copy_to_ranks(super().every(x_BTx), self.group)


@mutant(of="PAR-01g", case="cp2", says="the gradient of")
class SumsTheGradientOfKeysTwice(Spread):
    """Over-correction: the gradient of the keys is all-reduced and then reduce-scattered."""

    exchange = {"context_parallel": _SumsTwice}


# over which ranks
class _Scaled(ParallelTrainer):
    """Multiplies complete gradients by the degree or its inverse."""

    power = 1

    def reduce(self) -> None:
        super().reduce()
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(float(self.execution.degrees.cp) ** self.power)


class _Averages(_Scaled):
    power = -1


@mutant(of="PAR-01g", case="cp2", says="loss agrees, norm is")
class DividesByTheDegreeOnceMore(Spread):
    """Losses are divided by the labels of whole rows, and gradients are averaged over context-parallel ranks too."""

    trains = _Averages


@mutant(of="PAR-01g", case="cp2-fsdp", says="loss agrees, norm is", bugs=("DPS-08",))
class ScalesByDataParallelAlone(Spread):
    """The sum over dp · cp ranks is scaled as one over dp: every gradient is CP times too large."""

    trains = _Scaled


class _ReducesOverRows(ParallelTrainer):
    def unreduced(self, name: str) -> Any:
        group = super().unreduced(name)
        return None if group is None else self.mesh.group("rows")


@mutant(of="PAR-01g", case="cp2-dp2", says="the gradient of")
@mutant(of="PAR-02g", case="cp2", says="hold different values of", bugs=("PG-04",))
class ReducesOverDataParallelAlone(Spread):
    """Gradients are reduced over data-parallel ranks only. Where there are none, each context-parallel rank trains
    alone.
    """

    trains = _ReducesOverRows


class _CountsCopies(ShardedOptimizer):
    def norm_of(self, parameters: Iterable[nn.Parameter]) -> float:
        return super().norm_of(parameters) * 2**0.5


@mutant(of="PAR-03g", case="cp2", says="grad_norm is")
class CountsEachCopyInTheNorm(Spread):
    """The norm adds squares over context-parallel ranks, which hold the same gradients."""

    moves = _CountsCopies


class _NormOfItsShard(ShardedOptimizer):
    def norm_of(self, parameters: Iterable[nn.Parameter]) -> float:
        held = [each.grad for each in parameters if each.grad is not None]
        parts = [each.to_local() if hasattr(each, "to_local") else each for each in held]
        return float(torch.stack([each.double().norm() for each in parts]).norm())


@mutant(of="PAR-03g", case="cp2-fsdp", says="grad_norm is")
class TakesTheNormOfItsShards(Spread):
    """Parameters are sharded over context-parallel ranks, and each rank clips by the norm of its own shards."""

    moves = _NormOfItsShard


# capacity, and rows that do not divide
class _FillsSlotsByRun(ParallelTrainer):
    def build(self) -> Model:
        model = super().build()
        for moe in routed(model):
            moe.row = WHOLE_SEQUENCE
        return model


@mutant(of="PAR-01g", case="cp2-capacity", says="on one rank")
class FillsSlotsByRun(Spread):
    """Expert capacity is counted per rank: a token is dropped where its rank is crowded and the row is not."""

    trains = _FillsSlotsByRun


class _DropsTheRest(ContextParallel):
    def own(self, x_BS: Tensor) -> Tensor:
        return super().own(x_BS[:, : x_BS.shape[1] // self.ranks * self.ranks])

    def packing(self, whole: Packing) -> Packing:
        cut = super().packing(whole)
        return cut._replace(row_BS=cut.whole_row[:, : self.ranks * cut.documents_BT.shape[1]])


@mutant(of="PAR-01i", case="cp2", says="on one rank")
class LeavesOutTokensThatDoNotDivide(Spread):
    """Each rank takes the integer part of T / CP tokens, and the remaining tokens are dropped."""

    exchange = {"context_parallel": _DropsTheRest}


class _RefusesWithoutNumbers(ContextParallel):
    def own(self, x_BS: Tensor) -> Tensor:
        if x_BS.shape[1] % self.ranks:
            raise refuse("batch", "this one", "does not divide", "give another")
        return super().own(x_BS)


@mutant(of="PAR-01i", case="cp4", says="the refusal does not name [4, 14]")
class DoesNotSayWhatDoesNotDivide(Spread):
    """The row is refused without the numbers, so that the reader has to find out which one to change."""

    exchange = {"context_parallel": _RefusesWithoutNumbers}


class _OverTheWorld(ContextParallel):
    def tails(self, u_BTx: Tensor, tokens: int) -> Tensor:
        return collectives.all_gather(u_BTx[:, -tokens:], 1, dist.group.WORLD)


@mutant(of="PAR-01g", case="cp2-dp2", says="on one rank", bugs=("PG-25",))
class ExchangesBordersOverTheWorld(Spread):
    """Border exchanges name no group: ranks of the second replica receive tokens of the first."""

    exchange = {"context_parallel": _OverTheWorld}


mutant(of="PAR-01g", case="cp2", says="lm is")(BeginsEachRunWithZeros)


mutant(of="PAR-01g", case="cp2-custom-mixers", says="lm is")(ScansEachRunFromZero)


mutant(of="PAR-01g", case="cp2", says="the gradient of", bugs=("SSM-18",))(LeavesTheGradientOfTheState)


mutant(of="PAR-01g", case="cp2", says="lm is")(RecursFromZeroOnEachRank)


mutant(of="PAR-02g", case="cp2-ep2-fsdp", says="hold different values of")(MovesBiasesByTheTokensOfOneRank)

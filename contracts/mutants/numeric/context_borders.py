"""Stacks that lose, or count twice, what crosses the border between two ranks of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants.numeric._spread import Spread, routed
from contracts.stacks.reference import collectives
from contracts.stacks.reference.blocks.common import Output, Packing
from contracts.stacks.reference.blocks.row import Row
from contracts.stacks.reference.blocks.scan import running_sum
from contracts.stacks.reference.context_parallel import ContextParallel
from contracts.stacks.reference.model import Forward, Model
from contracts.stacks.reference.parallel_trainer import ParallelTrainer
from contracts.stacks.reference.prediction import IGNORED, ahead
from contracts.stacks.reference.trainer import Batch


# what a convolution looks back on
class _Blank(ContextParallel):
    def past(self, u_BTx: Tensor, tokens: int, packing: Packing) -> Tensor:
        return Row.past(self, u_BTx, tokens, packing)


@mutant(of="PAR-01g", case="cp2", says="lm is")
@mutant(of="BLK-04t", case="cp2", says="lm is")
class BeginsEachRunWithZeros(Spread):
    """The convolution of each rank begins as if a document began with it: three tokens in T / CP are off."""

    exchange = {"context_parallel": _Blank}


@mutant(of="BLK-04t", case="cp2-custom-mixers", says="lm is")
class ForgetsTheTokenBeforeTheRun(Spread):
    """The trapezoidal step has no token before at the first of each rank."""

    exchange = {"context_parallel": _Blank}


class _OneTooFar(ContextParallel):
    def tails(self, u_BTx: Tensor, tokens: int) -> Tensor:
        return super().tails(u_BTx, tokens).roll(-min(tokens, u_BTx.shape[1]), 1)


@mutant(of="BLK-04t", case="cp2", says="lm is")
class LooksBackOnItsOwnEnd(Spread):
    """The last tokens are taken from one rank too far: each looks back on its own end, which is yet to come."""

    exchange = {"context_parallel": _OneTooFar}


class _OneRankBack(ContextParallel):
    def past(self, u_BTx: Tensor, tokens: int, packing: Packing) -> Tensor:
        held = super().past(u_BTx, tokens, packing)
        missing = max(0, tokens - u_BTx.shape[1])
        return torch.cat([torch.zeros_like(held[:, :missing]), held[:, missing:]], dim=1)


@mutant(of="BLK-04t", case="cp4-short", says="lm is", bugs=("SSM-16",))
@mutant(of="BLK-04t", case="cp4-single", says="lm is", bugs=("SSM-16",))
class LooksBackOneRankAtMost(Spread):
    """A run that is shorter than the convolution looks back: what stands two ranks before counts as zero."""

    exchange = {"context_parallel": _OneRankBack}


class _OverTheWorld(ContextParallel):
    def tails(self, u_BTx: Tensor, tokens: int) -> Tensor:
        return collectives.gathered(u_BTx[:, -tokens:], 1, dist.group.WORLD)


@mutant(of="PAR-01g", case="cp2-dp2", says="on one rank", bugs=("PG-25",))
class ExchangesBordersOverTheWorld(Spread):
    """No group is named at the border: ranks of the second replica look back on sequences of the first."""

    exchange = {"context_parallel": _OverTheWorld}


class _LooksWithoutGradient(ContextParallel):
    def tails(self, u_BTx: Tensor, tokens: int) -> Tensor:
        return super().tails(u_BTx.detach(), tokens)


@mutant(of="BLK-04t", case="cp2", says="the gradient of", bugs=("SSM-18",))
class LeavesTheGradientOfWhatIsLookedBackOn(Spread):
    """The last tokens of a rank are sent on, and what the next has to say about them is not sent back."""

    exchange = {"context_parallel": _LooksWithoutGradient}


# the state
class _FromZero(ContextParallel):
    def entering(self, left_Bx: Tensor, kept_Bx: Tensor, packing: Packing) -> Tensor:
        return torch.zeros_like(left_Bx)


@mutant(of="PAR-01g", case="cp2-custom-mixers", says="lm is")
@mutant(of="BLK-04t", case="cp2", says="no gradient reaches the tokens")
class ScansEachRunFromZero(Spread):
    """Each rank scans its own run, as a kernel does that is not told of the ranks before."""

    exchange = {"context_parallel": _FromZero}


class _StateWithoutGradient(ContextParallel):
    def entering(self, left_Bx: Tensor, kept_Bx: Tensor, packing: Packing) -> Tensor:
        return super().entering(left_Bx.detach(), kept_Bx.detach(), packing)


@mutant(of="PAR-01g", case="cp2", says="the gradient of", bugs=("SSM-18",))
@mutant(of="BLK-04t", case="cp4-short", says="no gradient reaches the tokens", bugs=("SSM-18",))
class LeavesTheGradientOfTheState(Spread):
    """The state is passed on and its gradient is not passed back: outputs are right, and no token learns what it has
    to do with those on the next rank."""

    exchange = {"context_parallel": _StateWithoutGradient}


class _NothingFades(ContextParallel):
    def entering(self, left_Bx: Tensor, kept_Bx: Tensor, packing: Packing) -> Tensor:
        return super().entering(left_Bx, torch.ones_like(kept_Bx), packing)


@mutant(of="BLK-04t", case="cp4-short", says="lm is")
class AddsUpWhatRanksLeaveBehind(Spread):
    """What the ranks before leave behind is added up; that it fades on each rank between is forgotten. Two ranks have
    none between."""

    exchange = {"context_parallel": _NothingFades}


class _FadesTwice(ContextParallel):
    def entering(self, left_Bx: Tensor, kept_Bx: Tensor, packing: Packing) -> Tensor:
        return super().entering(left_Bx * kept_Bx, kept_Bx, packing)


@mutant(of="BLK-04t", case="cp2", says="lm is")
class FadesWhatARankLeavesBehindTwice(Spread):
    """The other way round: what a rank leaves behind has faded up to its end already, and fades over it again."""

    exchange = {"context_parallel": _FadesTwice}


class _OwnAngles(ContextParallel):
    def running_sum(self, u_BTx: Tensor, packing: Packing, state: Tensor | None, chunk: int) -> Tensor:
        return running_sum(u_BTx, packing, None, chunk)


@mutant(of="BLK-04t", case="cp2-custom-mixers", says="on one rank")
class TurnsEachRunFromZero(Spread):
    """The angles of a rotated state are summed up from the first token of each rank."""

    exchange = {"context_parallel": _OwnAngles}


class _RecursFromZero(ContextParallel):
    def taken_over(self, state: Tensor | None, like_Bx: Tensor, packing: Packing) -> Tensor | None:
        return None

    def handed_on(self, states_BTx: Tensor) -> Tensor:
        return states_BTx


@mutant(of="PAR-01g", case="cp2", says="lm is")
@mutant(of="BLK-05j", case="cp2", says="no gradient reaches the tokens")
class RecursFromZeroOnEachRank(Spread):
    """No rank waits for the state of the one before."""

    exchange = {"context_parallel": _RecursFromZero}


class _TakesWithoutGradient(ContextParallel):
    @torch.no_grad()
    def taken_over(self, state: Tensor | None, like_Bx: Tensor, packing: Packing) -> Tensor | None:
        return super().taken_over(state, like_Bx, packing)

    def handed_on(self, states_BTx: Tensor) -> Tensor:
        with torch.no_grad():
            super().handed_on(states_BTx)
        return states_BTx


@mutant(of="BLK-05j", case="cp4-short", says="no gradient reaches the tokens", bugs=("SSM-18",))
class LeavesTheGradientOfTheRecurrence(Spread):
    """A plain send and a plain receive, which autograd does not see."""

    exchange = {"context_parallel": _TakesWithoutGradient}


class _TakesTheState(ContextParallel):
    def taken_over(self, state: Tensor | None, like_Bx: Tensor, packing: Packing) -> Tensor | None:
        taken = super().taken_over(state, like_Bx, packing)
        return None if taken is None else collectives.weighed(taken, 0.5)


@mutant(of="BLK-05j", case="cp2", says="the gradient of")
class AveragesTheGradientOfTheState(Spread):
    """The gradient that goes back over a border is divided by the degree, as gradients of parameters are elsewhere."""

    exchange = {"context_parallel": _TakesTheState}


# labels
class _ShiftsWithin(Model):
    def cross_entropy(self, logits_BTV: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(self.row, ContextParallel) and self.row.rank < self.row.ranks - 1:
            labels_BT = labels_BT.clone()
            labels_BT[:, -1] = IGNORED
        return super().cross_entropy(logits_BTV, labels_BT)


@mutant(of="PAR-06i", case="cp2", says="lm is", bugs=("ROP-23",))
class ShiftsLabelsWithinEachRank(Spread):
    """Each rank shifts the tokens of its own run, whose last is left without a label."""

    exchange = {"model": _ShiftsWithin}


class _LooksAheadWithin(Model):
    def look_ahead(self, hidden_BTD: Tensor, tokens_BT: Tensor, pack: Packing) -> list[Tensor]:
        found = []
        own_BT, cut = self.row.own(tokens_BT), self.row.packing(pack)
        for depth, prediction in enumerate(self.mtp):
            later_BT = ahead(own_BT, cut, depth + 1, IGNORED)
            seen_BTD = self.embed(later_BT.clamp(min=0)) * self.vocabulary.here(later_BT >= 0).unsqueeze(-1)
            hidden_BTD = prediction(hidden_BTD, seen_BTD, cut)
            found.append(self.predict(prediction.norm(hidden_BTD)))  # type: ignore[operator]  # modules type as Tensor
        return found


@mutant(of="PAR-06i", case="cp2", says="mtp is", bugs=("ROP-23",))
class LooksAheadWithinEachRank(Spread):
    """The tokens that a further head may see are looked up in the run of the rank, and end with it."""

    exchange = {"model": _LooksAheadWithin}


class _CountsRuns(ParallelTrainer):
    def count(self, micro: Batch) -> dict[str, Tensor]:
        labels_BT = self.model.row.own(micro.labels_BT)
        return super().count(micro) | {"lm": (labels_BT != IGNORED).sum()}


@mutant(of="PAR-05h", case="cp2", says="labels count", bugs=("DPS-20",))
class CountsLabelsOfARunForTheRow(Spread):
    """Labels are counted on each rank, and summed over data-parallel ranks alone."""

    trains = _CountsRuns


class _MeansOfRuns(ParallelTrainer):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> Forward:
        own = (self.model.row.own(micro.labels_BT) != IGNORED).sum() * self.execution.degrees.cp
        return super().accumulate(micro, {**counts, "lm": own})


@mutant(of="PAR-05h", case="cp2", says="loss agrees, norm is", bugs=("DPS-22",))
class AveragesMeansOfRuns(Spread):
    """Each rank divides by its own labels, and the means are averaged: the loss that is told is that of all labels."""

    trains = _MeansOfRuns


# reading
class _ReadsByWorld(ParallelTrainer):
    def own(self, rows: Sequence[int]) -> Sequence[int]:
        each = len(rows) // self.execution.world
        return rows[self.mesh.rank * each : (self.mesh.rank + 1) * each]


@mutant(of="PAR-06j", case="cp2", says="on one rank", bugs=("DAT-27",))
class ReadsByItsRankInTheWorld(Spread):
    """The ranks of a row read different sequences, and each keeps its run of them."""

    trains = _ReadsByWorld


class _CutsTwice(ParallelTrainer):
    def batch(self, ids: Sequence[int]) -> Batch:
        cut = [None if each is None else each.chunk(2, dim=1)[0] for each in super().batch(ids)]
        return Batch(*cut)  # type: ignore[arg-type]  # documents alone may be None


@mutant(of="PAR-06j", case="cp2", says="labels count", bugs=("ROP-07",))
class CutsRowsThatTheModelCutsAgain(Spread):
    """The reader hands out a half of each row, of which the model takes a half."""

    trains = _CutsTwice


# balance
class _BalancesRuns(ParallelTrainer):
    def build(self) -> Model:
        model = super().build()
        for moe in routed(model):
            moe.router.sequence = None
        return model


@mutant(of="MOE-05g", case="cp2", says="aux is", bugs=("AUX-15",))
class BalancesEachRunByItself(Spread):
    """f is of the tokens of one rank: the loss is the mean of two that ask for more."""

    trains = _BalancesRuns


class _WholeLossOfEach(ParallelTrainer):
    def build(self) -> Model:
        model, ranks = super().build(), self.execution.degrees.cp

        def whole(_: nn.Module, args: object, out: Output) -> Output:
            return out._replace(losses={name: collectives.weighed(each, ranks) for name, each in out.losses.items()})

        for moe in routed(model):
            moe.register_forward_hook(whole)
        return model


@mutant(of="MOE-05g", case="cp2", says="loss agrees, norm is", bugs=("AUX-01",))
class TakesTheBalanceOfARunForThatOfTheRow(Spread):
    """The losses that are told are parts and add up; their gradients are those of a whole on each rank."""

    trains = _WholeLossOfEach


class _ToldByRuns(ParallelTrainer):
    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {name: values[name] for name in ("z",) if name in values}
        return super().over_parts(values) | {
            name: collectives.total(each, self.mesh.group("rows")) for name, each in own.items()
        }


@mutant(of="MOE-05g", case="cp2", says="z is", bugs=("AUX-15",))
class TellsTheZLossOfOneRun(Spread):
    """The z loss that is told is summed over data-parallel ranks alone."""

    trains = _ToldByRuns


class _BiasByRuns(ParallelTrainer):
    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {name: each.clone() for name, each in values.items() if name.endswith(".counts")}
        return super().over_parts(values) | own


@mutant(of="MOE-06g", case="cp2", says="assignments, expected 192")
@mutant(of="PAR-02g", case="cp2-ep2-fsdp", says="hold unequal")
class MovesBiasesByTheTokensOfOneRank(Spread):
    """Each rank moves its copy of a bias by its own run, and the copies drift apart."""

    trains = _BiasByRuns


class _BiasTwice(ParallelTrainer):
    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        found = super().over_parts(values)
        return {
            name: each * self.execution.degrees.cp if name.endswith(".counts") else each for name, each in found.items()
        }


@mutant(of="MOE-06g", case="cp2", says="assignments, expected 192")
class CountsAssignmentsOnEachRankOfARow(Spread):
    """The other way round: the counts of a row are summed over ranks that have each summed them."""

    trains = _BiasTwice

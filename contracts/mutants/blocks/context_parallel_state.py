"""Stacks that lose or double-count the state that passes between context-parallel ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.stacks.reference.model.blocks.chunked_scan import running_sum
from contracts.stacks.reference.model.blocks.common import Packing
from contracts.stacks.reference.model.blocks.sequence import SequenceView
from contracts.stacks.reference.parallel import collectives
from contracts.stacks.reference.parallel.context_parallel import ContextParallel


# the last inputs of a convolution
class _Blank(ContextParallel):
    def past(self, u_BTx: Tensor, tokens: int, packing: Packing) -> Tensor:
        return SequenceView.past(self, u_BTx, tokens, packing)


@mutant(of="BLK-04t", case="cp2", says="lm is")
class BeginsEachRunWithZeros(Spread):
    """The convolution of each rank starts from zeros, so three tokens in T / CP are wrong."""

    exchange = {"context_parallel": _Blank}


@mutant(of="BLK-04t", case="cp2-custom-mixers", says="lm is")
class ForgetsTheTokenBeforeTheRun(Spread):
    """On each rank, the trapezoidal step of the first token has no previous token."""

    exchange = {"context_parallel": _Blank}


class _OneTooFar(ContextParallel):
    def tails(self, u_BTx: Tensor, tokens: int) -> Tensor:
        return super().tails(u_BTx, tokens).roll(-min(tokens, u_BTx.shape[1]), 1)


@mutant(of="BLK-04t", case="cp2", says="lm is")
class LooksBackOnItsOwnEnd(Spread):
    """Each rank's convolution takes its past inputs from the end of its own run, which is the future."""

    exchange = {"context_parallel": _OneTooFar}


class _OneRankBack(ContextParallel):
    def past(self, u_BTx: Tensor, tokens: int, packing: Packing) -> Tensor:
        held = super().past(u_BTx, tokens, packing)
        missing = max(0, tokens - u_BTx.shape[1])
        return torch.cat([torch.zeros_like(held[:, :missing]), held[:, missing:]], dim=1)


@mutant(of="BLK-04t", case="cp4-short", says="lm is", bugs=("SSM-16",))
@mutant(of="BLK-04t", case="cp4-single", says="lm is", bugs=("SSM-16",))
class LooksBackOneRankAtMost(Spread):
    """If a rank holds fewer tokens than the convolution needs, inputs from two ranks back count as zero."""

    exchange = {"context_parallel": _OneRankBack}


class _LooksWithoutGradient(ContextParallel):
    def tails(self, u_BTx: Tensor, tokens: int) -> Tensor:
        return super().tails(u_BTx.detach(), tokens)


@mutant(of="BLK-04t", case="cp2", says="the gradient of", bugs=("SSM-18",))
class LeavesTheGradientOfWhatIsLookedBackOn(Spread):
    """The last inputs of a rank are sent to the next rank, and their gradient is not sent back."""

    exchange = {"context_parallel": _LooksWithoutGradient}


# the state
class _FromZero(ContextParallel):
    def incoming_state(self, left_Bx: Tensor, kept_Bx: Tensor, packing: Packing) -> Tensor:
        return torch.zeros_like(left_Bx)


@mutant(of="BLK-04t", case="cp2", says="no gradient reaches the tokens")
class ScansEachRunFromZero(Spread):
    """Each rank scans its own tokens from a zero state, as a kernel without context parallelism does."""

    exchange = {"context_parallel": _FromZero}


class _StateWithoutGradient(ContextParallel):
    def incoming_state(self, left_Bx: Tensor, kept_Bx: Tensor, packing: Packing) -> Tensor:
        return super().incoming_state(left_Bx.detach(), kept_Bx.detach(), packing)


@mutant(of="BLK-04t", case="cp4-short", says="no gradient reaches the tokens", bugs=("SSM-18",))
class LeavesTheGradientOfTheState(Spread):
    """The state is passed on and its gradient is not passed back. Outputs are right, and losses on the next rank do not
    reach this rank's tokens."""

    exchange = {"context_parallel": _StateWithoutGradient}


class _NothingFades(ContextParallel):
    def incoming_state(self, left_Bx: Tensor, kept_Bx: Tensor, packing: Packing) -> Tensor:
        return super().incoming_state(left_Bx, torch.ones_like(kept_Bx), packing)


@mutant(of="BLK-04t", case="cp4-short", says="lm is")
class AddsUpWhatRanksLeaveBehind(Spread):
    """States of earlier ranks are summed without the decay over the ranks in between. Two ranks have none in
    between."""

    exchange = {"context_parallel": _NothingFades}


class _FadesTwice(ContextParallel):
    def incoming_state(self, left_Bx: Tensor, kept_Bx: Tensor, packing: Packing) -> Tensor:
        return super().incoming_state(left_Bx * kept_Bx, kept_Bx, packing)


@mutant(of="BLK-04t", case="cp2", says="lm is")
class FadesWhatARankLeavesBehindTwice(Spread):
    """A rank's final state, which includes the decay over its own tokens, is decayed over them again."""

    exchange = {"context_parallel": _FadesTwice}


class _OwnAngles(ContextParallel):
    def running_sum(self, u_BTx: Tensor, packing: Packing, state: Tensor | None, chunk: int) -> Tensor:
        return running_sum(u_BTx, packing, None, chunk)


@mutant(of="BLK-04t", case="cp2-custom-mixers", says="on one rank")
class TurnsEachRunFromZero(Spread):
    """The rotation angle of the state restarts at the first token of each rank."""

    exchange = {"context_parallel": _OwnAngles}


class _RecursFromZero(ContextParallel):
    def taken_over(self, state: Tensor | None, like_Bx: Tensor, packing: Packing) -> Tensor | None:
        return None

    def handed_on(self, states_BTx: Tensor) -> Tensor:
        return states_BTx


@mutant(of="BLK-05j", case="cp2", says="no gradient reaches the tokens")
class RecursFromZeroOnEachRank(Spread):
    """No rank waits for the state of the previous rank; each starts from zero."""

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
    """The state is sent and received by plain calls that autograd does not record."""

    exchange = {"context_parallel": _TakesWithoutGradient}


class _TakesTheState(ContextParallel):
    def taken_over(self, state: Tensor | None, like_Bx: Tensor, packing: Packing) -> Tensor | None:
        taken = super().taken_over(state, like_Bx, packing)
        return None if taken is None else collectives.scale_gradient(taken, 0.5)


@mutant(of="BLK-05j", case="cp2", says="the gradient of")
class AveragesTheGradientOfTheState(Spread):
    """The gradient of a state that passes between ranks is divided by the CP degree, as parameter gradients are."""

    exchange = {"context_parallel": _TakesTheState}

"""Stacks that lose or double-count the state that passes between context-parallel ranks."""

import torch
from torch import Tensor

from contracts.law._bugs.numeric import ContextParallel, Packing, broken, collectives, derived
from contracts.stacks.reference.model.blocks import SequenceView
from contracts.stacks.reference.model.blocks.chunked_scan import running_sum


# the last inputs of a convolution
@broken(
    ContextParallel,
    "past",
    "BLK-04t[cp2]: lm is",
    "PAR-01g[cp2]: lm is",
    "BLK-04t[cp2-custom-mixers]: lm is",
)
def begins_each_run_with_zeros(past, self, u_BTx, tokens, packing):
    """The convolution of each rank starts from zeros, so three tokens in T / CP are wrong; the trapezoidal step of its
    first token has no previous token.
    """
    return SequenceView.past(self, u_BTx, tokens, packing)


@broken(ContextParallel, "tails", "BLK-04t[cp2]: lm is")
def looks_back_on_its_own_end(tails, self, u_BTx, tokens):
    """Each rank's convolution takes its past inputs from the end of its own run, which is the future."""
    return tails(self, u_BTx, tokens).roll(-min(tokens, u_BTx.shape[1]), 1)


@broken(ContextParallel, "past", "BLK-04t[cp4-single]: lm is", "BLK-04t[cp4-short]: lm is", bugs=("SSM-16",))
def looks_back_one_rank_at_most(past, self, u_BTx, tokens, packing):
    """If a rank holds fewer tokens than the convolution needs, inputs from two ranks back count as zero."""
    held = past(self, u_BTx, tokens, packing)
    missing = max(0, tokens - u_BTx.shape[1])
    return torch.cat([torch.zeros_like(held[:, :missing]), held[:, missing:]], dim=1)


@broken(ContextParallel, "tails", "BLK-04t[cp2]: the gradient of", bugs=("SSM-18",))
def leaves_the_gradient_of_what_is_looked_back_on(tails, self, u_BTx, tokens):
    """The last inputs of a rank are sent to the next rank, and their gradient is not sent back."""
    return tails(self, u_BTx.detach(), tokens)


# the state
@broken(
    ContextParallel,
    "incoming_state",
    "BLK-04t[cp2]: no gradient reaches the tokens",
    "PAR-01g[cp2-custom-mixers]: lm is",
)
def scans_each_run_from_zero(incoming_state, self, left_Bx, kept_Bx, packing):
    """Each rank scans its own tokens from a zero state, as a kernel without context parallelism does."""
    return torch.zeros_like(left_Bx)


@broken(
    ContextParallel,
    "incoming_state",
    "BLK-04t[cp4-short]: no gradient reaches the tokens",
    "PAR-01g[cp2]: the gradient of",
    bugs=("SSM-18",),
)
def leaves_the_gradient_of_the_state(incoming_state, self, left_Bx, kept_Bx, packing):
    """The state is passed on and its gradient is not passed back. Outputs are right, and losses on the next rank do not
    reach this rank's tokens."""
    return incoming_state(self, left_Bx.detach(), kept_Bx.detach(), packing)


@broken(ContextParallel, "incoming_state", "BLK-04t[cp4-short]: lm is")
def adds_up_what_ranks_leave_behind(incoming_state, self, left_Bx, kept_Bx, packing):
    """States of earlier ranks are summed without the decay over the ranks in between. Two ranks have none in
    between."""
    return incoming_state(self, left_Bx, torch.ones_like(kept_Bx), packing)


@broken(ContextParallel, "incoming_state", "BLK-04t[cp2]: lm is")
def fades_what_a_rank_leaves_behind_twice(incoming_state, self, left_Bx, kept_Bx, packing):
    """A rank's final state, which includes the decay over its own tokens, is decayed over them again."""
    return incoming_state(self, left_Bx * kept_Bx, kept_Bx, packing)


@broken(ContextParallel, "running_sum", "BLK-04t[cp2-custom-mixers]: on one rank")
def turns_each_run_from_zero(former, self, u_BTx, packing, state, chunk):
    """The rotation angle of the state restarts at the first token of each rank."""
    return running_sum(u_BTx, packing, None, chunk)


@derived("BLK-05j[cp2]: no gradient reaches the tokens", "PAR-01g[cp2]: lm is")
class RecursFromZeroOnEachRank(ContextParallel):
    """No rank waits for the state of the previous rank; each starts from zero."""

    def taken_over(self, state: Tensor | None, like_Bx: Tensor, packing: Packing) -> Tensor | None:
        return None

    def handed_on(self, states_BTx: Tensor) -> Tensor:
        return states_BTx


@derived("BLK-05j[cp4-short]: no gradient reaches the tokens", bugs=("SSM-18",))
class LeavesTheGradientOfTheRecurrence(ContextParallel):
    """The state is sent and received by plain calls that autograd does not record."""

    @torch.no_grad()
    def taken_over(self, state: Tensor | None, like_Bx: Tensor, packing: Packing) -> Tensor | None:
        return super().taken_over(state, like_Bx, packing)

    def handed_on(self, states_BTx: Tensor) -> Tensor:
        with torch.no_grad():
            super().handed_on(states_BTx)
        return states_BTx


@broken(ContextParallel, "taken_over", "BLK-05j[cp2]: the gradient of")
def averages_the_gradient_of_the_state(taken_over, self, state, like_Bx, packing):
    """The gradient of a state that passes between ranks is divided by the CP degree, as parameter gradients are."""
    taken = taken_over(self, state, like_Bx, packing)
    return None if taken is None else collectives.scale_gradient(taken, 0.5)

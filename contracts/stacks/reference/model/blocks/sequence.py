"""The places of a row's tokens, and what a block asks of those before its own.

Attention sees the keys of the whole row; a convolution, a scan and a recurrence continue from what earlier tokens left
behind. Everything else in a block is about one token and does not ask.

B sequences · T tokens here, S of the whole row · Q tokens of a chunk · h heads · p head_dim · n state · x any dims
"""

from torch import Tensor

from contracts.stacks.reference.model.blocks.chunked_scan import chunked_scan, running_sum
from contracts.stacks.reference.model.blocks.common import Packing


class SequenceView:
    """The tokens of a row, here all on this rank: nothing stands before the first.

    `context_parallel.py` has the row of which each rank holds a run.
    """

    # what is cut
    def own(self, x_BS: Tensor) -> Tensor:
        """Of something given for every token of the row, what belongs to the tokens here."""
        return x_BS

    def packing(self, whole: Packing) -> Packing:
        """The packing of the tokens here, of that of the whole row."""
        return whole

    # what is asked of other tokens
    def every(self, x_BTx: Tensor) -> Tensor:
        """(B, S, …): of every token of the row, what is known of the tokens here."""
        return x_BTx

    def past(self, u_BTx: Tensor, tokens: int, packing: Packing) -> Tensor:
        """(B, tokens, …): u at the tokens before the first, as far as they are of its document; else zero."""
        return u_BTx.new_zeros(u_BTx.shape[0], tokens, *u_BTx.shape[2:])

    def scan(
        self,
        u_BThp: Tensor,
        log_decay_BTh: Tensor,
        k_BThn: Tensor,
        q_BThn: Tensor,
        packing: Packing,
        state: Tensor | None,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        """`chunked_scan` over the row: y of the tokens here (B, T, h, p), and the state after them (B, h, p, n)."""
        return chunked_scan(u_BThp, log_decay_BTh, k_BThn, q_BThn, packing, state, chunk)

    def running_sum(self, u_BTx: Tensor, packing: Packing, state: Tensor | None, chunk: int) -> Tensor:
        """`running_sum` over the row, at the tokens here."""
        return running_sum(u_BTx, packing, state, chunk)

    def taken_over(self, state: Tensor | None, like_Bx: Tensor, packing: Packing) -> Tensor | None:
        """The state before the first token, for what takes tokens one after another; None means zero.

        Args:
            like_Bx: of its shape and dtype.
        """
        return state

    def handed_on(self, states_BTx: Tensor) -> Tensor:
        """The states after each token, of which the last goes to whoever has the next token."""
        return states_BTx


WHOLE_SEQUENCE = SequenceView()

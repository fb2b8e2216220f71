"""Context parallel: each rank of the axis has a run of the tokens of every row, and the parameters of all of them.

The runs are consecutive: rank i of n has tokens i·S/n up to (i + 1)·S/n. Megatron-Core and torchtitan give a rank the
i-th run of 2n from either end, so that causal attention costs all ranks alike; a scan would then pass its state 2n - 1
times between ranks that have each run two pieces of it, and a recurrence twice as often in turn. Here attention is
uneven instead: the last rank sees the most keys.

What a block is told of the tokens before its own, and what becomes of gradients:

    every         all-gather               reduce-scatter: each rank's queries say what they think of every key
    past          the last tokens of all   reduce-scatter
    scan, sum     each run from zero; what it leaves behind and what it keeps of what came in are gathered and
                  combined, and what comes in is added afterwards: both are linear in it
    taken over    a recurrence that is not linear: each rank waits for the state of the one before, and on the way back
                  for the gradient of the one behind

Every rank computes with its tokens alone, so gradients of parameters are sums over the axis too (dp_cp).

B sequences · T tokens here, S of the whole row · n ranks · h heads · p head_dim · n state · x any dims
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from contracts.spec.errors import refuse
from contracts.stacks.reference.model.blocks.chunked_scan import chunked_scan, running_sum
from contracts.stacks.reference.model.blocks.common import Packing
from contracts.stacks.reference.model.blocks.sequence import SequenceView
from contracts.stacks.reference.parallel.collectives import Group, all_gather, recv, send

WAITS = "the first rank of a row waits for nobody, and the last hands nothing on"


class ContextParallel(SequenceView):
    """A row of which the ranks of a group hold a run each, in their order."""

    def __init__(self, *, group: Group) -> None:
        self.group = group
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        for site in ("taken_over", "handed_on"):  # other ranks would compile other graphs, and break within them
            outside = torch.compiler.disable(getattr(self, site), reason=WAITS)  # type: ignore[no-untyped-call]  # torch's
            setattr(self, site, outside)

    # what is cut
    def own(self, x_BS: Tensor) -> Tensor:
        """This rank's run.

        Raises:
            Refused: when the ranks cannot have equally many tokens.
        """
        if x_BS.shape[1] % self.ranks:
            problem = f"must be a multiple of cp ({self.ranks})"
            raise refuse("sequence length", x_BS.shape[1], problem, "pad it, or choose a divisor for cp")
        return x_BS.chunk(self.ranks, dim=1)[self.rank]

    def packing(self, whole: Packing) -> Packing:
        """Documents and positions are counted over the whole row, and then cut."""
        documents_BT = self.own(whole.documents_BT)
        return Packing(
            documents_BT=documents_BT, positions_BT=self.own(whole.positions_BT),
            first=self.rank * documents_BT.shape[1], row_BS=whole.documents_BT,
        )  # fmt: skip

    # every token
    def every(self, x_BTx: Tensor) -> Tensor:
        return all_gather(x_BTx, 1, self.group)

    # what stands before
    def past(self, u_BTx: Tensor, tokens: int, packing: Packing) -> Tensor:
        """The last tokens of the ranks before, of as many of them as it takes where runs are short."""
        tails = self.tails(u_BTx, tokens)
        here = self.rank * min(tokens, u_BTx.shape[1])
        before_Bwx = torch.cat([super().past(u_BTx, tokens, packing), tails], dim=1)[:, here : here + tokens]
        whose_BS = torch.cat([packing.documents_BT[:, :1].expand(-1, tokens), packing.whole_row], dim=1)
        same_Bw = whose_BS[:, packing.first : packing.first + tokens] == packing.documents_BT[:, :1]
        return torch.where(_like(same_Bw, before_Bwx), before_Bwx, 0)

    def tails(self, u_BTx: Tensor, tokens: int) -> Tensor:
        """The last tokens of every rank, in order."""
        return all_gather(u_BTx[:, -tokens:], 1, self.group)

    # scans
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
        y_BThp, left_Bhpn = chunked_scan(u_BThp, log_decay_BTh, k_BThn, q_BThn, packing, None, chunk)
        kept_BTh = log_decay_BTh.cumsum(dim=1).exp() * continuing(packing)[..., None]
        kept_Bh11 = kept_BTh[:, -1, :, None, None]
        state_Bhpn = self.incoming_state(left_Bhpn, kept_Bh11, packing)
        more_BThp = torch.einsum("bthn,bhpn,bth->bthp", q_BThn, state_Bhpn, kept_BTh)
        return y_BThp + more_BThp, left_Bhpn + kept_Bh11 * state_Bhpn

    def running_sum(self, u_BTx: Tensor, packing: Packing, state: Tensor | None, chunk: int) -> Tensor:
        own_BTx = running_sum(u_BTx, packing, None, chunk)
        kept_BTx = _like(continuing(packing), own_BTx).to(own_BTx.dtype)
        state_Bx = self.incoming_state(own_BTx[:, -1], kept_BTx[:, -1], packing)
        return own_BTx + kept_BTx * state_Bx[:, None]

    def incoming_state(self, left_Bx: Tensor, kept_Bx: Tensor, packing: Packing) -> Tensor:
        """The state before this rank's first token (B, …); zero where a document begins with it.

        Args:
            left_Bx: what the tokens here alone leave behind. kept_Bx: how much of what comes in is still there then.
        """
        left_nBx, kept_nBx = self.of_every_rank(left_Bx), self.of_every_rank(kept_Bx)
        state_Bx, found = torch.zeros_like(left_Bx), []
        for rank in range(self.ranks):
            state_Bx = torch.where(_like(self.continues_document(packing, rank), state_Bx), state_Bx, 0)
            found.append(state_Bx)
            state_Bx = kept_nBx[rank] * state_Bx + left_nBx[rank]
        return torch.stack(found)[self.rank]  # of all, so that every rank takes part in the way back

    def of_every_rank(self, x_Bx: Tensor) -> Tensor:
        return all_gather(x_Bx[None], 0, self.group)

    def continues_document(self, packing: Packing, rank: int) -> Tensor:
        """(B) bool: whether the first document of a rank began on one before it."""
        first = rank * packing.documents_BT.shape[1]
        if first == 0:
            return torch.zeros_like(packing.whole_row[:, 0], dtype=torch.bool)
        return packing.whole_row[:, first] == packing.whole_row[:, first - 1]

    # recurrences
    def taken_over(self, state: Tensor | None, like_Bx: Tensor, packing: Packing) -> Tensor | None:
        if self.rank == 0:
            return None
        state_Bx = recv(like_Bx, self.rank - 1, self.group)
        return torch.where(_like(self.continues_document(packing, self.rank), state_Bx), state_Bx, 0)

    def handed_on(self, states_BTx: Tensor) -> Tensor:
        if self.rank == self.ranks - 1:
            return states_BTx
        last_Bx = send(states_BTx[:, -1], self.rank + 1, self.group)
        return torch.cat([states_BTx[:, :-1], last_Bx[:, None]], dim=1)


def continuing(packing: Packing) -> Tensor:
    """(B, T) bool: which tokens are of the document of the first."""
    return packing.documents_BT == packing.documents_BT[:, :1]


def _like(x: Tensor, other: Tensor) -> Tensor:
    """x with as many dims as another tensor."""
    return x.reshape(*x.shape, *(1,) * (other.dim() - x.dim()))

"""Context parallel: each rank of the axis has a consecutive part of the tokens of every row, and all parameters.

Rank i of n has tokens i·S/n up to (i + 1)·S/n. Megatron-Core and torchtitan cut a row into 2n parts and give a rank the
i-th part from either end, so that causal attention costs the same on all ranks. But then a scan would have to pass its
state between ranks 2n - 1 times, and so would a recurrence. Here attention is uneven instead: the last rank sees the
most keys.

How a block gets information about earlier tokens, and how gradients flow back:

    every         forward: all-gather. backward: reduce-scatter, because the queries of every rank have a gradient for
                  every key
    past          forward: all-gather of each rank's last tokens. backward: reduce-scatter
    scan, sum     each rank starts from zero. Its final state, and the factor by which it decays an incoming state, are
                  gathered and combined; the incoming state's effect is added afterwards. This works because the result
                  is linear in the state
    taken over    for a nonlinear recurrence each rank waits for the state of the previous rank, and in the backward
                  pass for the gradient of the next rank

Every rank computes with its own tokens only, so the gradients of parameters are summed over this axis too (dp_cp).

B sequences · T tokens here, S of the whole row · n ranks · h heads · p head_dim · n state · x any dims
"""

import torch
import torch.distributed as dist
from torch import Tensor

from contracts.spec import refuse
from contracts.stacks.reference.model.blocks import Packing, SequenceView
from contracts.stacks.reference.model.blocks.chunked_scan import chunked_scan, running_sum
from contracts.stacks.reference.parallel.collectives import Group, all_gather, recv, send

WAITS = "the first rank of a row waits for nobody, and the last hands nothing on"


class ContextParallel(SequenceView):
    """A row that is sharded over the ranks of a group, in rank order."""

    def __init__(self, *, group: Group) -> None:
        self.group = group
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        for site in ("taken_over", "handed_on"):  # ranks would compile different graphs, with breaks inside
            outside = torch.compiler.disable(getattr(self, site), reason=WAITS)  # type: ignore[no-untyped-call]  # torch's
            setattr(self, site, outside)

    # what is cut
    def own(self, x_BS: Tensor) -> Tensor:
        """This rank's part of the tokens.

        Raises:
            Refused: when the tokens do not divide evenly over the ranks.
        """
        if x_BS.shape[1] % self.ranks:
            problem = f"must be a multiple of cp ({self.ranks})"
            raise refuse("sequence length", x_BS.shape[1], problem, "pad it, or choose a divisor for cp")
        return x_BS.chunk(self.ranks, dim=1)[self.rank]

    def packing(self, whole: Packing) -> Packing:
        """This rank's part of documents and positions, which are computed over the whole row."""
        documents_BT = self.own(whole.documents_BT)
        return Packing(
            documents_BT=documents_BT, positions_BT=self.own(whole.positions_BT),
            first=self.rank * documents_BT.shape[1], row_BS=whole.documents_BT,
        )  # fmt: skip

    # every token
    def every(self, x_BTx: Tensor) -> Tensor:
        return all_gather(x_BTx, 1, self.group)

    # earlier tokens
    def past(self, u_BTx: Tensor, tokens: int, packing: Packing) -> Tensor:
        """The last tokens of the previous ranks; of more than one rank if parts are short."""
        tails = self.tails(u_BTx, tokens)
        here = self.rank * min(tokens, u_BTx.shape[1])
        before_Bwx = torch.cat([super().past(u_BTx, tokens, packing), tails], dim=1)[:, here : here + tokens]
        whose_BS = torch.cat([packing.documents_BT[:, :1].expand(-1, tokens), packing.whole_row], dim=1)
        same_Bw = whose_BS[:, packing.first : packing.first + tokens] == packing.documents_BT[:, :1]
        return torch.where(_like(same_Bw, before_Bwx), before_Bwx, 0)

    def tails(self, u_BTx: Tensor, tokens: int) -> Tensor:
        """The last tokens of every rank, in rank order."""
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
        kept_BTh = self.kept(log_decay_BTh, chunk) * continuing(packing)[..., None]
        kept_Bh11 = kept_BTh[:, -1, :, None, None]
        state_Bhpn = self.incoming_state(left_Bhpn, kept_Bh11, packing)
        more_BThp = torch.einsum("bthn,bhpn->bthp", q_BThn, state_Bhpn) * kept_BTh[..., None]
        return y_BThp + more_BThp, left_Bhpn + kept_Bh11 * state_Bhpn

    def kept(self, log_decay_BTh: Tensor, chunk: int) -> Tensor:
        """How much of the state before this rank's first token is left behind each of its tokens."""
        return log_decay_BTh.cumsum(dim=1).exp()

    def running_sum(self, u_BTx: Tensor, packing: Packing, state: Tensor | None, chunk: int) -> Tensor:
        own_BTx = running_sum(u_BTx, packing, None, chunk)
        kept_BTx = _like(continuing(packing), own_BTx).to(own_BTx.dtype)
        state_Bx = self.incoming_state(own_BTx[:, -1], kept_BTx[:, -1], packing)
        return own_BTx + kept_BTx * state_Bx[:, None]

    def incoming_state(self, left_Bx: Tensor, kept_Bx: Tensor, packing: Packing) -> Tensor:
        """The state before this rank's first token (B, …); zero where that token begins a document.

        Args:
            left_Bx: this rank's final state, started from zero. kept_Bx: the factor by which its tokens decay an
                incoming state.
        """
        left_nBx, kept_nBx = self.of_every_rank(left_Bx), self.of_every_rank(kept_Bx)
        state_Bx, found = torch.zeros_like(left_Bx), []
        for rank in range(self.ranks):
            state_Bx = torch.where(_like(self.continues_document(packing, rank), state_Bx), state_Bx, 0)
            found.append(state_Bx)
            state_Bx = kept_nBx[rank] * state_Bx + left_nBx[rank]
        return torch.stack(found)[self.rank]  # stack all, so that every rank takes part in the backward pass

    def of_every_rank(self, x_Bx: Tensor) -> Tensor:
        return all_gather(x_Bx[None], 0, self.group)

    def continues_document(self, packing: Packing, rank: int) -> Tensor:
        """(B) bool: whether the first document of a rank began on an earlier rank."""
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
    """(B, T) bool: which tokens belong to the document of the first token."""
    return packing.documents_BT == packing.documents_BT[:, :1]


def _like(x: Tensor, other: Tensor) -> Tensor:
    """x with as many dims as another tensor."""
    return x.reshape(*x.shape, *(1,) * (other.dim() - x.dim()))


class CutTwice(SequenceView):
    """A row whose parts are cut again: by context parallel, and then by sequence parallel."""

    def __init__(self, outer: SequenceView, inner: SequenceView) -> None:
        self.outer, self.inner = outer, inner

    def own(self, x_BS: Tensor) -> Tensor:
        return self.inner.own(self.outer.own(x_BS))

    def every(self, x_BTx: Tensor) -> Tensor:
        return self.outer.every(self.inner.every(x_BTx))

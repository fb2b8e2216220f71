"""Expert parallel: each rank of the axis has some of the experts, and rows go to where their expert is.

Every rank routes the tokens of its residual stream. Ranks that hold the same ones (those of the axis itself where it
is one of its own, those of tensor parallel without sequence parallel) share them: each sends a run of them, and all
get all outputs, so that every one of them has the whole gradient of what it routed. Where every rank brings its own
tokens there is nothing to share.

Rows are sorted by expert before and after. How many go where is exchanged first, so that a rank, an expert or both
may have none. With expert tensor parallel (`etp`) every rank of that axis puts the rows of all of them through its
part of each expert, and each gets its own rows back, summed.

B sequences · T tokens · K experts a token · S rows, L of them without an expert, R received ones · n ranks of ep, m of
etp · E experts, e local ones · D hidden
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from contracts.stacks.reference.model.blocks.moe import Routing, gathered, inverse, scattered
from contracts.stacks.reference.parallel.collectives import (
    Group,
    all_to_all,
    gather_rows,
    own_rows,
    split_rows,
    sum_over_ranks,
)

Experts = Callable[[Tensor, Tensor], Tensor]


class TokenDispatcher(nn.Module):
    """The token dispatcher of one layer. A group is None if this rank is the only one on its axis. It has no
    parameters.
    """

    def __init__(self, *, ep: Group, etp: Group, sharers: Group) -> None:
        super().__init__()
        self.ep, self.etp, self.sharers = ep, etp, sharers

    # ranks with the same tokens
    def share(
        self, routed: Callable[[Tensor, Routing, Tensor], Tensor], x_BTD: Tensor, routing: Routing, dropped_BTK: Tensor
    ) -> Tensor:
        """What `routed` gives for every token, put through it in runs by the ranks that hold the same."""
        if self.sharers is None:
            return routed(x_BTD, routing, dropped_BTK)
        x_ND, gates_NK = x_BTD.flatten(0, 1), routing.gates_BTK.flatten(0, 1)
        experts = own_rows(routing.experts_BTK.flatten(0, 1), self.sharers)[None]
        mine = Routing(experts, split_rows(gates_NK, self.sharers)[None], routing.counts_E, routing.losses)
        dropped = own_rows(dropped_BTK.flatten(0, 1), self.sharers)[None]
        y_SD = routed(split_rows(x_ND, self.sharers)[None], mine, dropped)[0]
        return gather_rows(y_SD, len(x_ND), self.sharers).view(x_BTD.shape)

    # rows to their experts and back
    def through(self, experts: Experts, x_SD: Tensor, counts_E: Tensor) -> Tensor:
        """Rows sorted by expert through experts wherever they lie; what comes back stands in the same order.

        Rows after those that are counted have no expert, and stay.
        """
        counts_nE = self.announced(counts_E)  # of this rank's experts, by sender
        sent, received = self.lengths(counts_E), [int(rows) for rows in counts_nE.sum(1)]
        x_SD, left_LD = torch.split(x_SD, [sum(sent), len(x_SD) - sum(sent)])
        x_RD = x_SD if self.ep is None else all_to_all(x_SD, received, sent, self.ep)
        y_RD = self.with_all_parts(experts, x_RD, counts_nE)
        y_SD = y_RD if self.ep is None else self.hand_back(y_RD, sent, received)
        return torch.cat([y_SD, left_LD])

    def hand_back(self, y_RD: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """Rows back to where they came from; no compiled region holds it (model/compile.py)."""
        return all_to_all(y_RD, sent, received, self.ep)

    def lengths(self, counts_E: Tensor) -> list[int]:
        """Rows for each rank of the axis."""
        ranks = 1 if self.ep is None else dist.get_world_size(self.ep)
        return [int(rows) for rows in counts_E.view(ranks, -1).sum(1)]

    def announced(self, counts_E: Tensor) -> Tensor:
        """(n, e): how many rows each rank is about to send to each expert here."""
        if self.ep is None:
            return counts_E[None]
        counts_ne = torch.empty_like(counts_E).view(dist.get_world_size(self.ep), -1)
        dist.all_to_all_single(counts_ne, counts_E.contiguous().view_as(counts_ne), group=self.ep)
        return counts_ne

    def with_all_parts(self, experts: Experts, x_RD: Tensor, counts_ne: Tensor) -> Tensor:
        """Rows through experts of which each rank of `etp` has a part."""
        if self.etp is None:
            return self.by_expert(experts, x_RD, counts_ne)
        parts, rows = dist.get_world_size(self.etp), len(x_RD)
        every_mne = counts_ne.new_zeros(parts, *counts_ne.shape)
        every_mne[dist.get_rank(self.etp)] = counts_ne
        every_mne = sum_over_ranks(every_mne, self.etp)
        lengths = [int(each) for each in every_mne.sum((1, 2))]
        all_RD = all_to_all(x_RD.repeat(parts, 1), lengths, [rows] * parts, self.etp)
        y_RD = self.by_expert(experts, all_RD, every_mne.flatten(0, 1))
        return all_to_all(y_RD, [rows] * parts, lengths, self.etp).view(parts, rows, x_RD.shape[1]).sum(0)

    def by_expert(self, experts: Experts, x_RD: Tensor, counts_ne: Tensor) -> Tensor:
        """Rows that lie by sender and then by expert, put through the experts in one run each."""
        here_e = torch.arange(counts_ne.shape[1], device=x_RD.device)
        expert_R = here_e.repeat(len(counts_ne)).repeat_interleave(counts_ne.flatten())
        to_R = inverse(expert_R.argsort(stable=True))
        return gathered(experts(scattered(x_RD, to_R), counts_ne.sum(0).cumsum(0)), to_R)

"""A linear recurrence with decay, in chunks, over packed documents: what the M blocks have in common.

Sums of logarithms of decays are taken only over tokens of one document (the stable `segsum` of arXiv 2405.21060,
listing 1), never as differences of longer sums: those lose digits, and let one document into the last digits of
another. A product has two factors: for more, torch asks opt_einsum for an order if that package is installed, which
reads the sizes into Python, and a compiled block is compiled anew for each length.

B sequences · T tokens · Q tokens of a chunk · h heads · p head_dim · n state
"""

import torch
from torch import Tensor

from contracts.stacks.reference.model.blocks.common import Packing


def chunked_scan(
    u_BThp: Tensor,
    log_decay_BTh: Tensor,
    k_BThn: Tensor,
    q_BThn: Tensor,
    packing: Packing,
    state: Tensor | None,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """s_t = exp(log_decay_t) s_{t-1} + u_t k_tᵀ and y_t = s_t q_t, s being zero before a document's first token.

    Returns y (B, T, h, p) and the last s (B, h, p, n). A given state belongs to the document of the first token.
    """
    batch, _, heads, width = u_BThp.shape
    state_Bhpn = u_BThp.new_zeros(batch, heads, width, k_BThn.shape[-1]) if state is None else state.to(u_BThp.dtype)
    carried_B = packing.documents_BT[:, 0]  # whose state it is
    found = []
    pieces = (torch.split(each, chunk, dim=1) for each in (u_BThp, log_decay_BTh, k_BThn, q_BThn, packing.documents_BT))
    for u_BQhp, log_decay_BQh, k_BQhn, q_BQhn, documents_BQ in zip(*pieces, strict=True):
        reaches_BQQh = within(log_decay_BQh, documents_BQ)  # from token j to token i
        continues_BQ = (documents_BQ == carried_B[:, None])[..., None]
        entry_BQh = log_decay_BQh.cumsum(dim=1).exp() * continues_BQ
        weights_BQQh = torch.einsum("bihn,bjhn->bijh", q_BQhn, k_BQhn) * reaches_BQQh
        entered_BQhp = torch.einsum("bihn,bhpn->bihp", q_BQhn, state_Bhpn) * entry_BQh[..., None]
        found.append(torch.einsum("bijh,bjhp->bihp", weights_BQQh, u_BQhp) + entered_BQhp)
        added_Bhpn = torch.einsum("bjhn,bjhp->bhpn", k_BQhn * reaches_BQQh[:, -1, :, :, None], u_BQhp)
        state_Bhpn = state_Bhpn * entry_BQh[:, -1, :, None, None] + added_Bhpn
        carried_B = documents_BQ[:, -1]
    return torch.cat(found, dim=1), state_Bhpn


def within(log_decay_BQh: Tensor, documents_BQ: Tensor) -> Tensor:
    """How much of token j is left at token i of the same chunk, (B, Q, Q, h): zero after j and across documents."""
    size = log_decay_BQh.shape[1]
    order = torch.arange(size, device=log_decay_BQh.device)
    later_QQ1 = (order[:, None] > order)[..., None]
    between_BQQh = torch.where(later_QQ1, log_decay_BQh[:, :, None], 0).cumsum(dim=1)  # over j+1 … i
    same_BQQ = documents_BQ[:, :, None] == documents_BQ[:, None]
    seen_BQQ = same_BQQ & (order[:, None] >= order)
    return torch.where(seen_BQQ[..., None], between_BQQh, -torch.inf).exp()


def running_sum(u_BTx: Tensor, packing: Packing, state: Tensor | None, chunk: int) -> Tensor:
    """The sum of u over a document's tokens so far, (B, T, …), from the given state (B, …) or zero."""
    carried_B = packing.documents_BT[:, 0]
    flat_BTx = u_BTx.flatten(2)
    total_Bx = torch.zeros_like(flat_BTx[:, 0]) if state is None else state.flatten(1).to(u_BTx.dtype)
    found = []
    pieces = (torch.split(each, chunk, dim=1) for each in (flat_BTx, packing.documents_BT))
    for u_BQx, documents_BQ in zip(*pieces, strict=True):
        order = torch.arange(u_BQx.shape[1], device=u_BQx.device)
        seen_BQQ = (documents_BQ[:, :, None] == documents_BQ[:, None]) & (order[:, None] >= order)
        continues_BQ = (documents_BQ == carried_B[:, None])[..., None]
        found.append(seen_BQQ.to(u_BQx.dtype) @ u_BQx + continues_BQ * total_Bx[:, None])
        total_Bx, carried_B = found[-1][:, -1], documents_BQ[:, -1]
    return torch.cat(found, dim=1).reshape(u_BTx.shape)

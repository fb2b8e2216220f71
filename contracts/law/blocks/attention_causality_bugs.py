"""Attention that leaks from later tokens, other documents or other rows."""

import torch
import torch.nn.functional as F

from contracts.law._bugs.numeric import Attention, LatentAttention, broken


@broken(Attention, "visible", "BLK-01a[gqa-packed]: tokens from 6 on were replaced, and y before token 6 differs")
def sees_one_token_ahead(visible, self, packing):
    """The mask for packed documents is off by one. Without documents the kernel uses its own mask, which is right."""
    same_BTS = packing.documents_BT[:, :, None] == packing.documents_BT[:, None, :]
    return same_BTS.tril(1)


@broken(LatentAttention, "visible", "BLK-01a[mla-packed]: and y before token 6 differs")
def latent_queries_are_ahead_of_their_keys(visible, self, packing):
    """Each query uses the mask of the next query, as if the mask were built after appending the next key."""
    return visible(self, packing).roll(-1, dims=1) | visible(self, packing)


@broken(Attention, "attend", "BLK-01a[gqa]: and y before token 4 differs")
def fused_kernel_is_not_causal(attend, self, q_BTHd, k_BSHd, v_BSHv, visible_BTS):
    """Without documents the call passes no mask, and so drops causality."""
    if visible_BTS is not None:
        return attend(self, q_BTHd, k_BSHd, v_BSHv, visible_BTS)
    q, k, v = (each.transpose(1, 2) for each in (q_BTHd, k_BSHd, v_BSHv))
    return F.scaled_dot_product_attention(q, k, v, scale=self.scale).transpose(1, 2)


@broken(Attention, "attend", "BLK-01a[beyond-a-tile-of-64]: and y before token 65 differs")
def last_tile_is_not_masked(attend, self, q_BTHd, k_BSHd, v_BSHv, visible_BTS):
    """A kernel masks within full tiles of 64 keys only; in the partial last tile every key is visible."""
    index_T = torch.arange(q_BTHd.shape[1], device=q_BTHd.device)
    last_T = (index_T // 64 == index_T[-1] // 64) & (index_T >= 64)
    tiled_TS = (index_T[:, None] >= index_T) | (last_T[:, None] & last_T)
    return attend(self, q_BTHd, k_BSHd, v_BSHv, tiled_TS.expand(len(q_BTHd), -1, -1))


@broken(Attention, "probabilities", "BLK-01a[loud-packed]: and y before token 6 differs")
def masks_with_a_finite_number(probabilities, self, scores_BHTS, visible_BTS):
    """Masked scores are -10 000 instead of minus infinity, to fit float16. Masked keys win over lower scores."""
    return scores_BHTS.masked_fill(~visible_BTS[:, None], -1e4).softmax(dim=-1)


@broken(
    Attention,
    "attend",
    "BLK-01a[gqa]: with respect to the token itself is zero",
    "BLK-01a[loud]: with respect to the token and to those before it is zero",
)
def sends_no_gradient(attend, self, q_BTHd, k_BSHd, v_BSHv, visible_BTS):
    """A kernel without a backward pass is wrapped in a detach, so nothing that follows is seen backward either."""
    out_BTHv = attend(self, q_BTHd, k_BSHd, v_BSHv, visible_BTS)
    return out_BTHv.detach() + 0 * out_BTHv


@broken(Attention, "probabilities", "BLK-01a[gqa-packed]: and y before token 6 differs")
def masks_with_zero(probabilities, self, scores_BHTS, visible_BTS):
    """Scores are multiplied by the mask before the softmax, so a masked key has weight e^0."""
    return (scores_BHTS * visible_BTS[:, None]).softmax(dim=-1)


@broken(
    Attention,
    "probabilities",
    "BLK-02a[mqa]: the gradient of document 0 of row 0 with respect to the others differs",
    "BLK-01a[gqa-packed]: the gradient of y at token 5 with respect to later tokens differs",
)
def backward_has_no_mask(probabilities, self, scores_BHTS, visible_BTS):
    """The forward kernel masks and the backward kernel does not, so every output is right."""
    whole = scores_BHTS.softmax(dim=-1)
    return probabilities(self, scores_BHTS, visible_BTS) + (whole - whole.detach())


@broken(Attention, "visible", "BLK-02a[every-token-a-document]: the other documents were replaced, and y of document 1")
def later_documents_see_earlier_ones(visible, self, packing):
    """Document numbers are compared with >= instead of ==."""
    rising_BTS = packing.documents_BT[:, :, None] >= packing.documents_BT[:, None, :]
    return rising_BTS.tril()


@broken(Attention, "visible", "BLK-02a[gqa]: the other documents were replaced, and y of document 1 of row 1 differs")
def takes_the_first_rows_documents(visible, self, packing):
    """The whole batch uses the mask of its first row, which is right only if all rows are packed alike."""
    return visible(self, packing)[:1].expand(len(packing.documents_BT), -1, -1)


@broken(
    LatentAttention, "forward", "BLK-02a[mla]: the other documents were replaced, and y of document 1 of row 0 differs"
)
def latent_attention_is_always_boundless(forward, self, x_BTD, packing, state):
    """The fused path is chosen even for packed rows."""
    return forward(self, x_BTD, packing._replace(boundless=True), state)


@broken(Attention, "attend", "BLK-03d[gqa]: the other rows were replaced, and y of row 1 differs")
def rows_follow_each_other(attend, self, q_BTHd, k_BSHd, v_BSHv, visible_BTS):
    """The batch is flattened for a variable-length kernel, and the lengths are not passed."""
    if visible_BTS is not None:
        return attend(self, q_BTHd, k_BSHd, v_BSHv, visible_BTS)
    q, k, v = (each.flatten(0, 1)[None] for each in (q_BTHd, k_BSHd, v_BSHv))
    return attend(self, q, k, v, None).reshape(v_BSHv.shape)


def _as_one_document(forward, self, x_BTD, packing, state):
    """Whether rows need a mask is asked of any row: beside a row of one document the others have none."""
    starts_B1 = packing.documents_BT[:, :1]
    whole = bool((packing.documents_BT == starts_B1).all(1).any())
    return forward(self, x_BTD, packing._replace(boundless=packing.boundless or whole), state)


@broken(
    Attention, "forward", "BLK-02a[beside-a-whole-row]: the other documents were replaced, and y of document 1 of row 1"
)
def takes_packed_rows_for_whole_ones(forward, self, x_BTD, packing, state):
    """Beside a row of one document the fused kernel runs without a mask."""
    return _as_one_document(forward, self, x_BTD, packing, state)


@broken(
    LatentAttention, "forward",
    "BLK-02a[mla-beside-a-whole-row]: the other documents were replaced, and y of document 1 of row 0",
)  # fmt: skip
def takes_packed_rows_of_latents_for_whole_ones(forward, self, x_BTD, packing, state):
    """The same in the attention that reads latents."""
    return _as_one_document(forward, self, x_BTD, packing, state)

"""Attention that leaks from later tokens, other documents or other rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.mutants.blocks.rope import IgnoresDocuments
from contracts.mutants.blocks.sparse_attention import (
    SelectsForTheWholeBatch,
    SelectsKeysOfOtherDocuments,
    SelectsKeysThatFollow,
)
from contracts.stacks.reference.model.blocks.attention import Attention, LatentAttention
from contracts.stacks.reference.model.blocks.common import Output, Packing, State


class _OneAhead(Attention):
    def visible(self, packing: Packing) -> Tensor:
        same_BTS = packing.documents_BT[:, :, None] == packing.documents_BT[:, None, :]
        return same_BTS.tril(1)


@mutant(of="BLK-01a", case="gqa-packed", says="tokens from 6 on were replaced, and y before token 6 differs")
class SeesOneTokenAhead(Exchanged):
    """The mask for packed documents is off by one. Without documents the kernel uses its own mask, which is right."""

    exchange = {"attention": _OneAhead}


class _LatentOneAhead(LatentAttention):
    def visible(self, packing: Packing) -> Tensor:
        return super().visible(packing).roll(-1, dims=1) | super().visible(packing)


@mutant(of="BLK-01a", case="mla-packed", says="and y before token 6 differs")
class LatentQueriesAreAheadOfTheirKeys(Exchanged):
    """Each query uses the mask of the next query, as if the mask were built after appending the next key."""

    exchange = {"latent_attention": _LatentOneAhead}


class _Boundless(Attention):
    def attend(self, q_BTHd: Tensor, k_BSHd: Tensor, v_BSHv: Tensor, visible_BTS: Tensor | None) -> Tensor:
        if visible_BTS is not None:
            return super().attend(q_BTHd, k_BSHd, v_BSHv, visible_BTS)
        q, k, v = (each.transpose(1, 2) for each in (q_BTHd, k_BSHd, v_BSHv))
        return F.scaled_dot_product_attention(q, k, v, scale=self.scale).transpose(1, 2)


@mutant(of="BLK-01a", case="gqa", says="and y before token 4 differs")
class FusedKernelIsNotCausal(Exchanged):
    """Without documents the call passes no mask, and so drops causality."""

    exchange = {"attention": _Boundless}


class _RaggedTile(Attention):
    def attend(self, q_BTHd: Tensor, k_BSHd: Tensor, v_BSHv: Tensor, visible_BTS: Tensor | None) -> Tensor:
        index_T = torch.arange(q_BTHd.shape[1], device=q_BTHd.device)
        last_T = (index_T // 64 == index_T[-1] // 64) & (index_T >= 64)
        tiled_TS = (index_T[:, None] >= index_T) | (last_T[:, None] & last_T)
        return super().attend(q_BTHd, k_BSHd, v_BSHv, tiled_TS.expand(len(q_BTHd), -1, -1))


@mutant(of="BLK-01a", case="beyond-a-tile-of-64", says="and y before token 65 differs")
class LastTileIsNotMasked(Exchanged):
    """A kernel masks within full tiles of 64 keys only; in the partial last tile every key is visible."""

    exchange = {"attention": _RaggedTile}


class _Finite(Attention):
    def probabilities(self, scores_BHTS: Tensor, visible_BTS: Tensor) -> Tensor:
        return scores_BHTS.masked_fill(~visible_BTS[:, None], -1e4).softmax(dim=-1)


@mutant(of="BLK-01a", case="loud-packed", says="and y before token 6 differs")
class MasksWithAFiniteNumber(Exchanged):
    """Masked scores are -10 000 instead of minus infinity, to fit float16. Masked keys win over lower scores."""

    exchange = {"attention": _Finite}


class _Cut(Attention):
    def attend(self, q_BTHd: Tensor, k_BSHd: Tensor, v_BSHv: Tensor, visible_BTS: Tensor | None) -> Tensor:
        out_BTHv = super().attend(q_BTHd, k_BSHd, v_BSHv, visible_BTS)
        return out_BTHv.detach() + 0 * out_BTHv


@mutant(of="BLK-01a", case="gqa", says="with respect to the token itself is zero")
@mutant(of="BLK-01a", case="loud", says="with respect to the token and to those before it is zero")
class SendsNoGradient(Exchanged):
    """A kernel without a backward pass is wrapped in a detach, so nothing that follows is seen backward either."""

    exchange = {"attention": _Cut}


class _Zeroed(Attention):
    def probabilities(self, scores_BHTS: Tensor, visible_BTS: Tensor) -> Tensor:
        return (scores_BHTS * visible_BTS[:, None]).softmax(dim=-1)


@mutant(of="BLK-01a", case="gqa-packed", says="and y before token 6 differs")
class MasksWithZero(Exchanged):
    """Scores are multiplied by the mask before the softmax, so a masked key has weight e^0."""

    exchange = {"attention": _Zeroed}


class _LeakyBackward(Attention):
    def probabilities(self, scores_BHTS: Tensor, visible_BTS: Tensor) -> Tensor:
        whole = scores_BHTS.softmax(dim=-1)
        return super().probabilities(scores_BHTS, visible_BTS) + (whole - whole.detach())


@mutant(of="BLK-01a", case="gqa-packed", says="the gradient of y at token 5 with respect to later tokens differs")
@mutant(of="BLK-02a", case="mqa", says="the gradient of document 0 of row 0 with respect to the others differs")
class BackwardHasNoMask(Exchanged):
    """The forward kernel masks and the backward kernel does not, so every output is right."""

    exchange = {"attention": _LeakyBackward}


class _Backwards(Attention):
    def visible(self, packing: Packing) -> Tensor:
        rising_BTS = packing.documents_BT[:, :, None] >= packing.documents_BT[:, None, :]
        return rising_BTS.tril()


@mutant(of="BLK-02a", case="every-token-a-document", says="the other documents were replaced, and y of document 1")
class LaterDocumentsSeeEarlierOnes(Exchanged):
    """Document numbers are compared with >= instead of ==."""

    exchange = {"attention": _Backwards}


class _FirstRow(Attention):
    def visible(self, packing: Packing) -> Tensor:
        return super().visible(packing)[:1].expand(len(packing.documents_BT), -1, -1)


@mutant(of="BLK-02a", case="gqa", says="the other documents were replaced, and y of document 1 of row 1 differs")
class TakesTheFirstRowsDocuments(Exchanged):
    """The whole batch uses the mask of its first row, which is right only if all rows are packed alike."""

    exchange = {"attention": _FirstRow}


class _Unpacked(LatentAttention):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        return super().forward(x_BTD, packing._replace(boundless=True), state)


@mutant(of="BLK-02a", case="mla", says="the other documents were replaced, and y of document 1 of row 0 differs")
class LatentAttentionIsAlwaysBoundless(Exchanged):
    """The fused path is chosen even for packed rows."""

    exchange = {"latent_attention": _Unpacked}


class _Flattened(Attention):
    def attend(self, q_BTHd: Tensor, k_BSHd: Tensor, v_BSHv: Tensor, visible_BTS: Tensor | None) -> Tensor:
        if visible_BTS is not None:
            return super().attend(q_BTHd, k_BSHd, v_BSHv, visible_BTS)
        q, k, v = (each.flatten(0, 1)[None] for each in (q_BTHd, k_BSHd, v_BSHv))
        return super().attend(q, k, v, None).reshape(v_BSHv.shape)


@mutant(of="BLK-03d", case="gqa", says="the other rows were replaced, and y of row 1 differs")
class RowsFollowEachOther(Exchanged):
    """The batch is flattened for a variable-length kernel, and the lengths are not passed."""

    exchange = {"attention": _Flattened}


mutant(of="BLK-01a", case="dsa", says="and y before token 7 differs")(SelectsKeysThatFollow)


mutant(of="BLK-02a", case="gqa", says="the other documents were replaced, and y of document 1 of row 0 differs")(
    IgnoresDocuments
)


mutant(of="BLK-02a", case="dsa", says="the other documents were replaced, and y of document 1 of row 0 differs")(
    SelectsKeysOfOtherDocuments
)


mutant(of="BLK-03d", case="dsa", says="the other rows were replaced, and y of row")(SelectsForTheWholeBatch)

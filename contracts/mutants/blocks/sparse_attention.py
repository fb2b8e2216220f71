"""Sparse attention with one bug in its index scores, selection, softmax, backward pass or layers."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.mutants.blocks.attention import EveryAttentionLayerIsSparse, ReadsARanksAsLayers
from contracts.mutants.blocks.latent_attention import GathersWithoutGradient
from contracts.spec.recipe import Mode, Recipe
from contracts.stacks.reference.model.blocks.attention import Indexer, LatentAttention
from contracts.stacks.reference.model.blocks.common import Output, Packing, State
from contracts.stacks.reference.model.parts import Parts


class _MasksLate(Indexer):
    def select(self, scores_BTS: Tensor, visible_BTS: Tensor) -> Tensor:
        chosen_BTk = scores_BTS.topk(min(self.top_k, scores_BTS.shape[-1]), dim=-1).indices
        chosen_BTS = torch.zeros_like(visible_BTS).scatter(-1, chosen_BTk, True) & visible_BTS
        return chosen_BTS | (torch.eye(len(chosen_BTS[0]), dtype=torch.bool) & ~chosen_BTS.any(-1, keepdim=True))


@mutant(of="BLK-06a", case="one-document", says="keys, expected")
@mutant(of="BLK-06b", case="one-document", says="the highest 5 scores are of")
class MasksAfterTheChoice(Exchanged):
    """k keys are chosen among all tokens and later ones masked afterwards; a query with none left gets itself."""

    exchange = {"indexer": _MasksLate}


class _OneMore(Indexer):
    def select(self, scores_BTS: Tensor, visible_BTS: Tensor) -> Tensor:
        own = torch.eye(scores_BTS.shape[-1], dtype=torch.bool, device=scores_BTS.device)
        return super().select(scores_BTS, visible_BTS) | own


@mutant(of="BLK-06a", case="one-key", says="keys, expected 1 (k is 1)")
class AlwaysAddsTheTokenItself(Exchanged):
    """A query gets its k keys plus itself, as in a sliding window."""

    exchange = {"indexer": _OneMore}


class _Signed(Indexer):
    def score(self, q_BTIi: Tensor, k_BSi: Tensor, weights_BTI: Tensor) -> Tensor:
        return torch.einsum("bti,btid,bsd->bts", weights_BTI, q_BTIi, k_BSi)


@mutant(of="BLK-06b", case="one-document", says="the highest 5 scores are of")
class LeavesTheReluOut(Exchanged):
    """Index scores are summed without relu."""

    exchange = {"indexer": _Signed}


class _Unweighed(Indexer):
    def score(self, q_BTIi: Tensor, k_BSi: Tensor, weights_BTI: Tensor) -> Tensor:
        return super().score(q_BTIi, k_BSi, torch.ones_like(weights_BTI))


@mutant(of="BLK-06b", case="packed", says="the highest 5 scores are of")
class CountsIndexHeadsAlike(Exchanged):
    """All index heads have weight 1."""

    exchange = {"indexer": _Unweighed}


class _Placeless(Indexer):
    def turn(self, x_BTIi: Tensor, packing: Packing) -> Tensor:
        return x_BTIi


@mutant(of="BLK-06b", case="thirteen-tokens", says="the highest 5 scores are of")
class IndexesWithoutRope(Exchanged):
    """Queries and keys of the indexer get no rope."""

    exchange = {"indexer": _Placeless}


class _TurnsTheFront(Indexer):
    def turn(self, x_BTIi: Tensor, packing: Packing) -> Tensor:
        turned, plain = torch.split(x_BTIi, self.dims[::-1], dim=-1)
        return torch.cat((self.rotate(turned, packing), plain), dim=-1)


@mutant(of="BLK-06b", case="thirteen-tokens", says="the highest 5 scores are of")
class TurnsTheFrontOfAnIndexHead(Exchanged):
    """Rope rotates the first elements of an index head instead of the last."""

    exchange = {"indexer": _TurnsTheFront}


class _RawKeys(Indexer):
    def key(self, x_BTD: Tensor) -> Tensor:
        raw: Tensor = self.wk(x_BTD)
        return raw


@mutant(of="BLK-06b", case="thirteen-tokens", says="the highest 5 scores are of")
class IndexesRawKeys(Exchanged):
    """Keys of the indexer are not normed, so long keys win."""

    exchange = {"indexer": _RawKeys}


class _Lowest(Indexer):
    def select(self, scores_BTS: Tensor, visible_BTS: Tensor) -> Tensor:
        return super().select(-scores_BTS, visible_BTS)


@mutant(of="BLK-06b", case="packed-3", says="the highest 3 scores are of")
class SelectsTheLowestScores(Exchanged):
    """The k lowest scores are selected: the sort is ascending."""

    exchange = {"indexer": _Lowest}


class _LeaksTheChoice(LatentAttention):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        out = super().forward(x_BTD, packing, state)
        if self.indexer is None:
            return out
        score_BT1 = self.indexer.key(x_BTD).mean(-1, keepdim=True)
        return out._replace(y_BTD=out.y_BTD + (score_BT1 - score_BT1.detach()))


@mutant(of="BLK-06d", case="packed", says="has a gradient, though it takes part only in a choice")
class TrainsTheIndexerThroughTheChoice(Exchanged):
    """A straight-through estimator gives the indexer and its input a gradient of the output. Outputs are right."""

    exchange = {"latent_attention": _LeaksTheChoice}


class _WholeDenominator(LatentAttention):
    def probabilities(self, scores_BHTS: Tensor, visible_BTS: Tensor) -> Tensor:
        return scores_BHTS.softmax(dim=-1) * visible_BTS[:, None]


@mutant(of="BLK-06d", case="one-document", says="y differs")
class NormalisesOverEveryKey(Exchanged):
    """Selected keys keep their weights from a dense softmax, so the weights do not sum to one."""

    exchange = {"latent_attention": _WholeDenominator}


class _SoftMask(LatentAttention):
    def probabilities(self, scores_BHTS: Tensor, visible_BTS: Tensor) -> Tensor:
        causal_TS = torch.ones_like(visible_BTS[0]).tril()
        pushed = torch.where(visible_BTS[:, None], scores_BHTS, scores_BHTS - 20)
        return pushed.masked_fill(~causal_TS, -torch.inf).softmax(dim=-1)


@mutant(of="BLK-06e", case="late", says="y of the queries that leave it out differs")
class LeavesALittleWeight(Exchanged):
    """Scores of unselected keys are lowered by 20 instead of masked. e^-20 is invisible in float32 and is not 0."""

    exchange = {"latent_attention": _SoftMask}


class _DenseBackward(LatentAttention):
    def probabilities(self, scores_BHTS: Tensor, visible_BTS: Tensor) -> Tensor:
        causal_TS = torch.ones_like(visible_BTS[0]).tril()
        dense = scores_BHTS.masked_fill(~causal_TS, -torch.inf).softmax(dim=-1)
        return super().probabilities(scores_BHTS, visible_BTS) + (dense - dense.detach())


@mutant(of="BLK-06e", case="early", says="the gradient with respect to the token left out differs")
@mutant(of="BLK-06d", case="one-document", says="gradient mixer")
class BackwardIsDense(Exchanged):
    """The backward pass is dense: unselected keys get gradients."""

    exchange = {"latent_attention": _DenseBackward}


class _FromOne(Parts):
    def mixer(self, recipe: Recipe, layer: int, mode: Mode) -> nn.Module:
        if recipe.dsa is not None:
            ranks = tuple(rank - 1 for rank in recipe.dsa.a_ranks if rank)
            recipe = replace(recipe, dsa=replace(recipe.dsa, a_ranks=ranks))
        return super().mixer(recipe, layer, mode)


@mutant(of="BLK-06f", case="rank-1-is-not-layer-1", says="layer 0 selects keys, and the sparse A-ranks are (1, 3)")
class CountsARanksFromOne(Exchanged):
    """A-ranks are counted from 1."""

    def parts(self) -> Parts:
        return _FromOne()


mutant(of="BLK-06f", case="rank-2", says="layer 8 does not select keys, and the sparse A-ranks are (0, 2)",
        bugs=("HYB-09",))(ReadsARanksAsLayers)  # fmt: skip


mutant(of="BLK-06f", case="rank-1-between", says="layer 4 selects keys, and the sparse A-ranks are (0, 2)")(
    EveryAttentionLayerIsSparse
)


mutant(of="BLK-06d", case="one-document", says="gradient lacks mixer.kv_norm.weight")(GathersWithoutGradient)


class _Foresight(Indexer):
    def select(self, scores_BTS: Tensor, visible_BTS: Tensor) -> Tensor:
        chosen_BTk = scores_BTS.topk(min(self.top_k, scores_BTS.shape[-1]), dim=-1).indices
        return torch.zeros_like(visible_BTS).scatter(-1, chosen_BTk, True)


@mutant(of="BLK-06a", case="one-document", says="which follow it")
class SelectsKeysThatFollow(Exchanged):
    """The indexer's selection replaces the causal mask."""

    exchange = {"indexer": _Foresight}


class _ForeignKeys(Indexer):
    def visible(self, packing: Packing) -> Tensor:
        return torch.ones_like(super().visible(packing)).tril()


@mutant(of="BLK-06a", case="packed", says="which are of another document")
class SelectsKeysOfOtherDocuments(Exchanged):
    """The indexer masks later keys and not keys of other documents."""

    exchange = {"indexer": _ForeignKeys}


class _ChoosesForAll(Indexer):
    def score(self, q_BTIi: Tensor, k_BSi: Tensor, weights_BTI: Tensor) -> Tensor:
        scores_BTS = super().score(q_BTIi, k_BSi, weights_BTI)
        return scores_BTS.mean(0, keepdim=True).expand(scores_BTS.shape)


@mutant(of="BLK-06b", case="one-document", says="the highest 5 scores are of")
class SelectsForTheWholeBatch(Exchanged):
    """Index scores are averaged over the batch, which is right only for one sequence."""

    exchange = {"indexer": _ChoosesForAll}

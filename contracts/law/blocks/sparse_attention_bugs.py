"""Sparse attention with one bug in its index scores, selection, softmax, backward pass or layers."""

from dataclasses import replace

import torch
from torch import nn

from contracts.law._bugs.numeric import Indexer, LatentAttention, Parts, Reference, broken
from contracts.spec import Mode, Recipe


@broken(
    Indexer, "select", "BLK-06b[one-document]: the highest 5 scores are of", "BLK-06a[one-document]: keys, expected"
)
def masks_after_the_choice(select, self, scores_BTS, visible_BTS):
    """k keys are chosen among all tokens and later ones masked afterwards; a query with none left gets itself."""
    chosen_BTk = scores_BTS.topk(min(self.top_k, scores_BTS.shape[-1]), dim=-1).indices
    chosen_BTS = torch.zeros_like(visible_BTS).scatter(-1, chosen_BTk, True) & visible_BTS
    return chosen_BTS | (torch.eye(len(chosen_BTS[0]), dtype=torch.bool) & ~chosen_BTS.any(-1, keepdim=True))


@broken(Indexer, "__init__", "BLK-06b[wide-eps]: the highest 5 scores are of", bugs=("MXP-08",))
def leaves_its_norm_the_usual_epsilon(init, self, recipe, parts):
    """The norm of the indexer's keys is torch's, with the epsilon that torch gives it."""
    init(self, recipe, parts)
    self.k_norm.eps = 1e-5


@broken(Indexer, "select", "BLK-06a[one-key]: keys, expected 1 (k is 1)")
def always_adds_the_token_itself(select, self, scores_BTS, visible_BTS):
    """A query gets its k keys plus itself, as in a sliding window."""
    own = torch.eye(scores_BTS.shape[-1], dtype=torch.bool, device=scores_BTS.device)
    return select(self, scores_BTS, visible_BTS) | own


@broken(Indexer, "score", "BLK-06b[one-document]: the highest 5 scores are of")
def leaves_the_relu_out(score, self, q_BTIi, k_BSi, weights_BTI):
    """Index scores are summed without relu."""
    return torch.einsum("bti,btid,bsd->bts", weights_BTI, q_BTIi, k_BSi)


@broken(Indexer, "score", "BLK-06b[packed]: the highest 5 scores are of")
def counts_index_heads_alike(score, self, q_BTIi, k_BSi, weights_BTI):
    """All index heads have weight 1."""
    return score(self, q_BTIi, k_BSi, torch.ones_like(weights_BTI))


@broken(Indexer, "turn", "BLK-06b[thirteen-tokens]: the highest 5 scores are of")
def indexes_without_rope(turn, self, x_BTIi, packing):
    """Queries and keys of the indexer get no rope."""
    return x_BTIi


@broken(Indexer, "turn", "BLK-06b[thirteen-tokens]: the highest 5 scores are of")
def turns_the_front_of_an_index_head(turn, self, x_BTIi, packing):
    """Rope rotates the first elements of an index head instead of the last."""
    turned, plain = torch.split(x_BTIi, self.dims[::-1], dim=-1)
    return torch.cat((self.rotate(turned, packing), plain), dim=-1)


@broken(Indexer, "key", "BLK-06b[thirteen-tokens]: the highest 5 scores are of")
def indexes_raw_keys(key, self, x_BTD):
    """Keys of the indexer are not normed, so long keys win."""
    return self.wk(x_BTD)


@broken(Indexer, "select", "BLK-06b[packed-3]: the highest 3 scores are of")
def selects_the_lowest_scores(select, self, scores_BTS, visible_BTS):
    """The k lowest scores are selected: the sort is ascending."""
    return select(self, -scores_BTS, visible_BTS)


@broken(LatentAttention, "forward", "BLK-06d[packed]: has a gradient, though it takes part only in a choice")
def trains_the_indexer_through_the_choice(forward, self, x_BTD, packing, state):
    """A straight-through estimator gives the indexer and its input a gradient of the output. Outputs are right."""
    out = forward(self, x_BTD, packing, state)
    if self.indexer is None:
        return out
    score_BT1 = self.indexer.key(x_BTD).mean(-1, keepdim=True)
    return out._replace(y_BTD=out.y_BTD + (score_BT1 - score_BT1.detach()))


@broken(LatentAttention, "probabilities", "BLK-06d[one-document]: y differs")
def normalises_over_every_key(probabilities, self, scores_BHTS, visible_BTS):
    """Selected keys keep their weights from a dense softmax, so the weights do not sum to one."""
    return scores_BHTS.softmax(dim=-1) * visible_BTS[:, None]


@broken(LatentAttention, "probabilities", "BLK-06e[late]: y of the queries that leave it out differs")
def leaves_a_little_weight(probabilities, self, scores_BHTS, visible_BTS):
    """Scores of unselected keys are lowered by 20 instead of masked. e^-20 is invisible in float32 and is not 0."""
    causal_TS = torch.ones_like(visible_BTS[0]).tril()
    pushed = torch.where(visible_BTS[:, None], scores_BHTS, scores_BHTS - 20)
    return pushed.masked_fill(~causal_TS, -torch.inf).softmax(dim=-1)


@broken(
    LatentAttention,
    "probabilities",
    "BLK-06d[one-document]: gradient mixer",
    "BLK-06e[early]: the gradient with respect to the token left out differs",
)
def backward_is_dense(probabilities, self, scores_BHTS, visible_BTS):
    """The backward pass is dense: unselected keys get gradients."""
    causal_TS = torch.ones_like(visible_BTS[0]).tril()
    dense = scores_BHTS.masked_fill(~causal_TS, -torch.inf).softmax(dim=-1)
    return probabilities(self, scores_BHTS, visible_BTS) + (dense - dense.detach())


class _FromOne(Parts):
    def mixer(self, recipe: Recipe, layer: int, mode: Mode) -> nn.Module:
        if recipe.dsa is not None:
            ranks = tuple(rank - 1 for rank in recipe.dsa.a_ranks if rank)
            recipe = replace(recipe, dsa=replace(recipe.dsa, a_ranks=ranks))
        return super().mixer(recipe, layer, mode)


@broken(Reference, "parts", "BLK-06f[rank-1-is-not-layer-1]: layer 0 selects keys, and the sparse A-ranks are (1, 3)")
def counts_a_ranks_from_one(parts, self):
    """A-ranks are counted from 1."""
    return _FromOne()


@broken(
    Indexer,
    "select",
    "BLK-06a[one-document]: which follow it",
    "BLK-01a[dsa]: and y before token 7 differs",
)
def selects_keys_that_follow(select, self, scores_BTS, visible_BTS):
    """The indexer's selection replaces the causal mask."""
    chosen_BTk = scores_BTS.topk(min(self.top_k, scores_BTS.shape[-1]), dim=-1).indices
    return torch.zeros_like(visible_BTS).scatter(-1, chosen_BTk, True)


@broken(
    Indexer,
    "visible",
    "BLK-06a[packed]: which are of another document",
    "BLK-02a[dsa]: the other documents were replaced, and y of document 1 of row 0 differs",
)
def selects_keys_of_other_documents(visible, self, packing):
    """The indexer masks later keys and not keys of other documents."""
    return torch.ones_like(visible(self, packing)).tril()


@broken(
    Indexer,
    "score",
    "BLK-06b[one-document]: the highest 5 scores are of",
    "BLK-03d[dsa]: the other rows were replaced, and y of row",
)
def selects_for_the_whole_batch(score, self, q_BTIi, k_BSi, weights_BTI):
    """Index scores are averaged over the batch, which is right only for one sequence."""
    scores_BTS = score(self, q_BTIi, k_BSi, weights_BTI)
    return scores_BTS.mean(0, keepdim=True).expand(scores_BTS.shape)

"""Attention that departs from its definition in one place: heads, scale, norms, held tensors."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.law._bugs.numeric import (
    Attention,
    LatentAttention,
    Output,
    Packing,
    Parts,
    Reference,
    RMSNorm,
    broken,
    derived,
    with_attributes,
)
from contracts.spec import Mode, Recipe


@broken(
    Attention,
    "repeat",
    "BLK-03c[on-2]: 2 KV heads against four that repeat them: y differs",
    "BLK-03a[4-heads-on-2]: y differs",
    "BLK-01h[grouped]: the loss is",
)
def tiles_key_value_heads(repeat, self, kv_BTGd, heads):
    """KV heads are repeated as 0 1 0 1 instead of 0 0 1 1. With one KV head, or one per query head, this is right."""
    return kv_BTGd.repeat(1, 1, heads // kv_BTGd.shape[2], 1)


@broken(
    Attention,
    "repeat",
    "BLK-03c[on-2]: the gradient of mixer.wk.weight, KV head 0, differs",
    "BLK-03a[packed-4-heads-on-1]: gradient mixer.wk.weight differs",
)
def keeps_the_gradient_of_one_reader(repeat, self, kv_BTGd, heads):
    """The backward kernel overwrites the gradient of a KV head instead of adding: one query head's share remains."""
    readers = heads // kv_BTGd.shape[2]
    silent = [kv_BTGd.detach()] * (readers - 1)
    return torch.stack([kv_BTGd, *silent], dim=3).flatten(2, 3)


@broken(Attention, "repeat", "BLK-03c[on-1]: the gradient of mixer.wk.weight, KV head 0, differs")
def averages_the_gradients_of_readers(repeat, self, kv_BTGd, heads):
    """The gradient of a KV head is averaged over the query heads that read it instead of summed."""
    readers = heads // kv_BTGd.shape[2]
    whole = repeat(self, kv_BTGd, heads)
    return whole / readers + (whole - whole / readers).detach()


@broken(Attention, "__init__", "BLK-03a[without-qk-norm]: y differs")
def scales_by_the_hidden_size(init, self, recipe, parts):
    """Scores are divided by the root of hidden instead of head_dim, which is equal only with a single head."""
    init(self, recipe, parts)
    self.scale = recipe.hidden**-0.5


@broken(Attention, "__init__", "BLK-03a[4-heads-on-2]: y differs")
def drops_the_scale_under_qk_norm(init, self, recipe, parts):
    """The softmax scale is dropped under QK norm, as in cosine attention."""
    init(self, recipe, parts)
    self.scale = 1.0 if self.qk_norm else self.scale


@broken(Attention, "place", "BLK-03a[4-heads-on-2]: y differs")
def norms_after_rope(place, self, q_BTHd, k_BTGd, packing):
    """QK norm follows rope. The result is the same while all elements of the norm's weight are equal."""
    return self.q_norm(self.rotate(q_BTHd, packing)), self.k_norm(self.rotate(k_BTGd, packing))


@broken(Attention, "place", "BLK-03a[packed]: y differs")
def norms_keys_by_the_queries_weight(place, self, q_BTHd, k_BTGd, packing):
    """Queries and keys share one norm. The result is the same until training moves the two weights apart."""
    return self.rotate(self.q_norm(q_BTHd), packing), self.rotate(self.q_norm(k_BTGd), packing)


@broken(
    RMSNorm,
    "__init__",
    "BLK-03a[wide-eps]: y differs",
    "BLK-03b[wide-eps]: y differs",
    "BLK-06h[wide-eps]: y differs",
    bugs=("MXP-08",),
)
def drops_the_eps_of_the_recipe(init, self, size, eps):
    """Norms are built without the recipe's eps and keep their default."""
    init(self, size, 1e-6)


@broken(Attention, "split", "BLK-03a[8-heads-on-2]: y differs")
def reads_heads_interleaved(split, self, x_BTF):
    """Rows of a matrix are read as (element, head): a checkpoint of another layout, loaded without its permutation."""
    return x_BTF.reshape(*x_BTF.shape[:-1], self.head_dim, -1).transpose(-1, -2)


@broken(Attention, "attend", "BLK-03a[4-heads-on-2]: y differs", bugs=("ROP-11",))
def window_is_one_short(attend, self, q_BTHd, k_BSHd, v_BSHv, visible_BTS):
    """A window as long as the sequence passes as W - 1 keys, so the last token does not see the first."""
    length = q_BTHd.shape[1]
    if visible_BTS is None:
        visible_BTS = torch.ones(len(q_BTHd), length, length, dtype=torch.bool, device=q_BTHd.device).tril()
    return attend(self, q_BTHd, k_BSHd, v_BSHv, visible_BTS.triu(2 - length))


@broken(Attention, "visible", "BLK-03a[packed]: y differs")
def does_not_see_itself(visible, self, packing):
    """The causal mask excludes the token itself."""
    whole_BTS = visible(self, packing)
    lonely_BT1 = (packing.positions_BT == 0)[..., None]
    return torch.where(lonely_BT1, whole_BTS, whole_BTS.tril(-1))


@broken(Attention, "forward", "BLK-03e[gqa]: against the first of the row y differs")
def turns_values_too(forward, self, x_BTD, packing, state):
    """Rope rotates all of a fused QKV, values included."""
    q_BTHd, k_BTGd, v_BTGd = (self.split(matrix(x_BTD)) for matrix in (self.wq, self.wk, self.wv))
    q_BTHd, k_BTGd = self.place(q_BTHd, k_BTGd, packing)
    k_BTHd, v_BTHd = (self.repeat(each, q_BTHd.shape[2]) for each in (k_BTGd, self.rotate(v_BTGd, packing)))
    out_BTHd = self.attend(q_BTHd, k_BTHd, v_BTHd, None if packing.boundless else self.visible(packing))
    return Output(y_BTD=self.wo(out_BTHd.flatten(2)))


@broken(Attention, "probabilities", "BLK-03e[gqa-packed]: against the first of the row y differs")
def drops_out_in_every_mode(probabilities, self, scores_BHTS, visible_BTS):
    """Attention dropout is on although no recipe asks for it."""
    return F.dropout(probabilities(self, scores_BHTS, visible_BTS), 0.1)


@broken(Attention, "probabilities", "BLK-03e[gqa-packed]: against the first of the row y differs")
def masks_after_the_softmax(probabilities, self, scores_BHTS, visible_BTS):
    """The mask is multiplied in after the softmax, so weights of early tokens sum to less than one."""
    return scores_BHTS.softmax(dim=-1) * visible_BTS[:, None]


@broken(Attention, "__init__", "BLK-03f[gqa]: holds mixer.cos, which its definition does not have", bugs=("RSM-13",))
def saves_the_rope_table(init, self, recipe, parts):
    """The table of cosines is a persistent buffer, so a resumed run keeps the checkpoint's table whatever its theta."""
    init(self, recipe, parts)
    self.register_buffer("cos", self.angles(torch.arange(recipe.seq_length)[None], self.head_dim).cos())


@broken(Attention, "__init__", "BLK-03f[gqa]: lacks mixer.k_norm.weight, mixer.q_norm.weight")
def qk_norm_is_a_no_op(init, self, recipe, parts):
    """The qk_norm flag is read and printed, and no norm is built."""
    init(self, recipe, parts)
    if self.qk_norm:
        self.qk_norm = False
        del self.q_norm, self.k_norm


@broken(
    LatentAttention,
    "__init__",
    "BLK-03f[dsa-dense-layer]: layer 4 holds mixer.indexer.k_norm.bias",
    "BLK-03b[a-layer-beside-sparse-ones]: layer 4 selects keys",
    "BLK-06f[rank-1-between]: layer 4 selects keys, and the sparse A-ranks are (0, 2)",
)
def every_attention_layer_is_sparse(init, self, recipe, parts, *, sparse=False):
    """The list of A-ranks switches DSA on for every attention layer, whatever ranks it names."""
    init(self, recipe, parts, sparse=recipe.dsa is not None)


@broken(
    Attention,
    "__init__",
    "BLK-03a[theta-100]: y differs",
    "BLK-03g[theta-100-five-on]: (theta 100)",
    bugs=("ROP-20",),
)
def drops_theta(init, self, recipe, parts):
    """The builder does not pass rope_theta, so the layer uses the common default of 10 000."""
    init(self, recipe, parts)
    self.theta = 10_000


@broken(Attention, "angles", "BLK-03a[4-heads-on-2]: y differs", bugs=("ROP-04",))
def positions_begin_anew_in_a_document(angles, self, positions_BT, size):
    """Positions are taken modulo the table's length, so token 8 has the position of token 0."""
    return angles(self, positions_BT % 8, size)


class JointNorm(Attention):
    def place(self, q_BTHd: Tensor, k_BTGd: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        return self.rotate(self.joint(q_BTHd, self.q_norm.weight), packing), self.rotate(
            self.joint(k_BTGd, self.k_norm.weight), packing
        )

    def joint(self, x_BTHd: Tensor, weight_d: Tensor) -> Tensor:
        mean = x_BTHd.square().mean((-2, -1), keepdim=True)
        return x_BTHd * torch.rsqrt(mean + self.q_norm.eps) * weight_d


with_attributes(
    "NormsAllHeadsTogether",
    "QK norm covers the whole projection: heads keep their relative lengths, and the loudest dominates.",
    "BLK-03a[packed]: y differs",
    owner=JointNorm,
)


class _ByLayer(Parts):
    def mixer(self, recipe: Recipe, layer: int, mode: Mode) -> nn.Module:
        if recipe.dsa is None or layer not in (0, 4, 8, 12):
            return super().mixer(recipe, layer, mode)
        return self.latent_attention(recipe, self, sparse=layer in recipe.dsa.a_ranks)


@broken(
    Reference,
    "parts",
    "BLK-03f[dsa]: layer 8 lacks mixer.indexer.k_norm.bias",
    "BLK-06f[rank-2]: layer 8 does not select keys, and the sparse A-ranks are (0, 2)",
    bugs=("HYB-09",),
)
def reads_a_ranks_as_layers(parts, self):
    """A-ranks, which count attention layers only, are compared with layer numbers."""
    return _ByLayer()


@derived("BLK-03f[biased]: layer 0 lacks mixer.wk.bias")
class HasNoBiasOnKeys(Attention):
    """Keys have no bias, as in Whisper: without a QK norm it moves no softmax."""

    def __init__(self, recipe: Recipe, parts: Parts) -> None:
        super().__init__(recipe, parts)
        self.wk.register_parameter("bias", None)

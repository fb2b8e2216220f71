"""Attention that departs from its definition in one place: heads, scale, norms, held tensors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.spec.recipe import Mode, Recipe
from contracts.stacks.reference.model.blocks.attention import Attention, LatentAttention
from contracts.stacks.reference.model.blocks.common import Output, Packing, RMSNorm, State
from contracts.stacks.reference.model.parts import Parts


class _Tiled(Attention):
    def repeat(self, kv_BTGd: Tensor, heads: int) -> Tensor:
        return kv_BTGd.repeat(1, 1, heads // kv_BTGd.shape[2], 1)


@mutant(of="BLK-03a", case="4-heads-on-2", says="y differs")
@mutant(of="BLK-03c", case="on-2", says="2 KV heads against four that repeat them: y differs")
class TilesKeyValueHeads(Exchanged):
    """KV heads are repeated as 0 1 0 1 instead of 0 0 1 1. With one KV head, or one per query head, this is right."""

    exchange = {"attention": _Tiled}


class _OneReaderCounts(Attention):
    def repeat(self, kv_BTGd: Tensor, heads: int) -> Tensor:
        readers = heads // kv_BTGd.shape[2]
        silent = [kv_BTGd.detach()] * (readers - 1)
        return torch.stack([kv_BTGd, *silent], dim=3).flatten(2, 3)


@mutant(of="BLK-03a", case="packed-4-heads-on-1", says="gradient mixer.wk.weight differs")
@mutant(of="BLK-03c", case="on-2", says="the gradient of mixer.wk.weight, KV head 0, differs")
class KeepsTheGradientOfOneReader(Exchanged):
    """The backward kernel overwrites the gradient of a KV head instead of adding: one query head's share remains."""

    exchange = {"attention": _OneReaderCounts}


class _Averaged(Attention):
    def repeat(self, kv_BTGd: Tensor, heads: int) -> Tensor:
        readers = heads // kv_BTGd.shape[2]
        whole = super().repeat(kv_BTGd, heads)
        return whole / readers + (whole - whole / readers).detach()


@mutant(of="BLK-03c", case="on-1", says="the gradient of mixer.wk.weight, KV head 0, differs")
class AveragesTheGradientsOfReaders(Exchanged):
    """The gradient of a KV head is averaged over the query heads that read it instead of summed."""

    exchange = {"attention": _Averaged}


class _ScaledByHidden(Attention):
    def __init__(self, recipe: Recipe, parts: Parts) -> None:
        super().__init__(recipe, parts)
        self.scale = recipe.hidden**-0.5


@mutant(of="BLK-03a", case="without-qk-norm", says="y differs")
class ScalesByTheHiddenSize(Exchanged):
    """Scores are divided by the root of hidden instead of head_dim, which is equal only with a single head."""

    exchange = {"attention": _ScaledByHidden}


class _Unscaled(Attention):
    def __init__(self, recipe: Recipe, parts: Parts) -> None:
        super().__init__(recipe, parts)
        self.scale = 1.0 if self.qk_norm else self.scale


@mutant(of="BLK-03a", case="4-heads-on-2", says="y differs")
class DropsTheScaleUnderQkNorm(Exchanged):
    """The softmax scale is dropped under QK norm, as in cosine attention."""

    exchange = {"attention": _Unscaled}


class _NormedLate(Attention):
    def place(self, q_BTHd: Tensor, k_BTGd: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        return self.q_norm(self.rotate(q_BTHd, packing)), self.k_norm(self.rotate(k_BTGd, packing))


@mutant(of="BLK-03a", case="4-heads-on-2", says="y differs")
class NormsAfterRope(Exchanged):
    """QK norm follows rope. The result is the same while all elements of the norm's weight are equal."""

    exchange = {"attention": _NormedLate}


class _SharedNorm(Attention):
    def place(self, q_BTHd: Tensor, k_BTGd: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        return self.rotate(self.q_norm(q_BTHd), packing), self.rotate(self.q_norm(k_BTGd), packing)


@mutant(of="BLK-03a", case="packed", says="y differs")
class NormsKeysByTheQueriesWeight(Exchanged):
    """Queries and keys share one norm. The result is the same until training moves the two weights apart."""

    exchange = {"attention": _SharedNorm}


class _DefaultEps(RMSNorm):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size, 1e-6)


@mutant(of="BLK-03a", case="wide-eps", says="y differs", bugs=("MXP-08",))
class DropsTheEpsOfTheRecipe(Exchanged):
    """Norms are built without the recipe's eps and keep their default."""

    exchange = {"norm": _DefaultEps}


class _HeadsLast(Attention):
    def split(self, x_BTF: Tensor) -> Tensor:
        return x_BTF.reshape(*x_BTF.shape[:-1], self.head_dim, -1).transpose(-1, -2)


@mutant(of="BLK-03a", case="8-heads-on-2", says="y differs")
class ReadsHeadsInterleaved(Exchanged):
    """Rows of a matrix are read as (element, head): a checkpoint of another layout, loaded without its permutation."""

    exchange = {"attention": _HeadsLast}


class _ShortWindow(Attention):
    def attend(self, q_BTHd: Tensor, k_BSHd: Tensor, v_BSHv: Tensor, visible_BTS: Tensor | None) -> Tensor:
        length = q_BTHd.shape[1]
        if visible_BTS is None:
            visible_BTS = torch.ones(len(q_BTHd), length, length, dtype=torch.bool, device=q_BTHd.device).tril()
        return super().attend(q_BTHd, k_BSHd, v_BSHv, visible_BTS.triu(2 - length))


@mutant(of="BLK-03a", case="4-heads-on-2", says="y differs", bugs=("ROP-11",))
class WindowIsOneShort(Exchanged):
    """A window as long as the sequence passes as W - 1 keys, so the last token does not see the first."""

    exchange = {"attention": _ShortWindow}


class _OnlyThePast(Attention):
    def visible(self, packing: Packing) -> Tensor:
        whole_BTS = super().visible(packing)
        lonely_BT1 = (packing.positions_BT == 0)[..., None]
        return torch.where(lonely_BT1, whole_BTS, whole_BTS.tril(-1))


@mutant(of="BLK-03a", case="packed", says="y differs")
class DoesNotSeeItself(Exchanged):
    """The causal mask excludes the token itself."""

    exchange = {"attention": _OnlyThePast}


class _TurnedValues(Attention):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        q_BTHd, k_BTGd, v_BTGd = (self.split(matrix(x_BTD)) for matrix in (self.wq, self.wk, self.wv))
        q_BTHd, k_BTGd = self.place(q_BTHd, k_BTGd, packing)
        k_BTHd, v_BTHd = (self.repeat(each, q_BTHd.shape[2]) for each in (k_BTGd, self.rotate(v_BTGd, packing)))
        out_BTHd = self.attend(q_BTHd, k_BTHd, v_BTHd, None if packing.boundless else self.visible(packing))
        return Output(y_BTD=self.wo(out_BTHd.flatten(2)))


@mutant(of="BLK-03e", case="gqa", says="against the first of the row y differs")
class TurnsValuesToo(Exchanged):
    """Rope rotates all of a fused QKV, values included."""

    exchange = {"attention": _TurnedValues}


class _Dropping(Attention):
    def probabilities(self, scores_BHTS: Tensor, visible_BTS: Tensor) -> Tensor:
        return F.dropout(super().probabilities(scores_BHTS, visible_BTS), 0.1)


@mutant(of="BLK-03e", case="gqa-packed", says="against the first of the row y differs")
class DropsOutInEveryMode(Exchanged):
    """Attention dropout is on although no recipe asks for it."""

    exchange = {"attention": _Dropping}


class _MaskedLate(Attention):
    def probabilities(self, scores_BHTS: Tensor, visible_BTS: Tensor) -> Tensor:
        return scores_BHTS.softmax(dim=-1) * visible_BTS[:, None]


@mutant(of="BLK-03e", case="gqa-packed", says="against the first of the row y differs")
class MasksAfterTheSoftmax(Exchanged):
    """The mask is multiplied in after the softmax, so weights of early tokens sum to less than one."""

    exchange = {"attention": _MaskedLate}


class _Tabled(Attention):
    def __init__(self, recipe: Recipe, parts: Parts) -> None:
        super().__init__(recipe, parts)
        self.register_buffer("cos", self.angles(torch.arange(recipe.seq_length)[None], self.head_dim).cos())


@mutant(of="BLK-03f", case="gqa", says="holds mixer.cos, which its definition does not have", bugs=("RSM-13",))
class SavesTheRopeTable(Exchanged):
    """The table of cosines is a persistent buffer, so a resumed run keeps the checkpoint's table whatever its theta."""

    exchange = {"attention": _Tabled}


class _NeverNormed(Attention):
    def __init__(self, recipe: Recipe, parts: Parts) -> None:
        super().__init__(recipe, parts)
        if self.qk_norm:
            self.qk_norm = False
            del self.q_norm, self.k_norm


@mutant(of="BLK-03f", case="gqa", says="lacks mixer.k_norm.weight, mixer.q_norm.weight")
class QkNormIsANoOp(Exchanged):
    """The qk_norm flag is read and printed, and no norm is built."""

    exchange = {"attention": _NeverNormed}


class _AlwaysSparse(LatentAttention):
    def __init__(self, recipe: Recipe, parts: Parts, *, sparse: bool = False) -> None:
        super().__init__(recipe, parts, sparse=recipe.dsa is not None)


@mutant(of="BLK-03f", case="dsa-dense-layer", says="layer 4 holds mixer.indexer.k_norm.bias")
class EveryAttentionLayerIsSparse(Exchanged):
    """The list of A-ranks switches DSA on for every attention layer, whatever ranks it names."""

    exchange = {"latent_attention": _AlwaysSparse}


class _DefaultTheta(Attention):
    def __init__(self, recipe: Recipe, parts: Parts) -> None:
        super().__init__(recipe, parts)
        self.theta = 10_000


@mutant(of="BLK-03a", case="theta-100", says="y differs", bugs=("ROP-20",))
class DropsTheta(Exchanged):
    """The builder does not pass rope_theta, so the layer uses the common default of 10 000."""

    exchange = {"attention": _DefaultTheta}


class _Modulo(Attention):
    def angles(self, positions_BT: Tensor, size: int) -> Tensor:
        return super().angles(positions_BT % 8, size)


@mutant(of="BLK-03a", case="4-heads-on-2", says="y differs", bugs=("ROP-04",))
class PositionsBeginAnewInADocument(Exchanged):
    """Positions are taken modulo the table's length, so token 8 has the position of token 0."""

    exchange = {"attention": _Modulo}


class JointNorm(Attention):
    def place(self, q_BTHd: Tensor, k_BTGd: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        return self.rotate(self.joint(q_BTHd, self.q_norm.weight), packing), self.rotate(
            self.joint(k_BTGd, self.k_norm.weight), packing
        )

    def joint(self, x_BTHd: Tensor, weight_d: Tensor) -> Tensor:
        mean = x_BTHd.square().mean((-2, -1), keepdim=True)
        return x_BTHd * torch.rsqrt(mean + self.q_norm.eps) * weight_d


@mutant(of="BLK-03a", case="packed", says="y differs")
class NormsAllHeadsTogether(Exchanged):
    """QK norm covers the whole projection: heads keep their relative lengths, and the loudest dominates."""

    exchange = {"attention": JointNorm}


class _ByLayer(Parts):
    def mixer(self, recipe: Recipe, layer: int, mode: Mode) -> nn.Module:
        if recipe.dsa is None or layer not in (0, 4, 8, 12):
            return super().mixer(recipe, layer, mode)
        return self.latent_attention(recipe, self, sparse=layer in recipe.dsa.a_ranks)


@mutant(of="BLK-03f", case="dsa", says="layer 8 lacks mixer.indexer.k_norm.bias", bugs=("HYB-09",))
class ReadsARanksAsLayers(Exchanged):
    """A-ranks, which count attention layers only, are compared with layer numbers."""

    def parts(self) -> Parts:
        return _ByLayer()

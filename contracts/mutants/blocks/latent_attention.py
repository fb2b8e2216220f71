"""Multi-latent attention that departs from its definition, or whose two forms disagree."""

from __future__ import annotations

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.mutants.blocks.attention import DropsTheEpsOfTheRecipe, EveryAttentionLayerIsSparse
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.model.blocks.attention import Indexer, LatentAttention, heads_of
from contracts.stacks.reference.model.blocks.common import Packing
from contracts.stacks.reference.model.parts import Parts


class _NormOverAll(LatentAttention):
    def latents(self, x_BTD: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        whole = self.wkv_a(x_BTD)
        whole = whole * torch.rsqrt(whole.square().mean(-1, keepdim=True) + self.kv_norm.eps)
        c_BTc, k_BTr = torch.split(whole, [self.latent_dim, self.query_dims[1]], dim=-1)
        return c_BTc * self.kv_norm.weight, self.rotate(k_BTr[:, :, None], packing)[:, :, 0]


@mutant(of="BLK-03b", case="one-document", says="y differs")
class NormsTheRopePartOfTheKey(Exchanged):
    """The latent's norm covers the whole fused projection, including the rope part."""

    exchange = {"latent_attention": _NormOverAll}


class _Raw(LatentAttention):
    def latents(self, x_BTD: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        _, k_BTr = super().latents(x_BTD, packing)
        return self.wkv_a(x_BTD)[..., : self.latent_dim], k_BTr


@mutant(of="BLK-03b", case="packed", says="y differs")
class ForgetsTheNormOfTheLatent(Exchanged):
    """Keys and values are computed from the latent without its norm, whose weight stays unused in the checkpoint."""

    exchange = {"latent_attention": _Raw}


class _ScaledByOnePart(LatentAttention):
    def __init__(self, recipe: Recipe, parts: Parts, *, sparse: bool = False) -> None:
        super().__init__(recipe, parts, sparse=sparse)
        self.scale = self.query_dims[0] ** -0.5


@mutant(of="BLK-03b", case="one-document", says="y differs")
class ScalesByThePartWithoutRope(Exchanged):
    """The softmax scale of MLA does not count the rope elements."""

    exchange = {"latent_attention": _ScaledByOnePart}


class _RopeFirst(LatentAttention):
    def queries(self, latent_BTq: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        q_BTHd = heads_of(self.wq_b(latent_BTq), sum(self.query_dims))
        q_BTHr, q_BTHn = torch.split(q_BTHd, self.query_dims[::-1], dim=-1)
        return q_BTHn, self.rotate(q_BTHr, packing)


@mutant(of="BLK-03b", case="3-heads-of-8", says="y differs")
class ReadsTheRopePartFirst(Exchanged):
    """A query head is split as [rope | no rope], the reverse of its key."""

    exchange = {"latent_attention": _RopeFirst}


class _ValueFirst(LatentAttention):
    def unabsorbed(
        self, q_BTHn: Tensor, q_BTHr: Tensor, c_BSc: Tensor, k_BSr: Tensor, visible_BTS: Tensor | None
    ) -> Tensor:
        whole_BSHd = heads_of(self.wkv_b(c_BSc), sum(self.kv_dims))
        v_BSHv, k_BSHn = torch.split(whole_BSHd, self.kv_dims[::-1], dim=-1)
        k_BSHr = k_BSr[:, :, None].expand(-1, -1, k_BSHn.shape[2], -1)
        q_BTHd, k_BSHd = torch.cat((q_BTHn, q_BTHr), dim=-1), torch.cat((k_BSHn, k_BSHr), dim=-1)
        return self.attend(q_BTHd, k_BSHd, v_BSHv, visible_BTS)


@mutant(of="BLK-03b", case="one-document", says="y differs")
class ReadsTheValueFirst(Exchanged):
    """A head of the up-projection is split as [value | key]."""

    exchange = {"latent_attention": _ValueFirst}


class _WrongFrequencies(LatentAttention):
    def angles(self, positions_BT: Tensor, size: int) -> Tensor:
        return super().angles(positions_BT, sum(self.query_dims))[..., : size // 2]


@mutant(of="BLK-03b", case="theta-100", says="y differs")
class TakesFrequenciesOfTheWholeHead(Exchanged):
    """Rope frequencies are computed for the whole head size instead of the rope part's."""

    exchange = {"latent_attention": _WrongFrequencies}


class _DividedKey(LatentAttention):
    def latents(self, x_BTD: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        c_BTc, k_BTr = super().latents(x_BTD, packing)
        return c_BTc, k_BTr / 4 + (k_BTr - k_BTr / 4).detach()


@mutant(of="BLK-03b", case="packed", says="gradient mixer.wkv_a.weight differs")
class AveragesTheSharedKeysGradient(Exchanged):
    """The gradient of the shared rope part of a key is averaged over heads instead of summed."""

    exchange = {"latent_attention": _DividedKey}


class _ScaledByTheLatent(LatentAttention):
    def absorbed(
        self, q_BTHn: Tensor, q_BTHr: Tensor, c_BSc: Tensor, k_BSr: Tensor, visible_BTS: Tensor | None
    ) -> Tensor:
        scale, self.scale = self.scale, (self.latent_dim + self.query_dims[1]) ** -0.5
        out_BTHv = super().absorbed(q_BTHn, q_BTHr, c_BSc, k_BSr, visible_BTS)
        self.scale = scale
        return out_BTHv


@mutant(of="BLK-06c", case="k-is-T", says="sparse against dense, y differs")
class ScalesByTheAbsorbedSize(Exchanged):
    """The absorbed form computes the softmax scale from the size of its absorbed queries, which is the latent's."""

    exchange = {"latent_attention": _ScaledByTheLatent}


class _WithoutRope(LatentAttention):
    def absorbed(
        self, q_BTHn: Tensor, q_BTHr: Tensor, c_BSc: Tensor, k_BSr: Tensor, visible_BTS: Tensor | None
    ) -> Tensor:
        return super().absorbed(q_BTHn, torch.zeros_like(q_BTHr), c_BSc, k_BSr, visible_BTS)


@mutant(of="BLK-06c", case="packed-k-is-the-longest", says="sparse against dense, y differs")
class AbsorbsThePartWithoutRopeAlone(Exchanged):
    """The absorbed form attends over the latent and drops the rope part of the keys."""

    exchange = {"latent_attention": _WithoutRope}


class _Transposed(LatentAttention):
    def absorbed(
        self, q_BTHn: Tensor, q_BTHr: Tensor, c_BSc: Tensor, k_BSr: Tensor, visible_BTS: Tensor | None
    ) -> Tensor:
        return super().absorbed(q_BTHn.flip(2), q_BTHr.flip(2), c_BSc, k_BSr, visible_BTS).flip(2)


@mutant(of="BLK-06c", case="k-above-T", says="sparse against dense, y differs")
class AbsorbsHeadsInAnotherOrder(Exchanged):
    """The absorbed up-projection has another order of heads than the queries."""

    exchange = {"latent_attention": _Transposed}


class _Constant(LatentAttention):
    def absorbed(
        self, q_BTHn: Tensor, q_BTHr: Tensor, c_BSc: Tensor, k_BSr: Tensor, visible_BTS: Tensor | None
    ) -> Tensor:
        return super().absorbed(q_BTHn, q_BTHr, c_BSc.detach(), k_BSr, visible_BTS)


@mutant(of="BLK-06c", case="k-is-T", says="gradient lacks mixer.kv_norm.weight")
class GathersWithoutGradient(Exchanged):
    """Latents are gathered from a cache without gradient."""

    exchange = {"latent_attention": _Constant}


mutant(of="BLK-03b", case="wide-eps", says="y differs", bugs=("MXP-08",))(DropsTheEpsOfTheRecipe)


mutant(of="BLK-03b", case="a-layer-beside-sparse-ones", says="layer 4 selects keys")(EveryAttentionLayerIsSparse)


class _SetTooLate(LatentAttention):
    def __init__(self, recipe: Recipe, parts: Parts, *, sparse: bool = False) -> None:
        super().__init__(recipe, parts, sparse=sparse)
        self.frequencies = [500_000 ** (-2 * pair / 4) for pair in range(2)]  # made before theta is set

    def angles(self, positions_BT: Tensor, size: int) -> Tensor:
        frequencies = torch.tensor(self.frequencies, dtype=torch.float64, device=positions_BT.device)
        return positions_BT.double()[..., None] * frequencies


@mutant(of="BLK-03b", case="theta-100", says="y differs", bugs=("ROP-21",))
class SetsThetaAfterTheTableIsMade(Exchanged):
    """The theta attribute is set after the frequencies were computed from another theta."""

    exchange = {"latent_attention": _SetTooLate}


class _Capped(Indexer):
    def select(self, scores_BTS: Tensor, visible_BTS: Tensor) -> Tensor:
        self.top_k = min(self.top_k, scores_BTS.shape[-1] - 1)
        return super().select(scores_BTS, visible_BTS)


@mutant(of="BLK-06c", case="k-above-T", says="sparse against dense, y differs")
class KeepsOneKeyBack(Exchanged):
    """k is capped at one less than the number of keys, so a sparse layer is never dense."""

    exchange = {"indexer": _Capped}

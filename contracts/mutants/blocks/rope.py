"""Attention with one bug in rope or QK norm."""

from __future__ import annotations

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.mutants.blocks.attention import DropsTheta, JointNorm
from contracts.stacks.reference.model.blocks.attention import Attention, LatentAttention
from contracts.stacks.reference.model.blocks.common import Packing


class _Interleaved(Attention):
    def rotate(self, x_BTHd: Tensor, packing: Packing) -> Tensor:
        halves = torch.cat((x_BTHd[..., 0::2], x_BTHd[..., 1::2]), dim=-1)
        first, second = super().rotate(halves, packing).chunk(2, dim=-1)
        return torch.stack((first, second), dim=-1).flatten(-2)


@mutant(of="BLK-03g", case="theta-10000-next", says="element 0 of a query and 1 of a key 1 tokens before it")
class PairsNeighbours(Exchanged):
    """Rope pairs elements 2j and 2j + 1: another model for the same weights, as good when trained from scratch."""

    exchange = {"attention": _Interleaved}


class _Backwards(Attention):
    def angles(self, positions_BT: Tensor, size: int) -> Tensor:
        return -super().angles(positions_BT, size)


@mutant(of="BLK-03g", case="theta-10000-next", says="element 0 of a query and 2 of a key 1 tokens before it")
class TurnsBackwards(Exchanged):
    """The angle has the wrong sign."""

    exchange = {"attention": _Backwards}


class _HalfExponent(Attention):
    def angles(self, positions_BT: Tensor, size: int) -> Tensor:
        pairs = torch.arange(size // 2, device=positions_BT.device, dtype=torch.float64)
        return positions_BT.double()[..., None] * self.theta ** (-pairs / size)


@mutant(of="BLK-03g", case="theta-10000-next", says="element 1 of a query and 1 of a key 1 tokens before it")
class TakesHalfTheExponent(Exchanged):
    """Frequencies are theta^(-j/d) instead of theta^(-2j/d), so all pairs but the first are wrong."""

    exchange = {"attention": _HalfExponent}


class _QueryAhead(Attention):
    def place(self, q_BTHd: Tensor, k_BTGd: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        ahead = packing._replace(positions_BT=packing.positions_BT + 1)
        return super().place(q_BTHd, k_BTGd, ahead)[0], super().place(q_BTHd, k_BTGd, packing)[1]


@mutant(of="BLK-03g", case="theta-100-five-on", says="element 0 of a query and 0 of a key 5 tokens before it")
class QueriesStandOneAheadOfKeys(Exchanged):
    """Queries have their position plus one: a cache offset, added where there is no cache."""

    exchange = {"attention": _QueryAhead}


def _row_positions(packing: Packing) -> Packing:
    index_T = torch.arange(packing.positions_BT.shape[1], device=packing.positions_BT.device)
    return packing._replace(positions_BT=index_T.expand(packing.positions_BT.shape))


class _TwoClocks(Attention):
    def place(self, q_BTHd: Tensor, k_BTGd: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        return super().place(q_BTHd, k_BTGd, packing)[0], super().place(q_BTHd, k_BTGd, _row_positions(packing))[1]


@mutant(of="BLK-03h", case="gqa", says="packed against alone, y of document 2 of row 0 differs")
class KeysCountFromTheRow(Exchanged):
    """Queries count positions from their document and keys from the row, which differ only in packed rows."""

    exchange = {"attention": _TwoClocks}


class _LateRestart(LatentAttention):
    def angles(self, positions_BT: Tensor, size: int) -> Tensor:
        late_BT = torch.cat((positions_BT[:, :1], positions_BT[:, :-1] + 1), dim=1)
        return super().angles(late_BT, size)


@mutant(of="BLK-03h", case="mla", says="packed against alone, y of document")
class RestartsOneTokenLate(Exchanged):
    """Positions restart one token late, so a document's first token continues the previous document's count."""

    exchange = {"latent_attention": _LateRestart}


class _JointWhereNormed(JointNorm):
    def place(self, q_BTHd: Tensor, k_BTGd: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        if self.qk_norm:
            return super().place(q_BTHd, k_BTGd, packing)
        return self.rotate(q_BTHd, packing), self.rotate(k_BTGd, packing)


@mutant(of="BLK-03i", case="second-query-head", says="with qk_norm: y differs")
@mutant(of="BLK-03i", case="second-key-head", says="with qk_norm: y differs")
class ALoudHeadQuietensTheOthers(Exchanged):
    """QK norm covers all heads at once, so one head's length changes what the others attend to."""

    exchange = {"attention": _JointWhereNormed}


class _Weighed(Attention):
    def place(self, q_BTHd: Tensor, k_BTGd: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        if self.qk_norm:
            q_BTHd, k_BTGd = q_BTHd * self.q_norm.weight, k_BTGd * self.k_norm.weight
        return self.rotate(q_BTHd, packing), self.rotate(k_BTGd, packing)


@mutant(of="BLK-03i", case="every-query-head", says="with qk_norm: y differs")
class QkNormOnlyWeighs(Exchanged):
    """QK norm multiplies by its weight and does not divide by the length."""

    exchange = {"attention": _Weighed}


class _Always(Attention):
    def place(self, q_BTHd: Tensor, k_BTGd: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        if not self.qk_norm:
            q_BTHd, k_BTGd = (each * torch.rsqrt(each.square().mean(-1, keepdim=True)) for each in (q_BTHd, k_BTGd))
        return super().place(q_BTHd, k_BTGd, packing)


@mutant(of="BLK-03i", case="last-query-head", says="without qk_norm: y is the same as before")
class NormsWithoutBeingAsked(Exchanged):
    """Without the qk_norm flag the norm loses its weight and is still applied."""

    exchange = {"attention": _Always}


class _Float32Angles(Attention):
    def angles(self, positions_BT: Tensor, size: int) -> Tensor:
        pairs = torch.arange(size // 2, device=positions_BT.device, dtype=torch.float32)
        return positions_BT.float()[..., None] * self.theta ** (-2.0 * pairs / size)


@mutant(of="BLK-03j", case="1027-tokens-theta-10", says="y of the last three tokens differs")
class AnglesAreFloat32(Exchanged):
    """Angles are computed as position · frequency in float32, which short sequences do not show."""

    exchange = {"attention": _Float32Angles}


class _Bfloat16Positions(Attention):
    def angles(self, positions_BT: Tensor, size: int) -> Tensor:
        return super().angles(positions_BT.bfloat16(), size)


@mutant(of="BLK-03j", case="1027-tokens", says="y of the last three tokens differs")
class PositionsAreBfloat16(Exchanged):
    """Positions are cast to bfloat16 with the whole model: above 256, neighbours share a position."""

    exchange = {"attention": _Bfloat16Positions}


mutant(of="BLK-03g", case="theta-100-five-on", says="(theta 100)", bugs=("ROP-20",))(DropsTheta)


class _OneDocument(Attention):
    def visible(self, packing: Packing) -> Tensor:
        return torch.ones_like(super().visible(packing)).tril()


@mutant(of="BLK-03h", case="gqa", says="packed against alone, the gradient of x of document 0")
class IgnoresDocuments(Exchanged):
    """Document numbers reach the block and are not used."""

    exchange = {"attention": _OneDocument}


@mutant(of="BLK-03j", case="1027-tokens-theta-10", says="y of the last three tokens differs")
class DeclaresFloat32Angles(Exchanged):
    """Declares float32 angles and has exact ones: a run beside another stack differs where nobody expects it."""

    conventions = {"rope-angles": "float32"}


@mutant(of="BLK-03j", case="1027-tokens", says="y of the last three tokens differs")
class DeclaresFloat32AnglesOfBfloat16Positions(Exchanged):
    """Declares float32 angles and takes them of positions in bfloat16."""

    conventions = {"rope-angles": "float32"}
    exchange = {"attention": _Bfloat16Positions}


class _TableOf2048(Attention):
    def angles(self, positions_BT: Tensor, size: int) -> Tensor:
        return super().angles(positions_BT % 2048, size)


@mutant(of="BLK-03j", case="4099-tokens", says="y of the last three tokens differs", bugs=("ROP-04",))
class WrapsAroundATable(Exchanged):
    """Angles are looked up in a table of 2048 positions, by the position modulo its length."""

    exchange = {"attention": _TableOf2048}

"""Attention with one bug in rope or QK norm."""

import torch

from contracts.law._bugs.numeric import Attention, LatentAttention, Packing, broken, with_attributes
from contracts.law.blocks.attention_bugs import JointNorm


@broken(Attention, "rotate", "BLK-03g[theta-10000-next]: element 0 of a query and 1 of a key 1 tokens before it")
def pairs_neighbours(rotate, self, x_BTHd, packing):
    """Rope pairs elements 2j and 2j + 1: another model for the same weights, as good when trained from scratch."""
    halves = torch.cat((x_BTHd[..., 0::2], x_BTHd[..., 1::2]), dim=-1)
    first, second = rotate(self, halves, packing).chunk(2, dim=-1)
    return torch.stack((first, second), dim=-1).flatten(-2)


@broken(Attention, "angles", "BLK-03g[theta-10000-next]: element 0 of a query and 2 of a key 1 tokens before it")
def turns_backwards(angles, self, positions_BT, size):
    """The angle has the wrong sign."""
    return -angles(self, positions_BT, size)


@broken(Attention, "angles", "BLK-03g[theta-10000-next]: element 1 of a query and 1 of a key 1 tokens before it")
def takes_half_the_exponent(angles, self, positions_BT, size):
    """Frequencies are theta^(-j/d) instead of theta^(-2j/d), so all pairs but the first are wrong."""
    pairs = torch.arange(size // 2, device=positions_BT.device, dtype=torch.float64)
    return positions_BT.double()[..., None] * self.theta ** (-pairs / size)


@broken(Attention, "place", "BLK-03g[theta-100-five-on]: element 0 of a query and 0 of a key 5 tokens before it")
def queries_stand_one_ahead_of_keys(place, self, q_BTHd, k_BTGd, packing):
    """Queries have their position plus one: a cache offset, added where there is no cache."""
    ahead = packing._replace(positions_BT=packing.positions_BT + 1)
    return place(self, q_BTHd, k_BTGd, ahead)[0], place(self, q_BTHd, k_BTGd, packing)[1]


def _row_positions(packing: Packing) -> Packing:
    index_T = torch.arange(packing.positions_BT.shape[1], device=packing.positions_BT.device)
    return packing._replace(positions_BT=index_T.expand(packing.positions_BT.shape))


@broken(Attention, "place", "BLK-03h[gqa]: packed against by itself, y of document 2 of row 0 differs")
def keys_count_from_the_row(place, self, q_BTHd, k_BTGd, packing):
    """Queries count positions from their document and keys from the row, which differ only in packed rows."""
    return place(self, q_BTHd, k_BTGd, packing)[0], place(self, q_BTHd, k_BTGd, _row_positions(packing))[1]


@broken(LatentAttention, "angles", "BLK-03h[mla]: packed against by itself, y of document")
def restarts_one_token_late(angles, self, positions_BT, size):
    """Positions restart one token late, so a document's first token continues the previous document's count."""
    late_BT = torch.cat((positions_BT[:, :1], positions_BT[:, :-1] + 1), dim=1)
    return angles(self, late_BT, size)


@broken(
    JointNorm,
    "place",
    "BLK-03i[second-key-head]: with qk_norm: y differs",
    "BLK-03i[second-query-head]: with qk_norm: y differs",
)
def a_loud_head_quietens_the_others(place, self, q_BTHd, k_BTGd, packing):
    """QK norm covers all heads at once, so one head's length changes what the others attend to."""
    if self.qk_norm:
        return place(self, q_BTHd, k_BTGd, packing)
    return self.rotate(q_BTHd, packing), self.rotate(k_BTGd, packing)


@broken(Attention, "place", "BLK-03i[every-query-head]: with qk_norm: y differs")
def qk_norm_only_weighs(place, self, q_BTHd, k_BTGd, packing):
    """QK norm multiplies by its weight and does not divide by the length."""
    if self.qk_norm:
        q_BTHd, k_BTGd = q_BTHd * self.q_norm.weight, k_BTGd * self.k_norm.weight
    return self.rotate(q_BTHd, packing), self.rotate(k_BTGd, packing)


@broken(Attention, "place", "BLK-03i[last-query-head]: without qk_norm: y is the same as before")
def norms_without_being_asked(place, self, q_BTHd, k_BTGd, packing):
    """Without the qk_norm flag the norm loses its weight and is still applied."""
    if not self.qk_norm:
        q_BTHd, k_BTGd = (each * torch.rsqrt(each.square().mean(-1, keepdim=True)) for each in (q_BTHd, k_BTGd))
    return place(self, q_BTHd, k_BTGd, packing)


@broken(Attention, "angles", "BLK-03j[1027-tokens-theta-10]: y of the last three tokens differs")
def angles_are_float32(angles, self, positions_BT, size):
    """Angles are computed as position · frequency in float32, which short sequences do not show."""
    pairs = torch.arange(size // 2, device=positions_BT.device, dtype=torch.float32)
    return positions_BT.float()[..., None] * self.theta ** (-2.0 * pairs / size)


@broken(Attention, "angles", "BLK-03j[1027-tokens]: y of the last three tokens differs")
def positions_are_bfloat16(angles, self, positions_BT, size):
    """Positions are cast to bfloat16 with the whole model: above 256, neighbours share a position."""
    return angles(self, positions_BT.bfloat16(), size)


@broken(
    Attention,
    "visible",
    "BLK-03h[gqa]: packed against by itself, the gradient of x of document 0",
    "BLK-02a[gqa]: the other documents were replaced, and y of document 1 of row 0 differs",
)
def ignores_documents(visible, self, packing):
    """Document numbers reach the block and are not used."""
    return torch.ones_like(visible(self, packing)).tril()


with_attributes(
    "DeclaresFloat32Angles",
    "Declares float32 angles and has exact ones: a run beside another stack differs where nobody expects it.",
    "BLK-03j[1027-tokens-theta-10]: y of the last three tokens differs",
    conventions={"rope-angles": "float32"},
)

with_attributes(
    "DeclaresFloat32AnglesOfBfloat16Positions",
    "Declares float32 angles and takes them of positions in bfloat16.",
    "BLK-03j[1027-tokens]: y of the last three tokens differs",
    owner=positions_are_bfloat16,
    conventions={"rope-angles": "float32"},
)


@broken(Attention, "angles", "BLK-03j[4099-tokens]: y of the last three tokens differs", bugs=("ROP-04",))
def wraps_around_a_table(angles, self, positions_BT, size):
    """Angles are looked up in a table of 2048 positions, by the position modulo its length."""
    return angles(self, positions_BT % 2048, size)


@broken(
    Attention,
    "rotate",
    "BLK-03m[cosines]: of what cosines lose in bfloat16, expected 0",
    "BLK-03m[sines]: of what sines lose in bfloat16, expected 0",
)
def rounds_the_turns(rotate, self, x_BTHd, packing):
    """Cosines and sines are cast to the dtype of what they turn: a tolerance of half precision has room for it."""
    angles_BT1e = self.angles(packing.positions_BT, x_BTHd.shape[-1])[:, :, None]
    cos, sin = angles_BT1e.cos().to(x_BTHd.dtype), angles_BT1e.sin().to(x_BTHd.dtype)
    first, second = x_BTHd.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


with_attributes(
    "DeclaresRoundedTurns",
    "Declares rounded cosines and sines and has those of float32.",
    "BLK-03m[sines]: of what sines lose in bfloat16, expected 1",
    conventions={"rope-turns": "activations"},
)

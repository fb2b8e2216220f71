"""Multi-latent attention that departs from its definition, or whose two forms disagree."""

import torch
from torch import Tensor

from contracts.law._bugs.numeric import Indexer, LatentAttention, Parts, broken, derived
from contracts.spec import Recipe
from contracts.stacks.reference.model.blocks.attention import heads_of


@broken(LatentAttention, "latents", "BLK-03b[one-document]: y differs")
def norms_the_rope_part_of_the_key(latents, self, x_BTD, packing):
    """The latent's norm covers the whole fused projection, including the rope part."""
    whole = self.wkv_a(x_BTD)
    whole = whole * torch.rsqrt(whole.square().mean(-1, keepdim=True) + self.kv_norm.eps)
    c_BTc, k_BTr = torch.split(whole, [self.latent_dim, self.query_dims[1]], dim=-1)
    return c_BTc * self.kv_norm.weight, self.rotate(k_BTr[:, :, None], packing)[:, :, 0]


@broken(LatentAttention, "latents", "BLK-03b[packed]: y differs")
def forgets_the_norm_of_the_latent(latents, self, x_BTD, packing):
    """Keys and values are computed from the latent without its norm, whose weight stays unused in the checkpoint."""
    _, k_BTr = latents(self, x_BTD, packing)
    return self.wkv_a(x_BTD)[..., : self.latent_dim], k_BTr


@broken(LatentAttention, "__init__", "BLK-03b[one-document]: y differs")
def scales_by_the_part_without_rope(init, self, recipe, parts, *, sparse=False):
    """The softmax scale of MLA does not count the rope elements."""
    init(self, recipe, parts, sparse=sparse)
    self.scale = self.query_dims[0] ** -0.5


@broken(LatentAttention, "queries", "BLK-03b[3-heads-of-8]: y differs")
def reads_the_rope_part_first(queries, self, latent_BTq, packing):
    """A query head is split as [rope | no rope], the reverse of its key."""
    q_BTHd = heads_of(self.wq_b(latent_BTq), sum(self.query_dims))
    q_BTHr, q_BTHn = torch.split(q_BTHd, self.query_dims[::-1], dim=-1)
    return q_BTHn, self.rotate(q_BTHr, packing)


@broken(LatentAttention, "unabsorbed", "BLK-03b[one-document]: y differs")
def reads_the_value_first(unabsorbed, self, q_BTHn, q_BTHr, c_BSc, k_BSr, visible_BTS):
    """A head of the up-projection is split as [value | key]."""
    whole_BSHd = heads_of(self.wkv_b(c_BSc), sum(self.kv_dims))
    v_BSHv, k_BSHn = torch.split(whole_BSHd, self.kv_dims[::-1], dim=-1)
    k_BSHr = k_BSr[:, :, None].expand(-1, -1, k_BSHn.shape[2], -1)
    q_BTHd, k_BSHd = torch.cat((q_BTHn, q_BTHr), dim=-1), torch.cat((k_BSHn, k_BSHr), dim=-1)
    return self.attend(q_BTHd, k_BSHd, v_BSHv, visible_BTS)


@broken(LatentAttention, "angles", "BLK-03b[theta-100]: y differs")
def takes_frequencies_of_the_whole_head(angles, self, positions_BT, size):
    """Rope frequencies are computed for the whole head size instead of the rope part's."""
    return angles(self, positions_BT, sum(self.query_dims))[..., : size // 2]


@broken(
    LatentAttention,
    "latents",
    "BLK-03b[packed]: gradient mixer.wkv_a.weight differs",
    "BLK-01h[latent]: the gradient of",
)
def averages_the_shared_keys_gradient(latents, self, x_BTD, packing):
    """The gradient of the shared rope part of a key is averaged over heads instead of summed."""
    c_BTc, k_BTr = latents(self, x_BTD, packing)
    return c_BTc, k_BTr / 4 + (k_BTr - k_BTr / 4).detach()


@broken(LatentAttention, "absorbed", "BLK-06c[k-is-T]: sparse against dense, y differs")
def scales_by_the_absorbed_size(absorbed, self, q_BTHn, q_BTHr, c_BSc, k_BSr, visible_BTS):
    """The absorbed form computes the softmax scale from the size of its absorbed queries, which is the latent's."""
    scale, self.scale = self.scale, (self.latent_dim + self.query_dims[1]) ** -0.5
    out_BTHv = absorbed(self, q_BTHn, q_BTHr, c_BSc, k_BSr, visible_BTS)
    self.scale = scale
    return out_BTHv


@broken(LatentAttention, "absorbed", "BLK-06c[packed-k-is-the-longest]: sparse against dense, y differs")
def absorbs_the_part_without_rope_alone(absorbed, self, q_BTHn, q_BTHr, c_BSc, k_BSr, visible_BTS):
    """The absorbed form attends over the latent and drops the rope part of the keys."""
    return absorbed(self, q_BTHn, torch.zeros_like(q_BTHr), c_BSc, k_BSr, visible_BTS)


@broken(LatentAttention, "absorbed", "BLK-06c[k-above-T]: sparse against dense, y differs")
def absorbs_heads_in_another_order(absorbed, self, q_BTHn, q_BTHr, c_BSc, k_BSr, visible_BTS):
    """The absorbed up-projection has another order of heads than the queries."""
    return absorbed(self, q_BTHn.flip(2), q_BTHr.flip(2), c_BSc, k_BSr, visible_BTS).flip(2)


@broken(
    LatentAttention,
    "absorbed",
    "BLK-06c[k-is-T]: gradient lacks mixer.kv_norm.weight",
    "BLK-06d[one-document]: gradient lacks mixer.kv_norm.weight",
)
def gathers_without_gradient(absorbed, self, q_BTHn, q_BTHr, c_BSc, k_BSr, visible_BTS):
    """Latents are gathered from a cache without gradient."""
    return absorbed(self, q_BTHn, q_BTHr, c_BSc.detach(), k_BSr, visible_BTS)


@derived("BLK-03b[theta-100]: y differs", bugs=("ROP-21",))
class SetsThetaAfterTheTableIsMade(LatentAttention):
    """The theta attribute is set after the frequencies were computed from another theta."""

    def __init__(self, recipe: Recipe, parts: Parts, *, sparse: bool = False) -> None:
        super().__init__(recipe, parts, sparse=sparse)
        self.frequencies = [500_000 ** (-2 * pair / 4) for pair in range(2)]  # made before theta is set

    def angles(self, positions_BT: Tensor, size: int) -> Tensor:
        frequencies = torch.tensor(self.frequencies, dtype=torch.float64, device=positions_BT.device)
        return positions_BT.double()[..., None] * frequencies


@broken(Indexer, "select", "BLK-06c[k-above-T]: sparse against dense, y differs")
def keeps_one_key_back(select, self, scores_BTS, visible_BTS):
    """k is capped at one less than the number of keys, so a sparse layer is never dense."""
    self.top_k = min(self.top_k, scores_BTS.shape[-1] - 1)
    return select(self, scores_BTS, visible_BTS)

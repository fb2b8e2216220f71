"""A: grouped-query attention with QK norm and rope, multi-latent attention, and its sparse form after an indexer.

    B sequences · T tokens, S the same tokens as keys · D hidden · H heads · G KV groups · d elements of a head,
    n of its part without rope, r with rope, v of its value · c KV latent · I index heads, i elements of one

GQA: arXiv 2305.13245; rope: 2104.09864; MLA and its absorbed form: 2405.04434 section 2.1; sparse attention (DSA):
DeepSeek-V3.2, 2512.02556 section 2.1.

Heads are counted off the tensors, so that a rank that holds some of them runs the same lines.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.spec import Dsa, Mla, Recipe, refuse
from contracts.stacks.reference.model.blocks.common import Linear, Output, Packing, PartsInterface, State, local
from contracts.stacks.reference.model.blocks.sequence import WHOLE_SEQUENCE, SequenceView


def heads_of(x_BTF: Tensor, size: int) -> Tensor:
    """(B, T, H, size), as many heads as there are."""
    return x_BTF.reshape(*x_BTF.shape[:-1], -1, size)


class Causal(nn.Module):
    """What every attention shares: who sees whom, rope, and the mean of values weighed by a softmax."""

    row: SequenceView = WHOLE_SEQUENCE

    def __init__(self, recipe: Recipe, size: int, turned: int) -> None:
        """`size` elements of a query decide the scale; `turned` of them carry rope."""
        super().__init__()
        if turned % 2:
            field = "head_dim" if recipe.mla is None else "mla.qk_rope"
            raise refuse(field, turned, "must be even, because rope turns pairs", "choose another size")
        self.theta = recipe.rope_theta
        self.scale = size**-0.5

    def visible(self, packing: Packing) -> Tensor:
        """(B, T, S) bool: a token sees itself and what stands before it in its own document."""
        same_BTS = packing.documents_BT[:, :, None] == packing.whole_row[:, None, :]
        return same_BTS.tril(packing.first)

    def angles(self, positions_BT: Tensor, size: int) -> Tensor:
        """(B, T, size / 2) float64 angles: a float32 one is off by 4e-3 at position 65 536."""
        pairs = torch.arange(size // 2, device=positions_BT.device, dtype=torch.float64)
        return positions_BT.double()[..., None] * self.theta ** (-2.0 * pairs / size)

    def rotate(self, x_BTHd: Tensor, packing: Packing) -> Tensor:
        """Rope on every element of the heads: element j and j + d/2 are a pair."""
        wide = torch.promote_types(x_BTHd.dtype, torch.float32)
        angles_BT1e = self.angles(packing.positions_BT, x_BTHd.shape[-1])[:, :, None]
        cos, sin = angles_BT1e.cos().to(wide), angles_BT1e.sin().to(wide)
        first, second = x_BTHd.to(wide).chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x_BTHd.dtype)

    def probabilities(self, scores_BHTS: Tensor, visible_BTS: Tensor) -> Tensor:
        """Softmax over visible keys, in float32 at least. No row is empty: a token sees itself."""
        scores_BHTS = scores_BHTS.masked_fill(~visible_BTS[:, None], -torch.inf)
        return scores_BHTS.softmax(dim=-1)

    def attend(self, q_BTHd: Tensor, k_BSHd: Tensor, v_BSHv: Tensor, visible_BTS: Tensor | None) -> Tensor:
        """(B, T, H, v): the fused kernel where causality is all there is to see, `None`; else scores written out."""
        q, k, v = (each.transpose(1, 2) for each in (q_BTHd, k_BSHd, v_BSHv))
        if visible_BTS is None:
            out_BHTv = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
            return out_BHTv.transpose(1, 2)
        wide = torch.promote_types(q.dtype, torch.float32)
        scores_BHTS = (q.to(wide) @ k.to(wide).mT) * self.scale
        out_BHTv = self.probabilities(scores_BHTS, visible_BTS) @ v.to(wide)
        return out_BHTv.transpose(1, 2).to(q_BTHd.dtype)


class Attention(Causal):
    """Grouped-query attention. Each KV head serves H / G neighbouring query heads."""

    def __init__(self, recipe: Recipe, parts: PartsInterface) -> None:
        super().__init__(recipe, recipe.head_dim, recipe.head_dim)
        self.head_dim, self.qk_norm = recipe.head_dim, recipe.qk_norm
        bias = "attention" in recipe.biases
        self.wq = Linear(recipe.hidden, recipe.heads * self.head_dim, bias=bias)
        self.wk = Linear(recipe.hidden, recipe.kv_groups * self.head_dim, bias=bias)
        self.wv = Linear(recipe.hidden, recipe.kv_groups * self.head_dim, bias=bias)
        self.wo = Linear(recipe.heads * self.head_dim, recipe.hidden, bias=bias)
        if self.qk_norm:
            self.q_norm = parts.norm(self.head_dim, recipe.norm_eps)
            self.k_norm = parts.norm(self.head_dim, recipe.norm_eps)

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        q_BTHd, k_BTGd, v_BTGd = (self.split(matrix(x_BTD)) for matrix in (self.wq, self.wk, self.wv))
        q_BTHd, k_BTGd = self.place(q_BTHd, k_BTGd, packing)
        k_BSHd, v_BSHd = (self.repeat(self.row.every(each), q_BTHd.shape[2]) for each in (k_BTGd, v_BTGd))
        visible_BTS = None if packing.boundless else self.visible(packing)
        out_BTHd = self.attend(q_BTHd, k_BSHd, v_BSHd, visible_BTS)
        return Output(y_BTD=self.wo(out_BTHd.flatten(2)))

    def split(self, x_BTF: Tensor) -> Tensor:
        return heads_of(x_BTF, self.head_dim)

    def place(self, q_BTHd: Tensor, k_BTGd: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        """QK norm, then rope."""
        if self.qk_norm:
            q_BTHd, k_BTGd = self.q_norm(q_BTHd), self.k_norm(k_BTGd)
        return self.rotate(q_BTHd, packing), self.rotate(k_BTGd, packing)

    def repeat(self, kv_BTGd: Tensor, heads: int) -> Tensor:
        """Query head h reads KV head h // (H / G)."""
        return kv_BTGd.repeat_interleave(heads // kv_BTGd.shape[2], dim=2)


class LatentAttention(Causal):
    """Multi-latent attention: keys and values of every head are read out of one small latent.

    Dense layers write keys and values out; sparse ones attend over the latent itself (absorbed), as DeepSeek-V3.2 does,
    because what is selected is then one vector a token and not one a head.
    """

    def __init__(self, recipe: Recipe, parts: PartsInterface, *, sparse: bool = False) -> None:
        mla = recipe.mla or Mla()
        super().__init__(recipe, mla.qk_head + mla.qk_rope, mla.qk_rope)
        self.head_dim, self.latent_dim = mla.qk_head, mla.kv_lora
        self.query_dims, self.kv_dims = [mla.qk_head, mla.qk_rope], [mla.qk_head, mla.v_head]
        self.wq_a = Linear(recipe.hidden, mla.q_lora)
        self.q_norm = parts.norm(mla.q_lora, recipe.norm_eps)
        self.wq_b = Linear(mla.q_lora, recipe.heads * sum(self.query_dims))
        self.wkv_a = Linear(recipe.hidden, mla.kv_lora + mla.qk_rope)
        self.kv_norm = parts.norm(mla.kv_lora, recipe.norm_eps)
        self.wkv_b = Linear(mla.kv_lora, recipe.heads * sum(self.kv_dims))
        self.wo = Linear(recipe.heads * mla.v_head, recipe.hidden)
        self.indexer: Indexer | None = parts.indexer(recipe, parts) if sparse else None

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        latent_BTq = self.q_norm(self.wq_a(x_BTD))
        q_BTHn, q_BTHr = self.queries(latent_BTq, packing)
        c_BSc, k_BSr = (self.row.every(each) for each in self.latents(x_BTD, packing))
        if self.indexer is None:
            visible_BTS = None if packing.boundless else self.visible(packing)
            out_BTHv = self.unabsorbed(q_BTHn, q_BTHr, c_BSc, k_BSr, visible_BTS)
            return Output(y_BTD=self.wo(out_BTHv.flatten(2)))
        selected_BTS = self.indexer(x_BTD, latent_BTq, packing)
        out_BTHv = self.absorbed(q_BTHn, q_BTHr, c_BSc, k_BSr, selected_BTS)
        return Output(y_BTD=self.wo(out_BTHv.flatten(2)), seen={"selected": selected_BTS})

    def queries(self, latent_BTq: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        """(B, T, H, n) without rope and (B, T, H, r) with it."""
        q_BTHd = heads_of(self.wq_b(latent_BTq), sum(self.query_dims))
        q_BTHn, q_BTHr = torch.split(q_BTHd, self.query_dims, dim=-1)
        return q_BTHn, self.rotate(q_BTHr, packing)

    def latents(self, x_BTD: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        """(B, T, c) normed latent, and (B, T, r) the part of keys with rope: one for all heads, and no norm on it."""
        c_BTc, k_BTr = torch.split(self.wkv_a(x_BTD), [self.latent_dim, self.query_dims[1]], dim=-1)
        return self.kv_norm(c_BTc), self.rotate(k_BTr[:, :, None], packing)[:, :, 0]

    def unabsorbed(
        self, q_BTHn: Tensor, q_BTHr: Tensor, c_BSc: Tensor, k_BSr: Tensor, visible_BTS: Tensor | None
    ) -> Tensor:
        """Keys and values of every head, written out.

        torch's memory-efficient kernel for CUDA looks at the strides of values only, and would read those that begin
        between two multiples of 16 bytes at a misaligned address (pytorch #183484).
        """
        k_BSHn, v_BSHv = torch.split(heads_of(self.wkv_b(c_BSc), sum(self.kv_dims)), self.kv_dims, dim=-1)
        if self.kv_dims[0] * v_BSHv.dtype.itemsize % 16:
            v_BSHv = v_BSHv.contiguous()
        k_BSHr = k_BSr[:, :, None].expand(-1, -1, k_BSHn.shape[2], -1)
        q_BTHd, k_BSHd = torch.cat((q_BTHn, q_BTHr), dim=-1), torch.cat((k_BSHn, k_BSHr), dim=-1)
        return self.attend(q_BTHd, k_BSHd, v_BSHv, visible_BTS)

    def absorbed(
        self, q_BTHn: Tensor, q_BTHr: Tensor, c_BSc: Tensor, k_BSr: Tensor, visible_BTS: Tensor | None
    ) -> Tensor:
        """The same without keys or values: W_k moves over to the queries, W_v after the mean of latents."""
        up_Hdc = local(self.wkv_b.weight).to(c_BSc.dtype).reshape(-1, sum(self.kv_dims), c_BSc.shape[-1])
        key_Hnc, value_Hvc = torch.split(up_Hdc, self.kv_dims, dim=1)
        q_BTHc = torch.einsum("bthn,hnc->bthc", q_BTHn, key_Hnc)
        heads = q_BTHc.shape[2]
        q_BTHd = torch.cat((q_BTHc, q_BTHr), dim=-1)
        k_BSHd = torch.cat((c_BSc, k_BSr), dim=-1)[:, :, None].expand(-1, -1, heads, -1)
        c_BSHc = c_BSc[:, :, None].expand(-1, -1, heads, -1)
        out_BTHc = self.attend(q_BTHd, k_BSHd, c_BSHc, visible_BTS)
        return torch.einsum("bthc,hvc->bthv", out_BTHc, value_Hvc)


class Indexer(Causal):
    """The lightning indexer: a cheap score of every key for every query, and the keys with the k highest.

    It is given no gradient by the block's output, because what it gives is a choice. Nothing else trains it here, so it
    is frozen: weight decay by itself would take it to zero. Scores are float32 at least.
    """

    def __init__(self, recipe: Recipe, parts: PartsInterface) -> None:
        mla, dsa = recipe.mla or Mla(), recipe.dsa or Dsa(a_ranks=())
        super().__init__(recipe, dsa.index_head_dim, mla.qk_rope)
        plain = dsa.index_head_dim - mla.qk_rope
        if plain < 0:
            raise refuse("dsa.index_head_dim", dsa.index_head_dim, f"must hold mla.qk_rope ({mla.qk_rope})", "raise it")
        self.dims, self.top_k = [plain, mla.qk_rope], dsa.top_k
        self.wq = Linear(mla.q_lora, dsa.index_heads * dsa.index_head_dim)
        self.wk = Linear(recipe.hidden, dsa.index_head_dim)
        self.k_norm = nn.LayerNorm(dsa.index_head_dim, eps=recipe.norm_eps)
        self.weights = Linear(recipe.hidden, dsa.index_heads)
        self.requires_grad_(False)

    @torch.no_grad()
    def forward(self, x_BTD: Tensor, latent_BTq: Tensor, packing: Packing) -> Tensor:
        """(B, T, S) bool: the keys that each query attends to."""
        q_BTIi = self.turn(heads_of(self.wq(latent_BTq), sum(self.dims)), packing)
        k_BSi = self.row.every(self.turn(self.key(x_BTD)[:, :, None], packing)[:, :, 0])
        return self.select(self.score(q_BTIi, k_BSi, self.weights(x_BTD)), self.visible(packing))

    def key(self, x_BTD: Tensor) -> Tensor:
        weight, bias = local(self.k_norm.weight), local(self.k_norm.bias)
        normed_BTi = F.layer_norm(self.wk(x_BTD).to(weight.dtype), weight.shape, weight, bias, self.k_norm.eps)
        return normed_BTi.to(x_BTD.dtype)

    def turn(self, x_BTIi: Tensor, packing: Packing) -> Tensor:
        """Rope on the last qk_rope elements of each head."""
        plain, turned = torch.split(x_BTIi, self.dims, dim=-1)
        return torch.cat((plain, self.rotate(turned, packing)), dim=-1)

    def score(self, q_BTIi: Tensor, k_BSi: Tensor, weights_BTI: Tensor) -> Tensor:
        """(B, T, S): sum over index heads of w · relu(q · k). A positive factor would change no choice."""
        wide = torch.promote_types(q_BTIi.dtype, torch.float32)
        alike_BTIS = torch.einsum("btid,bsd->btis", q_BTIi.to(wide), k_BSi.to(wide)).relu()
        return torch.einsum("bti,btis->bts", weights_BTI.to(wide), alike_BTIS)

    def select(self, scores_BTS: Tensor, visible_BTS: Tensor) -> Tensor:
        """The mask comes first: k keys chosen among all and masked afterwards are fewer than k."""
        scores_BTS = scores_BTS.masked_fill(~visible_BTS, -torch.inf)
        chosen_BTk = scores_BTS.topk(min(self.top_k, scores_BTS.shape[-1]), dim=-1).indices
        return torch.zeros_like(visible_BTS).scatter(-1, chosen_BTk, True) & visible_BTS

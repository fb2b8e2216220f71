"""Maps canonical names (spec/blocks.py) to torchtitan's and back: one layer there is two blocks here.

Both directions work on full tensors by name: weights, gradients, moments. Two layouts differ. `ComplexRoPE` rotates
elements 2i and 2i + 1 together, the canonical rope i and i + d/2. The fused projection has the shape (groups, heads of
a group + key + value, head_dim, hidden).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from contracts.spec.recipe import Recipe
from contracts.spec.training import Role

OUTSIDE = {"embedding.weight": "tok_embeddings.weight", "head.weight": "lm_head.weight", "norm.weight": "norm.weight"}
LATENT = ("wq_a", "q_norm", "wq_b", "wkv_a", "kv_norm", "wkv_b", "wo")
EXPERTS = {
    "mixer.router.weight": "moe.router.gate.weight",
    "mixer.experts.w1": "moe.routed_experts.inner_experts.w1_EFD",
    "mixer.experts.w2": "moe.routed_experts.inner_experts.w2_EDF",
    "mixer.experts.w3": "moe.routed_experts.inner_experts.w3_EFD",
    "mixer.shared.w1.weight": "moe.shared_experts.w1.weight",
    "mixer.shared.w2.weight": "moe.shared_experts.w2.weight",
    "mixer.shared.w3.weight": "moe.shared_experts.w3.weight",
    "mixer.router.bias": "moe.expert_bias_E",
}
MLP = {f"mixer.{name}.weight": f"feed_forward.{name}.weight" for name in ("w1", "w2", "w3")}
FUSED = "qkv_linear.wqkv.weight"


def layers(recipe: Recipe) -> int:
    return recipe.depth // 2


def table(recipe: Recipe) -> dict[str, str]:
    """Canonical name → torchtitan's name, for every tensor with a direct counterpart."""
    found = dict(OUTSIDE)
    attention = LATENT if recipe.mla else (("q_norm", "k_norm", "wo") if recipe.qk_norm else ("wo",))
    for number in range(layers(recipe)):
        a, e, there = f"layers.{2 * number}.", f"layers.{2 * number + 1}.", f"layers.{number}."
        found[f"{a}norm.weight"], found[f"{e}norm.weight"] = f"{there}attention_norm.weight", f"{there}ffn_norm.weight"
        found |= {f"{a}mixer.{name}.weight": f"{there}attention.{name}.weight" for name in attention}
        found |= {f"{e}{name}": f"{there}{other}" for name, other in (EXPERTS if recipe.moe else MLP).items()}
    return found


def to_titan(tensors: Mapping[str, Tensor], recipe: Recipe) -> dict[str, Tensor]:
    """Full tensors under torchtitan's names, in its layouts. A canonical name without a counterpart is kept."""
    names, found = table(recipe), {}
    for name, each in tensors.items():
        if name.endswith((".wq.weight", ".wk.weight", ".wv.weight")):
            continue
        found[names.get(name, name)] = _turned(each, name, recipe, pairs=True)
    for number in range(layers(recipe)):
        a = f"layers.{2 * number}.mixer."
        if f"{a}wq.weight" in tensors:
            parts = (tensors[f"{a}{w}.weight"] for w in ("wq", "wk", "wv"))
            found[f"layers.{number}.attention.{FUSED}"] = _fused(*parts, recipe=recipe)
    return found


def to_canonical(tensors: Mapping[str, Tensor], recipe: Recipe) -> dict[str, Tensor]:
    """The inverse of `to_titan`. Tensors without a canonical name are left out."""
    names = {other: name for name, other in table(recipe).items()}
    found = {
        names[name]: _turned(each, names[name], recipe, pairs=False) for name, each in tensors.items() if name in names
    }
    for name, each in tensors.items():
        if name.endswith(FUSED):
            a = f"layers.{2 * int(name.split('.')[1])}.mixer."
            found |= {f"{a}{w}.weight": part for w, part in zip(("wq", "wk", "wv"), _split(each, recipe), strict=True)}
    return found


def _fused(wq_HdD: Tensor, wk_GdD: Tensor, wv_GdD: Tensor, *, recipe: Recipe) -> Tensor:
    groups, width, hidden = recipe.kv_groups, recipe.head_dim, recipe.hidden
    shaped = [each.reshape(groups, -1, width, hidden) for each in (wq_HdD, wk_GdD, wv_GdD)]
    return torch.cat(shaped, dim=1).reshape(-1, hidden)


def _split(wqkv: Tensor, recipe: Recipe) -> tuple[Tensor, ...]:
    groups, width, hidden = recipe.kv_groups, recipe.head_dim, recipe.hidden
    each = recipe.heads // groups
    shaped = wqkv.reshape(groups, each + 2, width, hidden)
    parts = torch.split(shaped, [each, 1, 1], dim=1)
    return tuple(part.reshape(-1, hidden).contiguous() for part in parts)


def _turned(value: Tensor, name: str, recipe: Recipe, *, pairs: bool) -> Tensor:
    """Latent projections with the rows for rope in the order of the other side."""
    mla = recipe.mla
    if mla is None or not name.endswith(("wq_b.weight", "wkv_a.weight")):
        return value
    order = torch.arange(mla.qk_rope).view(2, -1).T.reshape(-1)  # 0, d/2, 1, d/2 + 1, …
    order = order if pairs else order.argsort()
    if name.endswith("wq_b.weight"):
        heads = value.reshape(recipe.heads, mla.qk_head + mla.qk_rope, -1)
        plain, turned = torch.split(heads, [mla.qk_head, mla.qk_rope], dim=1)
        return torch.cat([plain, turned[:, order]], dim=1).reshape(value.shape)
    plain, turned = torch.split(value, [mla.kv_lora, mla.qk_rope])
    return torch.cat([plain, turned[order]])


def role_of(name: str) -> Role:
    """The role of the parameter with a canonical name."""
    if name in ("embedding.weight", "head.weight"):
        return "embedding" if name.startswith("embedding") else "head"
    if name.endswith("norm.weight"):
        return "norm"
    if ".router." in name:
        return "router"
    return "expert" if ".experts." in name else "matrix"

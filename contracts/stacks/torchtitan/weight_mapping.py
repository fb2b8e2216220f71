"""Canonical names (spec/blocks.py) and torchtitan's: one layer there is two blocks here.

Two layouts differ. `ComplexRoPE` rotates elements 2i and 2i + 1 together, the canonical rope i and i + d/2. The fused
projection has the shape (groups, heads of a group + key + value, head_dim, hidden); under Muon it is three matrices.
"""

from collections.abc import Iterator

from contracts.spec import Recipe
from contracts.spec import pattern as patterns
from contracts.stacks.kit import links as kit
from contracts.stacks.kit.links import Link, of_heads, ordered, paired
from contracts.stacks.kit.roles import layer_of, role_of
from contracts.stacks.torchtitan.layer_symbols import heads_in_one, named

ROUTING = {
    "router.weight": "moe.router.gate.weight",
    **{f"shared.{name}.weight": f"moe.shared_experts.{name}.weight" for name in ("w1", "w2", "w3")},
    "router.bias": "moe.expert_bias_E",
    "router.logit_bias": "moe.router.gate.bias",
}
MLP = {f"{name}.{part}": f"feed_forward.{name}.{part}" for name in ("w1", "w2", "w3") for part in ("weight", "bias")}


def experts() -> dict[str, str]:
    """What a layer with experts has, by canonical names."""
    own = {f"experts.{name[:2]}": f"moe.routed_experts.inner_experts.{name}" for name in ("w1_EFD", "w2_EDF", "w3_EFD")}
    return {ours: named(theirs) for ours, theirs in {**ROUTING, **own}.items()}


def same(theirs: str, ours: str) -> Link:
    """One tensor, which 0.3.0 names so."""
    return kit.same(named(theirs), ours)


def links(recipe: Recipe) -> list[Link]:
    """Every tensor of a model."""
    found = [same("tok_embeddings.weight", "embedding.weight"), same("norm.weight", "norm.weight")]
    if recipe.untied_embeddings:
        found.append(same("lm_head.weight", "head.weight"))
    for number, letter in enumerate(patterns.parse(recipe.pattern, recipe.depth).letters):
        found += [each.within(f"layers.{number // 2}.", f"layers.{number}.") for each in block(letter, recipe)]
    return found


def orthogonal(recipe: Recipe) -> list[str]:
    """What Muon moves, by torchtitan's names: the matrices and the experts of the layers."""
    return [
        link.theirs
        for link in links(recipe)
        if all(layer_of(name) is not None and role_of(name) in ("matrix", "expert") for name in link.ours)
    ]


def block(letter: str, recipe: Recipe) -> Iterator[Link]:
    """The tensors of one block, by their names inside of a layer."""
    yield same("attention_norm.weight" if letter == "A" else "ffn_norm.weight", "norm.weight")
    if letter == "E":
        for ours, theirs in (experts() if recipe.moe else MLP).items():
            yield same(theirs, f"mixer.{ours}")
    else:
        for each in _latent(recipe) if recipe.mla else _grouped(recipe):
            yield each.within("attention.", "mixer.")


def _grouped(recipe: Recipe) -> Iterator[Link]:
    width = recipe.head_dim
    sizes = (recipe.heads // recipe.kv_groups * width, width, width)
    for part in ("weight", "bias") if "attention" in recipe.biases else ("weight",):
        three = tuple(f"{name}.{part}" for name in ("wq", "wk", "wv"))
        if recipe.optim.rule == "muon" or not heads_in_one():
            yield from (same(f"qkv_linear.{name}", name) for name in three)
        else:
            yield kit.grouped(f"qkv_linear.wqkv.{part}", three, recipe.kv_groups, sizes)
    if "attention" in recipe.biases:
        yield same("wo.bias", "wo.bias")
    for name in ("q_norm", "k_norm", "wo") if recipe.qk_norm else ("wo",):
        yield same(f"{name}.weight", f"{name}.weight")


def _latent(recipe: Recipe) -> Iterator[Link]:
    mla = recipe.mla
    assert mla is not None
    for name in ("wq_a", "q_norm", "kv_norm", "wkv_b", "wo"):
        yield same(f"{name}.weight", f"{name}.weight")
    yield ordered("wq_b.weight", "wq_b.weight", of_heads(paired(mla.qk_rope, mla.qk_head), recipe.heads))
    yield ordered("wkv_a.weight", "wkv_a.weight", paired(mla.qk_rope, mla.kv_lora))

"""A recipe as the arguments of a model of torchtitan 0.2.2, and the names of its tensors."""

from typing import Any

from contracts.spec import Recipe, decline
from contracts.spec import pattern as patterns
from contracts.stacks.kit.links import Link, of_heads, ordered, paired, same

GROUPED = ("wq", "wk", "wv", "wo")
LATENT = ("wq_a", "q_norm", "kv_norm", "wkv_b", "wo")
MLP = ("w1", "w2", "w3")


def arguments(recipe: Recipe) -> Any:
    """`Qwen3ModelArgs`, or `DeepSeekV3ModelArgs` for latent attention; new each time, because its trainer changes them.

    Raises:
        NotOffered: for what it cannot say.
    """
    from torchtitan.models.deepseek_v3 import DeepSeekV3ModelArgs
    from torchtitan.models.moe import MoEArgs
    from torchtitan.models.qwen3 import Qwen3ModelArgs

    moe, mla = recipe.moe, recipe.mla
    shared = moe.shared_hidden if moe else 0
    decline("torchtitan 0.2.2", {"stack": {
        "a shared expert is as wide as a whole number of experts": moe and shared % moe.expert_hidden,
        "its DeepSeek-V3 ties no weights": mla and not recipe.untied_embeddings,
    }})  # fmt: skip
    routed = MoEArgs(
        num_experts=moe.experts, num_shared_experts=shared // moe.expert_hidden, score_func=moe.score, top_k=moe.top_k,
        route_norm=moe.top_k > 1, route_scale=moe.route_scale, score_before_experts=False,
        num_expert_groups=moe.groups and moe.groups[0], num_limited_groups=moe.groups and moe.groups[1],
        use_grouped_mm=False, load_balance_coeff=moe.bias_rate if moe.selection_bias else None,
    ) if moe else MoEArgs()  # fmt: skip
    common: dict[str, Any] = {
        "dim": recipe.hidden, "n_layers": recipe.depth // 2, "n_heads": recipe.heads, "vocab_size": recipe.vocab,
        "norm_eps": recipe.norm_eps, "rope_theta": float(recipe.rope_theta), "max_seq_len": recipe.seq_length,
        "moe_inter_dim": moe.expert_hidden if moe else 1, "moe_args": routed,
    }  # fmt: skip
    if mla is None:
        return Qwen3ModelArgs(
            n_kv_heads=recipe.kv_groups, head_dim=recipe.head_dim, hidden_dim=recipe.ffn_hidden, qk_norm=recipe.qk_norm,
            enable_weight_tying=not recipe.untied_embeddings, moe_enabled=moe is not None, **common,
        )  # fmt: skip
    return DeepSeekV3ModelArgs(
        inter_dim=recipe.ffn_hidden, n_dense_layers=0 if moe else recipe.depth // 2, q_lora_rank=mla.q_lora,
        kv_lora_rank=mla.kv_lora, qk_nope_head_dim=mla.qk_head, qk_rope_head_dim=mla.qk_rope, v_head_dim=mla.v_head,
        original_seq_len=recipe.seq_length, rope_factor=1.0, **common,
    )  # fmt: skip


def links(recipe: Recipe) -> list[Link]:
    """Every tensor of a model."""
    found = [same("tok_embeddings.weight", "embedding.weight"), same("norm.weight", "norm.weight")]
    if recipe.untied_embeddings:
        found.append(same("output.weight", "head.weight"))
    for number, letter in enumerate(patterns.parse(recipe.pattern, recipe.depth).letters):
        block = _attention(recipe) if letter == "A" else _experts(recipe)
        found += [each.within(f"layers.{number // 2}.", f"layers.{number}.") for each in block]
    return found


def _attention(recipe: Recipe) -> list[Link]:
    mla = recipe.mla
    if mla is None:
        norms = ("q_norm", "k_norm") if recipe.qk_norm else ()
        inside = [same(f"{name}.weight", f"{name}.weight") for name in (*GROUPED, *norms)]
    else:
        inside = [same(f"{name}.weight", f"{name}.weight") for name in LATENT]
        inside.append(ordered("wq_b.weight", "wq_b.weight", of_heads(paired(mla.qk_rope, mla.qk_head), recipe.heads)))
        inside.append(ordered("wkv_a.weight", "wkv_a.weight", paired(mla.qk_rope, mla.kv_lora)))
    return [same("attention_norm.weight", "norm.weight"), *(each.within("attention.", "mixer.") for each in inside)]


def _experts(recipe: Recipe) -> list[Link]:
    found = [same("ffn_norm.weight", "norm.weight")]
    if recipe.moe is None:
        return found + [same(f"feed_forward.{name}.weight", f"mixer.{name}.weight") for name in MLP]
    found += [same("moe.router.gate.weight", "mixer.router.weight"), same("moe.expert_bias", "mixer.router.bias")]
    found += [same(f"moe.experts.{name}", f"mixer.experts.{name}") for name in MLP]
    return found + [same(f"moe.shared_experts.{name}.weight", f"mixer.shared.{name}.weight") for name in MLP]

"""A recipe as a torchtitan configuration: DeepSeek-V3 for latent attention, otherwise Qwen3-MoE."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from contracts.spec import Recipe
from contracts.stacks.torchtitan import layer_symbols, shims, symbols
from contracts.stacks.torchtitan.template import template_of

DRAWN = {"weight": partial(nn.init.trunc_normal_, std=0.02), "bias": nn.init.zeros_}
ONES = {"weight": nn.init.ones_}


def config_of(recipe: Recipe, rates: Mapping[str, float] | None = None) -> Any:
    """The configuration of the model; a new one each time, because torchtitan modifies it. `rates` are what a layer's
    rate of its selection bias is multiplied by."""
    if layer_symbols.counts_by_histc():
        shims.whole_numbers_are_counted()
    if not layer_symbols.layers_apart():
        return template_of(recipe, rates or {})
    from torchtitan.models.common import Embedding, Linear, RMSNorm
    from torchtitan.models.deepseek_v3 import DeepSeekV3Model
    from torchtitan.models.qwen3 import Qwen3Model

    model = Qwen3Model if recipe.mla is None else DeepSeekV3Model
    own, shared = layer_symbols.rope(
        dim=recipe.mla.qk_rope if recipe.mla else recipe.head_dim, length=recipe.seq_length,
        theta=float(recipe.rope_theta), pairs=recipe.mla is not None,
    )  # fmt: skip
    layers = _grouped(recipe, own) if recipe.mla is None else _latent(recipe, own)
    for number, layer in enumerate(layers):
        layer.attention.inner_attention = symbols.attention().Config()
        _add_biases(recipe, attention=layer.attention)
        if hasattr(layer.attention, "mask_type"):  # up to June 2026; of rows with places of their own it is another
            layer.attention.mask_type = "causal"
        if recipe.moe is None:
            layer.moe, layer.feed_forward = None, _mlp(recipe)
            _add_biases(recipe, mlp=layer.feed_forward)
            continue
        _add_biases(recipe, router=layer.moe.router)
        share = (rates or {}).get(f"layers.{2 * number + 1}.mixer.router.bias", 1.0)
        layer.moe.load_balance_coeff = share * recipe.moe.bias_rate or None if recipe.moe.selection_bias else None
        if not recipe.moe.shared_hidden:
            layer.moe.shared_experts = None
    config = model.Config(
        vocab_size=recipe.vocab,
        dim=recipe.hidden,
        tok_embeddings=Embedding.Config(num_embeddings=recipe.vocab, embedding_dim=recipe.hidden, param_init=DRAWN),
        lm_head=Linear.Config(in_features=recipe.hidden, out_features=recipe.vocab, param_init=DRAWN),
        norm=RMSNorm.Config(normalized_shape=recipe.hidden, param_init=ONES),
        layers=layers,
        **layer_symbols.tied(model, not recipe.untied_embeddings),
        **shared,
    )
    for _, norm, _, _ in config.traverse(RMSNorm.Config):
        norm.eps = recipe.norm_eps
    return config


def _add_biases(recipe: Recipe, **parts: Any) -> None:
    """Turn on the biases of those of a layer's parts, by their places in `Recipe.biases`, that have some."""
    from torchtitan.models.common import Linear

    for place, part in parts.items():
        for _, linear, _, _ in part.traverse(Linear.Config) if place in recipe.biases else ():
            linear.bias = True


def _mlp(recipe: Recipe) -> Any:
    from torchtitan.models.common.config_utils import make_ffn_config

    return make_ffn_config(dim=recipe.hidden, hidden_dim=recipe.ffn_hidden, w1_param_init=DRAWN, w2w3_param_init=DRAWN)


def _moe(recipe: Recipe) -> Any:
    from torchtitan.models.common.config_utils import (
        make_ffn_config,
        make_moe_config,
        make_router_config,
    )

    moe = recipe.moe
    assert moe is not None
    return make_moe_config(
        num_experts=moe.experts,
        router=make_router_config(
            dim=recipe.hidden, num_experts=moe.experts, gate_param_init=DRAWN, top_k=moe.top_k, score_func=moe.score,
            route_norm=moe.top_k > 1,  # for k = 1 the sigmoid is the gate, or the share of all experts
            route_scale=moe.route_scale,
            num_expert_groups=moe.groups and moe.groups[0], num_limited_groups=moe.groups and moe.groups[1],
        ),
        **layer_symbols.routed_experts(
            dim=recipe.hidden, hidden_dim=moe.expert_hidden, num_experts=moe.experts, top_k=moe.top_k,
            param_init={layer_symbols.named(name): DRAWN["weight"] for name in ("w1_EFD", "w2_EDF", "w3_EFD")},
            comm_backend="standard",
        ),
        shared_experts=make_ffn_config(
            dim=recipe.hidden, hidden_dim=moe.shared_hidden or 1, w1_param_init=DRAWN, w2w3_param_init=DRAWN
        ),
    )  # fmt: skip


def _grouped(recipe: Recipe, rope: dict[str, Any]) -> list[Any]:
    from torchtitan.models.common import RMSNorm
    from torchtitan.models.common.attention import FlexAttention
    from torchtitan.models.common.config_utils import make_gqa_config
    from torchtitan.models.qwen3.model import Qwen3TransformerBlock

    norm = partial(RMSNorm.Config, param_init=ONES)
    return [
        Qwen3TransformerBlock.Config(
            attention_norm=norm(normalized_shape=recipe.hidden),
            ffn_norm=norm(normalized_shape=recipe.hidden),
            attention=make_gqa_config(
                dim=recipe.hidden, n_heads=recipe.heads, n_kv_heads=recipe.kv_groups, head_dim=recipe.head_dim,
                wqkv_param_init=DRAWN, wo_param_init=DRAWN, inner_attention=FlexAttention.Config(),
                fuse_qkv=recipe.optim.rule != "muon",  # which moves each matrix by itself
                qk_norm=norm(normalized_shape=recipe.head_dim) if recipe.qk_norm else None, **rope,
            ),
            moe=_moe(recipe) if recipe.moe else None,
        )
        for _ in range(recipe.depth // 2)
    ]  # fmt: skip


def _latent(recipe: Recipe, rope: dict[str, Any]) -> list[Any]:
    from torchtitan.models.common import RMSNorm
    from torchtitan.models.deepseek_v3.model import DeepSeekV3TransformerBlock

    mla = recipe.mla
    assert mla is not None
    norm = partial(RMSNorm.Config, normalized_shape=recipe.hidden, param_init=ONES)
    return [
        DeepSeekV3TransformerBlock.Config(
            attention_norm=norm(),
            ffn_norm=norm(),
            attention=layer_symbols.latent_attention(
                layer_id=number, dim=recipe.hidden, n_heads=recipe.heads, q_lora_rank=mla.q_lora,
                kv_lora_rank=mla.kv_lora, qk_nope_head_dim=mla.qk_head, qk_rope_head_dim=mla.qk_rope,
                v_head_dim=mla.v_head, attn_backend="flex", **rope,
                inits={"linear_init": DRAWN, "norm_init": ONES, "depth_init": lambda _: DRAWN},
            ),
            moe=_moe(recipe) if recipe.moe else None,
        )
        for number in range(recipe.depth // 2)
    ]  # fmt: skip

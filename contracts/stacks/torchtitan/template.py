"""A recipe as a configuration of up to April 2026, in which one template stands for all layers.

Each value goes where a field has its name: in nested configurations, which had other depths each month, or up to
February 2026 in a flat class of arguments.
"""

import copy
import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from contracts.spec import Recipe, decline
from contracts.stacks.kit.versions import Misfit
from contracts.stacks.torchtitan.layer_symbols import low_ranks, nested

Values = Mapping[tuple[str, ...], Any]
"""What the fields of any of these names get; a longer name, such as `rope.dim`, precedes its end."""
BIASES = {
    "attention": ("attention.bias", "attention.linear_bias"), "mlp": ("feed_forward.bias", "feed_forward.linear_bias"),
    "router": ("gate_bias", "router.gate.bias"),
}  # fmt: skip
"""Place of a bias → the option that gives its layers one."""
NO_YARN = 1 << 30
"""A length beyond which rope's angles would be scaled."""


class Share(int):
    """How many experts a shared one is as wide as: what multiplies the width of one by it gets the shared one's."""

    width: int

    def __rmul__(self, _: int) -> int:
        return self.width


def template_of(recipe: Recipe, rates: Mapping[str, float]) -> Any:
    """`Qwen3Model.Config` or `DeepSeekV3Model.Config`, up to February their arguments; a new one each time, because the
    trainer changes it.

    Raises:
        NotOffered: for what it cannot say.
    """
    moe, mla = recipe.moe, recipe.mla
    decline("torchtitan", {"stack": {
        "up to June 2026 its DeepSeek-V3 ties no weights": mla and not recipe.untied_embeddings,
        "its arguments of experts hold for all layers": any(name.endswith("router.bias") for name in rates),
        "up to February 2026 its linear layers have no biases": recipe.biases and not nested(),
    }})  # fmt: skip
    values: dict[tuple[str, ...], Any] = {
        ("dim",): recipe.hidden, ("n_layers",): recipe.depth // 2, ("n_heads",): recipe.heads,
        ("vocab_size",): recipe.vocab, ("norm_eps", "eps"): recipe.norm_eps,
        ("rope.theta", "rope_theta"): float(recipe.rope_theta), ("max_seq_len",): recipe.seq_length,
        **(_experts(recipe) if moe else {("feed_forward.hidden_dim", "inter_dim", "hidden_dim"): recipe.ffn_hidden}),
        **(_grouped(recipe) if mla is None else _latent(recipe)),
        **{names: True for place, names in BIASES.items() if place in recipe.biases},
    }  # fmt: skip
    return filled(_plain(recipe), values)


def built(config: Any) -> Any:
    """The model of a configuration, or of arguments."""
    if hasattr(config, "build"):
        return config.build()
    job = importlib.import_module("torchtitan.config").JobConfig()
    job.training.seq_len = config.max_seq_len
    config.update_from_config(job)
    package = importlib.import_module(type(config).__module__.rsplit(".", 2)[0])
    return getattr(package, type(config).__name__.removesuffix("Args"))(config)


def filled(config: Any, values: Values) -> Any:
    """A configuration with these values in its fields, however deep they lie.

    Raises:
        Misfit: for a value that has no field.
    """
    names = {name: each for each in values for name in each}
    placed: set[tuple[str, ...]] = set()

    def visit(part: Any, path: str) -> None:
        for field in dataclasses.fields(part):
            here = f"{path}.{field.name}"
            name = max((name for name in names if here.endswith(f".{name}")), key=len, default=None)
            if name is not None:
                placed.add(names[name])
                setattr(part, field.name, values[names[name]])
            elif field.init and dataclasses.is_dataclass(getattr(part, field.name)):
                visit(getattr(part, field.name), here)

    visit(config, "")
    if lost := [" or ".join(each) for each in values if each not in placed]:
        raise Misfit(f"{type(config).__qualname__} has no field {', '.join(lost)}")
    return config


def _plain(recipe: Recipe) -> Any:
    """Its configuration of a small model, or arguments as they are by default."""
    name, table = ("qwen3", "qwen3") if recipe.mla is None else ("deepseek_v3", "deepseekv3")
    module = importlib.import_module(f"torchtitan.models.{name}")
    if not nested():
        return (module.Qwen3ModelArgs if recipe.mla is None else module.DeepSeekV3ModelArgs)()
    flavor = "debugmodel_moe" if recipe.mla is None and recipe.moe else "debugmodel"
    return copy.deepcopy(getattr(module, f"{table}_configs")[flavor])


def _experts(recipe: Recipe) -> Values:
    moe = recipe.moe
    assert moe is not None
    share = Share(-(-moe.shared_hidden // moe.expert_hidden))
    share.width = moe.shared_hidden
    return {
        ("num_experts",): moe.experts, ("num_shared_experts",): share,
        ("score_func",): moe.score, ("top_k",): moe.top_k, ("route_norm",): moe.top_k > 1,
        ("route_scale",): moe.route_scale, ("score_before_experts",): False, ("use_grouped_mm",): False,
        ("num_expert_groups",): moe.groups and moe.groups[0], ("num_limited_groups",): moe.groups and moe.groups[1],
        ("load_balance_coeff",): moe.bias_rate if moe.selection_bias else None,
        ("moe.hidden_dim", "moe_inter_dim"): moe.expert_hidden,
    }  # fmt: skip


def _grouped(recipe: Recipe) -> Values:
    bare: Values = {} if recipe.qk_norm else {("qk_norm", "q_norm", "k_norm"): None}
    return {
        ("n_kv_heads",): recipe.kv_groups, ("head_dim", "rope.dim"): recipe.head_dim,
        ("moe_enabled",): recipe.moe is not None, ("enable_weight_tying",): not recipe.untied_embeddings, **bare,
    }  # fmt: skip


def _latent(recipe: Recipe) -> Values:
    mla = recipe.mla
    assert mla is not None
    return {
        ("q_lora_rank",): mla.q_lora, ("kv_lora_rank",): mla.kv_lora, ("qk_nope_head_dim",): mla.qk_head,
        ("qk_rope_head_dim", "rope.dim"): mla.qk_rope, ("v_head_dim",): mla.v_head, ("rope_factor",): 1.0,
        ("original_seq_len", "rope_original_seq_len"): NO_YARN,
        ("n_dense_layers",): 0 if recipe.moe else recipe.depth // 2, **low_ranks(),
    }  # fmt: skip

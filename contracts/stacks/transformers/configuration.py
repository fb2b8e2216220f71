"""A recipe as a configuration of one of transformers' models, and the recipes that none of them can express."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from contracts.spec import Execution, Lack, Mamba, Moe, ParallelSsm, Recipe, errors, needs
from contracts.spec import pattern as patterns
from contracts.stacks.kit import declining
from contracts.stacks.kit.versions import Misfit, fitted
from contracts.stacks.transformers import releases
from contracts.stacks.transformers.abilities import OF_GPT_OSS, OLDER, VERSIONS, of_version

CONV_WIDTH = 4
if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One of transformers' models.

    Args:
        name: of its classes: `Llama` for `LlamaForCausalLM`, `LlamaDecoderLayer`.
        module: its folder under `transformers.models`.
        paired: whether one of its layers is two of ours, a mixer and then an MLP or experts.
        settings: what its configuration has besides `_common`.
    """

    name: str
    module: str
    settings: Callable[[Recipe], dict[str, Any]]
    paired: bool = True

    def config(self, recipe: Recipe) -> Any:
        from transformers import AutoConfig

        layers = recipe.depth // 2 if self.paired else recipe.depth
        depth = {"num_hidden_layers": layers} if self.paired else {}
        with fitted(f"a configuration of {self.name}"):
            return AutoConfig.for_model(
                self.module, **_common(recipe), **depth, **self.settings(recipe), attn_implementation="sdpa"
            )

    def has(self, name: str) -> bool:
        """Whether the installed version has a class of it, by the end of its name."""
        return releases.found(self.modeling, f"{self.name}{name}") is not None

    @property
    def exists(self) -> bool:
        return self.has("ForCausalLM")

    @property
    def modeling(self) -> str:
        return f"models.{self.module}.modeling_{self.module}"

    def part(self, name: str) -> Any:
        """One of its classes, by the end of its name.

        Raises:
            Misfit: where the installed version has none.
        """
        if not self.has(name):
            raise Misfit(f"no class {self.name}{name}")
        return releases.found(self.modeling, f"{self.name}{name}")


def _common(recipe: Recipe) -> dict[str, Any]:
    """What every configuration has. No cache: a run of training never reads one."""
    return {
        "vocab_size": recipe.vocab,
        "hidden_size": recipe.hidden,
        "num_attention_heads": recipe.heads,
        "max_position_embeddings": recipe.seq_length,
        "tie_word_embeddings": not recipe.untied_embeddings,
        "use_cache": False,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _dense(recipe: Recipe) -> dict[str, Any]:
    return {
        "intermediate_size": recipe.ffn_hidden,
        "num_key_value_heads": recipe.kv_groups,
        "head_dim": recipe.head_dim,
        "rms_norm_eps": recipe.norm_eps,
        "attention_bias": "attention" in recipe.biases,
        "mlp_bias": "mlp" in recipe.biases,
        **_rope(recipe),
    }


def _rope(recipe: Recipe, **more: float) -> dict[str, Any]:
    theta = {"rope_theta": float(recipe.rope_theta), **more}
    return {"rope_parameters": {"rope_type": "default", **theta}} if releases.has_rope_parameters() else theta


def _routed(recipe: Recipe) -> dict[str, Any]:
    moe = recipe.moe or Moe()
    return _dense(recipe) | {
        "num_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.expert_hidden,
        "norm_topk_prob": moe.top_k > 1,  # for k = 1 the gate is the share of all experts
    }


def _plain(recipe: Recipe) -> dict[str, Any]:
    moe = recipe.moe or Moe()
    return _dense(recipe) | {
        "num_local_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "intermediate_size": moe.expert_hidden,
    }


def _latent(recipe: Recipe) -> dict[str, Any]:
    mla, moe = recipe.mla, recipe.moe or Moe(score="sigmoid")
    groups, chosen = moe.groups or (1, 1)
    found = _dense(recipe) | {
        "num_key_value_heads": recipe.heads,
        "n_routed_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.expert_hidden,
        "n_shared_experts": moe.shared_hidden // moe.expert_hidden,
        "routed_scaling_factor": moe.route_scale,
        "norm_topk_prob": moe.top_k > 1,  # for k = 1 the sigmoid is the gate
        "n_group": groups,
        "topk_group": chosen,
        "first_k_dense_replace": 0 if recipe.moe else recipe.depth,
    }
    del found["head_dim"]  # the model's own: that of the part with rope
    if mla is None:
        return found
    return found | {
        "q_lora_rank": mla.q_lora,
        "kv_lora_rank": mla.kv_lora,
        "qk_nope_head_dim": mla.qk_head,
        "qk_rope_head_dim": mla.qk_rope,
        "v_head_dim": mla.v_head,
    }


def _sparse(recipe: Recipe) -> dict[str, Any]:
    dsa = recipe.dsa
    assert dsa is not None
    sizes = {"index_n_heads": dsa.index_heads, "index_head_dim": dsa.index_head_dim, "index_topk": dsa.top_k}
    return _latent(recipe) | sizes


def _nemotron(recipe: Recipe) -> dict[str, Any]:
    moe, mamba = recipe.moe or Moe(), recipe.mamba
    groups, chosen = moe.groups or (1, 1)
    kinds = {**releases.layer_types(), "E": "moe" if recipe.moe else "mlp"}
    return {
        "layers_block_type": [kinds[letter] for letter in patterns.parse(recipe.pattern, recipe.depth).letters],
        "num_key_value_heads": recipe.kv_groups,
        "head_dim": recipe.head_dim,
        "intermediate_size": recipe.ffn_hidden,
        "layer_norm_epsilon": recipe.norm_eps,
        "mlp_bias": "mlp" in recipe.biases,
        "mamba_num_heads": mamba.heads,
        "mamba_head_dim": mamba.head_dim,
        "ssm_state_size": mamba.state,
        "n_groups": mamba.groups,
        "conv_kernel": CONV_WIDTH,
        "n_routed_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.expert_hidden,
        "moe_shared_expert_intermediate_size": moe.shared_hidden,
        "routed_scaling_factor": moe.route_scale,
        "norm_topk_prob": moe.top_k > 1,
        "n_group": groups,
        "topk_group": chosen,
    }


def _granite(recipe: Recipe) -> dict[str, Any]:
    moe, mamba = recipe.moe or Moe(), recipe.mamba
    letters = patterns.parse(recipe.pattern, recipe.depth).letters
    found = _dense(recipe) | {
        "intermediate_size": moe.expert_hidden,
        "shared_intermediate_size": moe.shared_hidden,
        "num_local_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "layer_types": [releases.layer_types()[letter] for letter in letters[::2]],
        "position_embedding_type": "rope",
        "attention_multiplier": recipe.head_dim**-0.5,
    }
    del found["head_dim"]
    if "M" not in letters:
        mamba = Mamba(heads=1, head_dim=2 * recipe.hidden, groups=1)  # it checks sizes that it never uses
    return found | _scan(recipe, mamba)


def _bamba(recipe: Recipe) -> dict[str, Any]:
    letters = patterns.parse(recipe.pattern, recipe.depth).letters
    whole = _rope(recipe, partial_rotary_factor=1.0)  # its own: half of a head
    return _dense(recipe) | whole | _scan(recipe, recipe.mamba) | {
        "attn_layer_indices": [number for number, letter in enumerate(letters[::2]) if letter == "A"],
    }  # fmt: skip


def _falcon(recipe: Recipe) -> dict[str, Any]:
    scales, mamba = recipe.parallel_ssm or ParallelSsm(), recipe.mamba
    return _dense(recipe) | _scan(recipe, mamba) | {
        "mamba_d_ssm": mamba.heads * mamba.head_dim,
        "mamba_rms_norm": True,
        "mamba_norm_before_gate": False,
        "attention_out_multiplier": scales.attention_scale,
        "ssm_out_multiplier": scales.ssm_scale,
    }  # fmt: skip


def _scan(recipe: Recipe, mamba: Mamba) -> dict[str, Any]:
    return {
        "mamba_n_heads": mamba.heads,
        "mamba_d_head": mamba.head_dim,
        "mamba_d_state": mamba.state,
        "mamba_n_groups": mamba.groups,
        "mamba_d_conv": CONV_WIDTH,
        "mamba_expand": mamba.heads * mamba.head_dim // recipe.hidden,
    }


LLAMA = Kind(name="Llama", module="llama", settings=_dense)
QWEN3 = Kind(name="Qwen3", module="qwen3", settings=_dense)
QWEN3_MOE = Kind(name="Qwen3Moe", module="qwen3_moe", settings=_routed)
MIXTRAL = Kind(name="Mixtral", module="mixtral", settings=_plain)
DEEPSEEK_V3 = Kind(name="DeepseekV3", module="deepseek_v3", settings=_latent)
DEEPSEEK_V32 = Kind(name="DeepseekV32", module="deepseek_v32", settings=_sparse)
NEMOTRON_H = Kind(name="NemotronH", module="nemotron_h", settings=_nemotron, paired=False)
GRANITE = Kind(name="GraniteMoeHybrid", module="granitemoehybrid", settings=_granite)
BAMBA = Kind(name="Bamba", module="bamba", settings=_bamba)
FALCON_H1 = Kind(name="FalconH1", module="falcon_h1", settings=_falcon)


def decline(reasons: Mapping[Lack, Mapping[str, object]]) -> None:
    """Decline for the first reason that applies.

    Args:
        reasons: whose lack it is (the stack's, this device's, or this adapter's) → words → whether it applies.

    Raises:
        NotOffered: with the words.
    """
    errors.decline("transformers", reasons)


def there(kind: Kind) -> None:
    """Decline what is asked of a model that the installed version does not have.

    Raises:
        NotOffered: of a version that was tried.
        Misfit: of another, which may have it elsewhere.
    """
    words = f"{kind.name} is none of its models in {releases.version()}"
    decline({"stack": {words: not kind.exists and releases.version() in VERSIONS}})
    if not kind.exists:
        raise Misfit(words)


def _no_model_has(recipe: Recipe, moe: Moe | None) -> dict[str, object]:
    return {
        "no model has FP8 training": recipe.fp8,
        "no model drops tokens": moe and moe.capacity_factor,
        OF_GPT_OSS: {"experts", "router"} & {*recipe.biases} if moe else None,
        "its balance loss is over all layers of a batch, times top_k": moe and moe.aux_loss,
        "no model has a z loss on router logits": moe and moe.z_loss,
        "no model scales gates from a softmax": moe and moe.score == "softmax" and moe.route_scale != 1,
        "the gate of a lone expert after a softmax is 1 but in Qwen3-MoE": moe
        and moe.score == "softmax"
        and moe.top_k == 1
        and (moe.shared_hidden or not recipe.qk_norm or "M" in recipe.pattern),
    }


def block_of(recipe: Recipe, layer: int, mode: str) -> tuple[Kind, str, Recipe]:
    """The model that has a block, its letter, and the recipe of that model's layer with the block.

    Raises:
        NotOffered: for a block that no model has.
    """
    letters = patterns.parse(recipe.pattern, recipe.depth).letters
    letter = letters[layer]
    rank = letters[:layer].count("A")
    sparse = letter == "A" and recipe.dsa is not None and rank in recipe.dsa.a_ranks
    one = replace(
        recipe, pattern="AE", depth=2, mtp=None, mhc=None, moe=recipe.moe if letter == "E" else None,
        parallel_ssm=recipe.parallel_ssm if letter == "A" else None, mla=recipe.mla if letter == "A" else None,
        dsa=replace(recipe.dsa, a_ranks=(0,)) if sparse and recipe.dsa else None,
    )  # fmt: skip
    decline({"stack": {
        "no model has an M²RNN": letter == "R",
        "no model has Mamba-3": (letter == "M" or one.parallel_ssm) and mode == "author_dp",
        "Falcon-H1 has grouped attention without a QK norm": one.parallel_ssm and (one.mla or one.qk_norm),
        "no model has hyper-connections": letter == "A" and recipe.mhc,
        **_no_model_has(one, one.moe),
    }, "adapter": {"Falcon-H1 was not tried in this version": one.parallel_ssm and releases.version() in OLDER},
    })  # fmt: skip
    if letter == "M":
        kind = NEMOTRON_H if NEMOTRON_H.exists else _bamba_of(one)
    elif one.parallel_ssm is not None:
        kind = FALCON_H1
    elif letter == "A" and one.mla is not None:
        kind = DEEPSEEK_V32 if sparse else DEEPSEEK_V3
    elif letter == "A":
        kind = QWEN3 if one.qk_norm else LLAMA
    else:
        kind = _experts(one)
    there(kind)
    if kind is BAMBA:
        return kind, letter, replace(one, pattern="ME")
    return kind, letter, one if kind.paired else replace(one, pattern=letter, depth=1)


def _bamba_of(recipe: Recipe) -> Kind:
    """The model whose scan is asked where there is no Nemotron-H."""
    wide = recipe.mamba.heads * recipe.mamba.head_dim
    decline({"stack": {
        "Bamba's scan is a multiple of the hidden size wide": wide % recipe.hidden,
        "Bamba's norm after a scan is one over all groups": recipe.mamba.groups > 1,
    }})  # fmt: skip
    return BAMBA


def _experts(recipe: Recipe) -> Kind:
    moe, gated = recipe.moe, recipe.activation == "swiglu"
    if moe is None:
        return LLAMA if gated else NEMOTRON_H
    decline({"stack": {
        "experts with relu2 stand only after a sigmoid (NemotronH)": not gated and moe.score == "softmax",
        "experts with relu2 have a shared expert beside them (NemotronH)": not gated and not moe.shared_hidden,
    }})  # fmt: skip
    if not gated:
        return NEMOTRON_H
    if moe.score == "sigmoid":
        return DEEPSEEK_V3
    return GRANITE if moe.shared_hidden else QWEN3_MOE


def model_of(recipe: Recipe, execution: Execution, question: str) -> Kind:
    """The model of a recipe under an execution.

    Raises:
        NotOffered: for a recipe that no model is, and an execution that its Trainer cannot run.
    """
    letters, moe = patterns.parse(recipe.pattern, recipe.depth).letters, recipe.moe
    wanted = needs.features(recipe, execution, trains=question == "train")
    can = of_version(releases.version())
    declining.declined("transformers", can, wanted - {"dsa"}, question)  # sparse attention is built all the same
    kind = _whole(recipe, letters, moe)
    there(kind)
    return kind


def _whole(recipe: Recipe, letters: str, moe: Moe | None) -> Kind:
    if recipe.parallel_ssm is not None and "A" in letters:
        return FALCON_H1
    if "A" not in letters and ("E" not in letters or recipe.activation != "swiglu"):
        if "E" in letters and moe is not None:
            _experts(recipe)
        return NEMOTRON_H
    decline({"stack": {
        "DeepSeek-V3 has no sparse attention, V3.2 on every layer": recipe.dsa
        and len(recipe.dsa.a_ranks) != letters.count("A"),
        "the shared expert is a multiple of an expert wide": recipe.mla and moe
        and (moe.shared_hidden % moe.expert_hidden or not moe.shared_hidden),
    }})  # fmt: skip
    if recipe.mla is not None:
        return DEEPSEEK_V32 if recipe.dsa else DEEPSEEK_V3
    if "M" in letters and moe is None:
        return BAMBA
    if "M" in letters or (moe is not None and moe.shared_hidden):
        return GRANITE  # where there is no shared expert it has one of width 0, which FSDP does not cut
    if moe is not None:
        return QWEN3_MOE if recipe.qk_norm else MIXTRAL
    return QWEN3 if recipe.qk_norm else LLAMA


def places(documents_BT: Tensor) -> Tensor:
    """Each token's place in its document: how transformers recognises packed documents."""
    import torch

    places_BT = torch.arange(documents_BT.shape[1]).expand_as(documents_BT)
    new_BT = torch.ones_like(documents_BT, dtype=torch.bool)
    new_BT[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
    return places_BT - torch.where(new_BT, places_BT, 0).cummax(1).values

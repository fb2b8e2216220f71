"""A recipe as Megatron-Core builds it: its configuration, its layer specification, its GPT model on this rank.

If attention and experts alternate, one of Megatron's transformer layers holds both. In any other order each block is a
layer without the other half, as in Megatron's hybrid model. Everything uses the `local` specification, because
Transformer Engine runs on GPUs only.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from contracts.spec import Degrees, Lack, Moe, NotOffered, Recipe, Unreachable, needs, refuse
from contracts.spec import pattern as patterns
from contracts.stacks.kit.links import Link
from contracts.stacks.megatron.shims import mcore
from contracts.stacks.megatron.weight_mapping import pieces

Dispatcher = str  # allgather or alltoall


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The Megatron model of a recipe, and how it is cut.

    Args:
        letters: of all layers. paired: whether a Megatron layer holds an A and the following E.
        chunks: model chunks on one rank; more than one in an interleaved pipeline.
        narrow: whether the product of a router has the dtype of its activations, as without --moe-router-dtype.
        distributed: whether the optimizer is.
    """

    recipe: Recipe
    degrees: Degrees
    dtype: torch.dtype
    letters: str
    paired: bool
    chunks: int = 1
    dispatcher: Dispatcher = "alltoall"
    per_token: bool = True
    recompute: bool = False
    narrow: bool = False
    distributed: bool = False

    @property
    def layers(self) -> int:
        """Number of Megatron's layers on all ranks."""
        return len(self.letters) // 2 if self.paired else len(self.letters)

    @property
    def in_turns(self) -> bool:
        """Whether its layer-wise optimizer gathers after a step, --no-use-layer-wise-param-layout: the layout of its
        buffers knows no biases of experts."""
        return self.distributed and self.recipe.optim.rule == "muon" and "experts" in self.recipe.biases

    def table(self) -> dict[str, Link]:
        """Every tensor by Megatron's name."""
        return pieces(self.recipe, self.letters, [n // 2 if self.paired else n for n in range(len(self.letters))])


def planned(
    recipe: Recipe, degrees: Degrees, dtype: torch.dtype, *, interleaved: bool = False, families: str = "AE"
) -> Plan:
    """The plan of a recipe; `families` are the letters that are asked for.

    Raises:
        NotOffered: for what Megatron's transformer layers do not have, or not on a CPU.
    """
    parsed = patterns.parse(recipe.pattern, recipe.depth)
    letters = "".join(parsed.letters)
    _offered(recipe, degrees, letters, families)
    stages = patterns.stages(parsed, degrees.pp)
    paired = all(stage == "AE" * (len(stage) // 2) for stage in stages)
    segments = "".join(parsed.letters) if degrees.pp == 1 else "|".join(stages)
    chunks = _chunks(recipe, degrees) if interleaved else 1
    if len({len(stage) for stage in segments.split("|")}) > 1:
        raise NotOffered(f"Megatron-Core cuts layers evenly, and the stages are {', '.join(stages)}", "stack")
    return Plan(recipe=recipe, degrees=degrees, dtype=dtype, letters=letters, paired=paired, chunks=chunks)


def _chunks(recipe: Recipe, degrees: Degrees) -> int:
    """Segments of the pattern over the ranks of the pipeline; 1 for a pattern that is not cut."""
    segments = recipe.pattern.count("|") + 1
    return segments // degrees.pp if segments % degrees.pp == 0 else 1


def _offered(recipe: Recipe, degrees: Degrees, letters: str, families: str) -> None:
    other = sorted(set(letters) - set(families))
    reasons: tuple[tuple[bool, str, Lack], ...] = (
        (recipe.mtp is not None and "M" in letters, "its hybrid model with prediction heads was not tried", "adapter"),
        (recipe.dsa is not None, "sparse attention asserts bfloat16, and wants a kernel that a CPU lacks", "device"),
        (recipe.mhc is not None, "it has no hyper-connections in a version that was tried", "stack"),
        ("A" in letters and recipe.parallel_ssm is not None, "no version that was tried has a layer of two mixers",
         "stack"),
        (recipe.fp8 is not None, "FP8 is Transformer Engine's, and that runs on GPUs", "device"),
        (degrees.cp > 1, "context parallel is only Transformer Engine's attention", "device"),
        (recipe.vocab % degrees.tp != 0, f"a vocabulary of {recipe.vocab} is padded to a multiple of tp {degrees.tp}, "
         "and padded rows take part in the loss", "case"),
        (degrees.tp > 1 and recipe.mla is None and recipe.kv_groups % degrees.tp != 0, "fewer KV groups than TP ranks",
         "stack"),
        (degrees.expert_tp > 1 and recipe.moe is not None and degrees.ep > 1 and degrees.expert_tp != 1,
         "experts that are cut exchange pieces of unequal size, which gloo does not", "device"),
        (degrees.tp > 1 and not degrees.sp and recipe.moe is not None and "E" in letters,
         "under tp without sp its experts raise in the first forward pass of training", "stack"),
        (_biased(recipe) and (recipe.mla is not None or not {*needs.bias_places(recipe)} <= {*recipe.biases}),
         "all linear layers have biases, or none", "stack"),
        ("experts" in recipe.biases and recipe.moe is not None and bool(recipe.moe.shared_hidden),
         "its shared expert asserts that no layer has a bias", "stack"),
        ("experts" in recipe.biases and degrees.expert_tp > 1, "biases of experts want expert TP 1", "stack"),
        (recipe.rope_theta != int(recipe.rope_theta), "the base of rope is a whole number", "case"),
        # A recipe of a whole model has every letter, whichever of them the case is about.
        (bool(other), f"transformer layers have no {', '.join(other)} block",
         "case" if set(letters) & set(families) else "stack"),
    )  # fmt: skip
    for holds, words, lack in reasons:
        if holds:
            raise NotOffered(f"Megatron-Core: {words}", lack)


def config_of(plan: Plan) -> Any:
    """Megatron's configuration of a plan.

    Raises:
        Refused: in Megatron's own words, when its validation refuses it.
    """
    recipe, degrees = plan.recipe, plan.degrees
    module = mcore("transformer.transformer_config")
    kind = module.MLATransformerConfig if recipe.mla else module.TransformerConfig
    given = _general(plan) | _parallel(plan) | (_routed(plan, recipe.moe) if recipe.moe else {}) | _latent(recipe)
    given |= _scanned(recipe) if "M" in plan.letters else {}
    try:
        return kind(**given)
    except TypeError as error:
        raise Unreachable(f"the configuration has other fields: {error}") from None
    except (AssertionError, ValueError) as error:
        words = " ".join(str(error).split()) or type(error).__name__
        raise refuse("recipe", recipe.name, f"on {degrees}: {words}", "change what Megatron names") from None


def _biased(recipe: Recipe) -> bool:
    """Whether linear layers have biases: all or none."""
    return bool({*needs.bias_places(recipe)} & {*recipe.biases})


def _general(plan: Plan) -> dict[str, Any]:
    recipe = plan.recipe
    functional = torch.nn.functional
    given: dict[str, Any] = {
        "num_layers": plan.layers,
        "hidden_size": recipe.hidden,
        "num_attention_heads": recipe.heads,
        "num_query_groups": recipe.kv_groups,
        "kv_channels": recipe.head_dim,
        "ffn_hidden_size": recipe.ffn_hidden,
        "normalization": "RMSNorm",
        "layernorm_epsilon": recipe.norm_eps,
        "qk_layernorm": recipe.qk_norm or recipe.mla is not None,
        "add_bias_linear": _biased(recipe),
        "gated_linear_unit": recipe.activation == "swiglu",
        "activation_func": functional.silu if recipe.activation == "swiglu" else mcore("activations").squared_relu,
        "hidden_dropout": recipe.dropout,
        "attention_dropout": 0.0,
        "params_dtype": plan.dtype,
        "use_cpu_initialization": True,
        "calculate_per_token_loss": plan.per_token,
    }
    if recipe.mtp is not None:
        given |= {"mtp_num_layers": recipe.mtp.depth, "mtp_loss_scaling_factor": recipe.mtp.loss_weight}
    if plan.recompute:
        given |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    half = {torch.bfloat16: {"bf16": True}, torch.float16: {"fp16": True}}
    given |= half.get(plan.dtype, {})
    fused = ("bias_activation_fusion", "bias_dropout_fusion", "masked_softmax_fusion", "apply_rope_fusion",
             "gradient_accumulation_fusion", "persist_layer_norm")  # fmt: skip
    return given | dict.fromkeys(fused, False)


def _parallel(plan: Plan) -> dict[str, Any]:
    degrees = plan.degrees
    return {
        "tensor_model_parallel_size": degrees.tp,
        "pipeline_model_parallel_size": degrees.pp,
        "virtual_pipeline_model_parallel_size": plan.chunks if plan.chunks > 1 else None,
        "pipeline_dtype": plan.dtype,
        "expert_model_parallel_size": degrees.ep,
        "expert_tensor_parallel_size": degrees.expert_tp,
        "sequence_parallel": degrees.sp,
        "deallocate_pipeline_outputs": False,  # gloo may still be sending one, since no stream orders the two
        # Megatron's validation requires this of an interleaved pipeline of two ranks: batched, both directions would
        # meet.
        "overlap_p2p_comm": plan.chunks > 1,
        "batch_p2p_comm": plan.chunks == 1,
    }


def _routed(plan: Plan, moe: Moe) -> dict[str, Any]:
    return {
        "moe_token_dispatcher_type": plan.dispatcher,
        "num_moe_experts": moe.experts,
        "moe_router_topk": moe.top_k,
        "moe_ffn_hidden_size": moe.expert_hidden,
        "moe_shared_expert_intermediate_size": moe.shared_hidden or None,
        "moe_router_score_function": moe.score,
        "moe_router_pre_softmax": moe.top_k == 1 and moe.score == "softmax",
        "moe_router_enable_expert_bias": moe.selection_bias,
        "moe_router_num_groups": moe.groups and moe.groups[0],
        "moe_router_group_topk": moe.groups and moe.groups[1],
        "moe_router_bias_update_rate": moe.bias_rate,
        "moe_router_topk_scaling_factor": moe.route_scale if moe.route_scale != 1.0 else None,
        "moe_router_dtype": None if plan.narrow else "fp64" if plan.dtype is torch.float64 else "fp32",
        "moe_router_load_balancing_type": "seq_aux_loss" if moe.aux_loss else "none",
        "moe_aux_loss_coeff": moe.aux_loss,
        "moe_z_loss_coeff": moe.z_loss or None,
        "moe_expert_capacity_factor": moe.capacity_factor,
        "moe_token_drop_policy": moe.drop_policy,
    }


def _latent(recipe: Recipe) -> dict[str, Any]:
    mla = recipe.mla
    if mla is None:
        return {}
    return {
        "q_lora_rank": mla.q_lora,
        "kv_lora_rank": mla.kv_lora,
        "qk_head_dim": mla.qk_head,
        "qk_pos_emb_head_dim": mla.qk_rope,
        "v_head_dim": mla.v_head,
        "kv_channels": mla.v_head,
        "rope_type": "rope",
        "rotary_base": recipe.rope_theta,
        "num_query_groups": recipe.heads,
        "multi_latent_attention": True,
    }


def _scanned(recipe: Recipe) -> dict[str, Any]:
    mamba = recipe.mamba
    return {
        "mamba_num_heads": mamba.heads,
        "mamba_head_dim": mamba.head_dim,
        "mamba_state_dim": mamba.state,
        "mamba_num_groups": mamba.groups,
    }


def layer_spec(plan: Plan, letter: str = "") -> Any:
    """Megatron's local specification of a layer; with a letter, of the half that the letter names."""
    recipe, spec = plan.recipe, mcore("models.gpt.gpt_layer_specs")
    made = spec.get_gpt_layer_local_spec(
        num_experts=recipe.moe.experts if recipe.moe else None,
        qk_layernorm=recipe.qk_norm or recipe.mla is not None,
        multi_latent_attention=recipe.mla is not None,
        normalization="RMSNorm",
    )
    halves = made.submodules
    if recipe.mla is not None:
        halves.self_attention.submodules.core_attention = _latent_core()
    bare = type(halves)()
    if letter == "A":
        made.submodules = replace(halves, pre_mlp_layernorm=bare.pre_mlp_layernorm, mlp=bare.mlp, mlp_bda=bare.mlp_bda)
    elif letter == "E":
        made.submodules = replace(
            halves, input_layernorm=bare.input_layernorm, self_attention=bare.self_attention,
            self_attn_bda=bare.self_attn_bda,
        )  # fmt: skip
    return made


LATENT = "; under MLA the local attention is substituted by one that takes MLA's arguments and calls it"


@functools.cache
def _latent_core() -> type:
    """Megatron's own local attention, which ignores the two extra arguments of MLA.

    Keys are `qk_head + qk_rope` wide and values `v_head`. It takes both widths from its inputs, and the width of its
    output from the configuration's kv_channels, which is `v_head`.
    """
    local: Any = mcore("transformer.dot_product_attention").DotProductAttention

    def made(self: Any, *arguments: Any, k_channels: int = 0, v_channels: int = 0, **named: Any) -> None:
        local.__init__(self, *arguments, **named)

    return type("LatentDotProductAttention", (local,), {"__init__": made})


def chunks_of(plan: Plan, config: Any) -> list[Any]:
    """The model of this rank, in training mode: one GPTModel for each chunk of the pipeline."""
    state = mcore("parallel_state")
    found = []
    for chunk in range(plan.chunks):
        virtual = {"vp_stage": chunk} if plan.chunks > 1 else {}
        found.append(
            mcore("models.gpt").GPTModel(
                config=config,
                transformer_layer_spec=_block_spec(plan, config, chunk),
                vocab_size=plan.recipe.vocab,
                max_sequence_length=plan.recipe.seq_length,
                pre_process=state.is_pipeline_first_stage(ignore_virtual=plan.chunks == 1, **virtual),
                post_process=state.is_pipeline_last_stage(ignore_virtual=plan.chunks == 1, **virtual),
                share_embeddings_and_output_weights=not plan.recipe.untied_embeddings,
                position_embedding_type="rope",
                rotary_base=plan.recipe.rope_theta,
                mtp_block_spec=_heads_spec(plan, config, virtual),
                **virtual,
            )
        )
    return found


def _block_spec(plan: Plan, config: Any, chunk: int) -> Any:
    """The layers that this rank builds of a chunk."""
    block = mcore("transformer.transformer_block")
    virtual = {"vp_stage": chunk} if plan.chunks > 1 else {}
    count = block.get_num_layers_to_build(config, **virtual)
    first = mcore("transformer.transformer_layer").get_transformer_layer_offset(config, **virtual)
    letters = [""] * count if plan.paired else list(plan.letters[first : first + count])
    norm = mcore("transformer.torch_norm").WrappedTorchNorm
    return block.TransformerBlockSubmodules(layer_specs=[layer_spec(plan, each) for each in letters], layer_norm=norm)


def _heads_spec(plan: Plan, config: Any, virtual: Mapping[str, int]) -> Any:
    """The prediction heads that this rank builds of a chunk, or None. Their layer is dense, whatever others are."""
    if plan.recipe.mtp is None:
        return None
    dense = layer_spec(replace(plan, recipe=replace(plan.recipe, moe=None)))
    return mcore("models.gpt.gpt_layer_specs").get_gpt_mtp_block_spec(
        config, dense, use_transformer_engine=False, **virtual
    )


def mask_of(documents_BT: Tensor) -> Tensor:
    """(B, 1, T, T), true where a query may not see a key: a later one, or one of another document."""
    length = documents_BT.shape[1]
    behind_TT = torch.ones(length, length, dtype=torch.bool, device=documents_BT.device).triu(1)
    other_BTT = documents_BT[:, :, None] != documents_BT[:, None, :]
    return (behind_TT | other_BTT)[:, None]

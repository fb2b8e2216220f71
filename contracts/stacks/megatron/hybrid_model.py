"""Megatron's hybrid model, for a pattern with an M, over the local specification.

The specification that Megatron ships for it needs Transformer Engine. Here the halves of transformer layers are those
of `model`, and the Mamba layer has a separate norm before it.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from contracts.spec import NotOffered
from contracts.spec import pattern as patterns
from contracts.stacks.megatron import model
from contracts.stacks.megatron.abilities import BEFORE_18
from contracts.stacks.megatron.mamba_kernels import hybrid_block
from contracts.stacks.megatron.model import Plan, layer_spec
from contracts.stacks.megatron.shims import mcore, older


def chunks_of(plan: Plan, config: Any) -> list[Any]:
    """The model of this rank, in training mode: a HybridModel if there is an M, otherwise one GPTModel per chunk."""
    if "M" not in plan.letters:
        return model.chunks_of(plan, config)
    if plan.chunks > 1:
        raise NotOffered("Megatron-Core: its hybrid model in interleaved stages was not tried")
    if plan.recipe.mla is not None and _latent_attention_raises():
        raise NotOffered(f"Megatron-Core: {BEFORE_18}", "stack")
    state, recipe = mcore("parallel_state"), plan.recipe
    parsed, pp = patterns.parse(recipe.pattern, recipe.depth), plan.degrees.pp
    stages = patterns.stages(parsed, pp) if pp > 1 else [plan.letters]
    cut = ["".join(_symbol(plan, letter) for letter in stage) for stage in stages]
    made = _kind(config, _stack_spec(plan), cut)(
        vocab_size=recipe.vocab,
        max_sequence_length=recipe.seq_length,
        pre_process=state.is_pipeline_first_stage(),
        post_process=state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=not recipe.untied_embeddings,
        position_embedding_type="rope",
        rotary_base=recipe.rope_theta,
    )
    return [made]


def _latent_attention_raises() -> bool:
    """So up to 0.17: 0.17 gives it the offset of its stage when it is made, 0.16 an embedding of positions later."""
    attention = mcore("transformer.multi_latent_attention").MLASelfAttention
    return "pp_layer_offset" not in inspect.signature(attention.__init__).parameters


def _kind(config: Any, spec: Any, stages: list[str]) -> Callable[..., Any]:
    """Megatron's hybrid model with the letters of each stage. Up to 0.17 it is a Mamba model with equal stages.

    Raises:
        NotOffered: for stages of unequal length, in a version without them.
    """
    if not older():
        hybrid = mcore("models.hybrid.hybrid_model").HybridModel
        return partial(hybrid, config=config, hybrid_stack_spec=spec, hybrid_layer_pattern="|".join(stages))
    if len({len(each) for each in stages}) > 1:
        raise NotOffered("Megatron-Core of this version cuts its hybrid model into stages of one length", "stack")
    mamba = mcore("models.mamba.mamba_model").MambaModel
    return partial(mamba, config=config, mamba_stack_spec=spec, hybrid_override_pattern="".join(stages))


def _symbol(plan: Plan, letter: str) -> str:
    """Megatron's symbol of a letter. Attention and experts have two kinds each; before 0.19 attention has one."""
    latent = "+" if _tells_latent_attention() else "*"
    attention, experts = latent if plan.recipe.mla else "*", "E" if plan.recipe.moe else "-"
    return {"A": attention, "E": experts, "M": "M"}[letter]


def _stack_spec(plan: Plan) -> Any:
    block, build = mcore(hybrid_block()), mcore("transformer.spec_utils").ModuleSpec
    attention, experts = layer_spec(plan, "A"), layer_spec(plan, "E")
    layers = {"mamba_layer": mamba_spec(), "attention_layer": attention, "mlp_layer": experts, "moe_layer": experts}
    if older():
        return build(module=block.MambaStack, submodules=block.MambaStackSubmodules(**layers))
    latent = {"mla_layer": attention} if _tells_latent_attention() else {}
    return build(module=block.HybridStack, submodules=block.HybridStackSubmodules(**layers, **latent))


def _tells_latent_attention() -> bool:
    """Whether the hybrid model of this version has a layer of its own for latent attention."""
    return not older() and hasattr(mcore(hybrid_block()).HybridStackSubmodules, "mla_layer")


def mamba_spec() -> Any:
    """Megatron's Mamba layer over its local specification."""
    layer, mixer, parallel = mcore("ssm.mamba_layer"), mcore("ssm.mamba_mixer"), mcore("tensor_parallel")
    build = mcore("transformer.spec_utils")
    return build.ModuleSpec(
        module=layer.MambaLayer,
        submodules=layer.MambaLayerSubmodules(
            norm=mcore("transformer.torch_norm").WrappedTorchNorm,
            mixer=build.ModuleSpec(
                module=mixer.MambaMixer,
                submodules=mixer.MambaMixerSubmodules(
                    in_proj=parallel.ColumnParallelLinear, out_proj=parallel.RowParallelLinear
                ),
            ),
            mamba_bda=mcore("fusions.fused_bias_dropout").get_bias_dropout_add,
        ),
    )

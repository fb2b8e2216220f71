"""The places in torchtitan of what layers are made of: one function a symbol, which says since when it is as it is."""

import contextlib
import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from contracts.spec import NotOffered

OLDER = "torchtitan.models.{}.model.model"
"""The module of a model up to February 2026."""


def _found(*names: str) -> Any:
    """The first of these modules that can be imported.

    Raises:
        ModuleNotFoundError: for the last, if there is none.
    """
    for name in names[:-1]:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    return importlib.import_module(names[-1])


def moe() -> Any:
    """The module of its layers with experts: a file since April 2026, before in a package, up to February beside the
    models."""
    return _found("torchtitan.models.common.moe.moe", "torchtitan.models.common.moe", "torchtitan.models.moe.moe")


def signed(function: Callable[..., Any]) -> set[str]:
    """The names of the arguments that a function takes."""
    return {*inspect.signature(function).parameters}


@functools.cache
def layers_apart() -> bool:
    """Whether each layer has its own configuration: since "Refactor init_weights to config-based param_init system"
    (#2633, April 2026). Before, one stands for all of them."""
    decoder = _found("torchtitan.models.common.decoder", "torchtitan.models")
    return hasattr(decoder, "Decoder") and "layers" in fields(decoder.Decoder.Config)


def wrapped_attention() -> Any:
    """The wrapper of attention's kernel, to which TP passes DTensors: up to March 2026; since then its own heads."""
    place = _found("torchtitan.models.common.attention", "torchtitan.models.attention")
    return getattr(place, "ScaledDotProductAttentionWrapper", None)


def nested() -> bool:
    """Whether configurations are nested: since "Config System Refactor" (#2386, February 2026)."""
    return hasattr(importlib.import_module("torchtitan.config"), "Configurable")


def low_ranks() -> dict[tuple[str, ...], Any]:
    """The field of the matrices through which latent attention reads queries, which April 2026 has in a template."""
    common = _found("torchtitan.models.common", "torchtitan.models")
    return {("wq_a", "wq_b"): common.Linear.Config()} if hasattr(common, "Linear") else {}


def rope(*, dim: int, length: int, theta: float, pairs: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments about rope of an attention and of a model.

    Since "Move centralized freqs_cis to each transform layer" (#3458, June 2026) each attention has its own; before, a
    model has one for all. Its table's length is `max_context_length` since August 2026, before `max_seq_len`. Up to
    June it is refused where it is less than the length in `batch_sizes`.

    Args:
        pairs: whether elements 2i and 2i + 1 turn together, and not i and i + d/2.
    """
    module = importlib.import_module("torchtitan.models.common.rope")
    if not hasattr(module, "ComplexRoPE"):
        backend = {"backend": "complex" if pairs else "cos_sin"}
        shared = module.RoPE.Config(dim=dim, max_seq_len=length + 16, theta=theta, **backend)
        return {f"rope_{name}": value for name, value in backend.items()}, {"rope": shared}
    kind = module.ComplexRoPE.Config if pairs else module.CosSinRoPE.Config
    name = "max_context_length" if "max_context_length" in fields(kind) else "max_seq_len"
    return {"rope": kind(**{"dim": dim, name: length if since_july() else length + 16, "theta": theta})}, {}


def tied(model: Any, tie: bool) -> dict[str, bool]:
    """The option that ties the head to the embedding: DeepSeek-V3 has it since June 2026.

    Raises:
        NotOffered: for a model that ties none.
    """
    if "enable_weight_tying" in fields(model.Config):
        return {"enable_weight_tying": tie}
    if tie:
        raise NotOffered(f"torchtitan: up to June 2026 {model.__name__} ties no weights", "stack")
    return {}


def routed_experts(**named: Any) -> dict[str, Any]:
    """The argument of `make_moe_config` that has the experts: `routed_experts` since July 2026, before `experts`, with
    a gate that multiplies what its expert returns."""
    utils = importlib.import_module("torchtitan.models.common.config_utils")
    if hasattr(utils, "make_routed_experts_config"):
        return {"routed_experts": utils.make_routed_experts_config(**named)}
    late = {"score_before_experts": False} if "score_before_experts" in signed(utils.make_experts_config) else {}
    return {"experts": utils.make_experts_config(**named, **late)}


def latent_attention(*, inits: dict[str, Any], **named: Any) -> Any:
    """The configuration of latent attention: `make_mla_attention_config` since August 2026, before a private function
    that takes no initializations and has its own, and up to June no rope."""
    models = importlib.import_module("torchtitan.models.deepseek_v3")
    if hasattr(models, "make_mla_attention_config"):
        return models.make_mla_attention_config(**inits, **named)
    own = models._make_dsv3_attn_config
    return own(**{name: value for name, value in named.items() if not name.startswith("rope") or name in signed(own)})


def heads_in_one() -> bool:
    """Whether one matrix projects queries, keys and values: since "Fused QKV GQAttention" (#2878, April 2026)."""
    return hasattr(_found("torchtitan.models.common.attention", "torchtitan.models"), "FusedQKVLinear")


@functools.cache
def _renamings() -> tuple[tuple[str, str], ...]:
    """Parts of the names of tensors in 0.3.0, and in this version where they differ."""
    decoder = _found("torchtitan.models.common.decoder", "torchtitan.models")
    found = [("lm_head.", "output.")]  # before "ChunkedCELoss" (#2937, April 2026)
    if hasattr(decoder, "Decoder") and "lm_head" in fields(decoder.Decoder.Config):
        found = []
    if not heads_in_one():
        found.append(("qkv_linear.", ""))
    if not hasattr(moe(), "RoutedExperts"):  # July 2026
        found.append(("routed_experts.inner_experts.", "experts."))
    if "expert_bias_E" not in signed(moe().TokenChoiceTopKRouter.forward):  # "Use shape suffix" (#3425, May 2026)
        found += [("_EFD", ""), ("_EDF", ""), ("expert_bias_E", "expert_bias"), ("per_expert_E", "per_expert")]
    return tuple(found)


def named(theirs: str) -> str:
    """The name in this version of a tensor that 0.3.0 names so."""
    for part, other in _renamings():
        theirs = theirs.replace(part, other)
    return theirs


def of_experts() -> FunctionType:
    """The function that multiplies by the experts' matrices: `GroupedExperts.forward` since July 2026, before
    `_experts_forward`, up to May a function of its module."""
    module = moe()
    experts = module.GroupedExperts
    own: FunctionType = getattr(experts, "_experts_forward", experts.forward)
    return getattr(module, "_run_experts_grouped_mm", own)


@contextlib.contextmanager
def products_by(one_by_one: Callable[..., Tensor]) -> Iterator[None]:
    """Let experts take another product: that of their hook `_grouped_mm` since August 2026, before torch's."""
    experts = moe().GroupedExperts
    owner: Any = experts if hasattr(experts, "_grouped_mm") else torch
    own = owner._grouped_mm
    owner._grouped_mm = one_by_one
    try:
        yield
    finally:
        owner._grouped_mm = own


def roundings() -> list[FunctionType]:
    """The functions that round to float32: of rope, of gates and what they multiply, and the loss. Rope's are methods
    since June 2026, before functions; the token dispatcher multiplies since April 2026, before the layer."""
    loss = importlib.import_module("torchtitan.components.loss").cross_entropy_loss
    return [*_of_rope(), *_of_gates(), loss]


def _of_rope() -> Iterator[FunctionType]:
    rope = _found("torchtitan.models.common.rope", OLDER.format("deepseek_v3"))
    if hasattr(rope, "ComplexRoPE"):
        kinds = (rope.CosSinRoPE, rope.ComplexRoPE)
        yield from (getattr(kind, name) for kind in kinds for name in ("_precompute_cache", "apply_rotary_emb"))
    elif hasattr(rope, "RoPE"):
        yield from (rope.RoPE._precompute_complex, rope.RoPE._precompute_cos_sin)
        yield from (rope.apply_rotary_emb_complex, rope.apply_rotary_emb_single_complex)
        if "float" in rope.apply_rotary_emb_cos_sin.__code__.co_names:  # since March 2026 (#2575)
            yield rope.apply_rotary_emb_cos_sin
    else:
        yield from (rope.precompute_freqs_cis, rope.apply_rotary_emb)
        yield importlib.import_module(OLDER.format("qwen3")).precompute_rope_cache


def _of_gates() -> Iterator[FunctionType]:
    module, dispatcher = moe(), "torchtitan.models.common.token_dispatcher"
    with contextlib.suppress(ModuleNotFoundError):
        yield importlib.import_module(dispatcher).LocalTokenDispatcher.combine
        return
    yield module.MoE.forward
    if not gates_in_float32():
        yield module.TokenChoiceTopKRouter.forward


def gates_in_float32() -> bool:
    """Whether the router asks for a product in float32, by autocast: since March 2026."""
    return "autocast" in moe().TokenChoiceTopKRouter.forward.__code__.co_names


def counts_by_histc() -> bool:
    """Whether the router counts tokens by `torch.histc`: until "Using routing map" (#3450, June 2026)."""
    return "histc" in moe().TokenChoiceTopKRouter.forward.__code__.co_names


@functools.cache
def since_july() -> bool:
    """Whether recomputation has a class for each kind: since July 2026."""
    return hasattr(importlib.import_module("torchtitan.distributed.activation_checkpoint"), "FullAC")


def fields(kind: Any) -> set[str]:
    """The names of the fields of a configuration."""
    return {each.name for each in dataclasses.fields(kind)}

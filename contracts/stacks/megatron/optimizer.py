"""Megatron's data-parallel wrapper, optimizer and learning-rate schedule for a recipe."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from contracts.spec import NotOffered, Optim, Recipe, refuse
from contracts.stacks.megatron import distributed_optimizer, muon
from contracts.stacks.megatron.fsdp import is_sharded, sharded
from contracts.stacks.megatron.model import Plan
from contracts.stacks.megatron.shims import mcore

LOSS_SCALE = 2.0**10
"""The first one under float16. It multiplies a sum over labels, which is divided after the backward pass: of 64 labels
that is the 2^16 of a mean. From Megatron's default, 2^32, it would leave out the first two dozen steps."""


def wrapped(plan: Plan, config: Any, chunks: list[Any], copies: int = 0, device: str = "cpu") -> list[Any]:
    """Chunks as Megatron's training wraps it: in 16 bits after a cast, with gradients in float32. Its arguments ask
    for those in bfloat16 by themselves, in float16 by `--accumulate-allreduce-grads-in-fp32`.

    Args:
        copies: of its parameters, where they are sharded; 0 where every rank has all of them.
    """
    half = config.bf16 or config.fp16
    modules = [mcore("transformer.module").Float16Module(config, chunk) for chunk in chunks] if half else chunks
    if copies:
        return [sharded(config, module, copies, device) for module in modules]
    ranks = mcore("parallel_state").get_data_parallel_world_size()
    options = distributed_optimizer.options(ranks) if plan.distributed and not plan.in_turns else {}
    made = mcore("distributed").DistributedDataParallelConfig(grad_reduce_in_fp32=half, **options)
    if options and plan.recipe.optim.rule == "muon":
        return muon.wrapped(config, made, modules)
    return [  # only the first chunk of a rank has several buckets
        mcore("distributed").DistributedDataParallel(
            config=config, ddp_config=made, module=module, disable_bucketing=plan.distributed and number > 0
        )
        for number, module in enumerate(modules)
    ]


OUTSIDE = frozenset({"embedding.weight", "head.weight"})


def share_of(plan: Plan, rates: Mapping[str, float]) -> float:
    """The share of the rate that embedding and output projection have, its --decoupled-lr.

    Raises:
        NotOffered: for a rate of other weights, or of one of the two.
    """
    both = OUTSIDE if plan.recipe.untied_embeddings else {"embedding.weight"}
    if rates and ({*rates} != {*both} or len({*rates.values()}) > 1):
        raise NotOffered("Megatron-Core: only embedding and output projection have a rate of their own", "stack")
    return next(iter(rates.values()), 1.0)


def optimizer_of(plan: Plan, chunks: list[Any], share: float = 1.0) -> Any:
    """Its optimizer; `share` of the rate is what embedding and output projection have."""
    optim, module = plan.recipe.optim, mcore("optimizer")
    if optim.rule == "muon":
        options = muon.options(layer_wise=plan.distributed, gathers_ahead=not plan.in_turns)
    else:
        shards = chunks[0].ddp_config.use_distributed_optimizer  # its FSDP's too
        options = {"optimizer": "adam", "use_distributed_optimizer": shards}
    config = module.OptimizerConfig(
        lr=optim.lr, min_lr=optim.min_lr, weight_decay=optim.weight_decay, adam_beta1=optim.beta1,
        adam_beta2=optim.beta2, adam_eps=1e-8, clip_grad=optim.clip, params_dtype=plan.dtype,
        bf16=plan.dtype is torch.bfloat16, fp16=plan.dtype is torch.float16, initial_loss_scale=LOSS_SCALE,
        **_outside(optim, share), **options,
    )  # fmt: skip
    build = muon.builder() if optim.rule == "muon" else module.get_megatron_optimizer
    return build(config, chunks, use_gloo_process_groups=False)


def _outside(optim: Optim, share: float) -> dict[str, float]:
    """The options of its --decoupled-lr: of its configuration since "Support apply wd to qk layernorm" (#2753, January
    2026) and before November 2025.

    Raises:
        NotOffered: in between.
    """
    if share == 1.0:
        return {}
    if not any(each.name == "decoupled_lr" for each in fields(mcore("optimizer").OptimizerConfig)):
        raise NotOffered("Megatron-Core: up to January 2026 its configuration has no rate outside the layers", "stack")
    return {"decoupled_lr": optim.lr * share, "decoupled_min_lr": optim.min_lr * share}


def gradient(tensor: Any) -> Any:
    """The gradient that the optimizer is given; None for a tensor without one."""
    return tensor.grad if is_sharded(tensor) else getattr(tensor, "main_grad", None)


def main(tensor: Any) -> Any:
    """The float32 copy of a weight that the optimizer moves; the weight itself where it has none."""
    return getattr(tensor, "main_param", tensor)


def inner(optimizer: Any) -> list[Any]:
    """The torch optimizers inside Megatron's."""
    return [each.optimizer for each in distributed_optimizer.links(optimizer) if each.optimizer is not None]


def rate_of(recipe: Recipe, optimizer: Any) -> Any:
    """Megatron's schedule, which counts completed steps: the first step has the rate of step 0."""
    optim = recipe.optim
    end = optim.weight_decay if optim.end_weight_decay is None else optim.end_weight_decay
    if end < optim.weight_decay:
        raise NotOffered("Megatron-Core: its weight decay only rises", "stack")
    style = {"cosine": "cosine", "linear": "linear", "constant": "constant", "WSD": "WSD"}[optim.schedule]
    later = {"wsd_decay_steps": max(1, optim.steps // 5), "lr_wsd_decay_style": "linear"} if style == "WSD" else {}
    try:
        return mcore("optimizer_param_scheduler").OptimizerParamScheduler(
            optimizer, init_lr=0.0, max_lr=optim.lr, min_lr=optim.min_lr, lr_warmup_steps=optim.warmup,
            lr_decay_steps=optim.steps, lr_decay_style=style, start_wd=optim.weight_decay,
            end_wd=end, wd_incr_steps=optim.steps,
            wd_incr_style="constant" if optim.end_weight_decay is None else "linear",
            use_checkpoint_opt_param_scheduler=False, override_opt_param_scheduler=False, **later,
        )  # fmt: skip
    except AssertionError as error:
        words = " ".join(str(error).split()) or "asserts that the warm-up is shorter than the run"
        raise refuse("optim", f"warmup {optim.warmup} of {optim.steps}", words, "make the run longer") from None

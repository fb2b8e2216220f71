"""The token-choice layer: eager, compiled, its matrix products alone, and what a user would take instead.

4 sequences of 4096 tokens, hidden 3584, 16 experts of 896, top-4, a shared expert of 1024: NAM56R's own. Peers have
gated MLPs and are compared with the reference as swiglu; weights are bfloat16 in all, since peers hold them so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._measure import Row, timed, tried
from contracts.spec.presets import PRESETS
from contracts.spec.recipe import Moe, Recipe
from contracts.stacks.reference.model.blocks.common import Output, packing
from contracts.stacks.reference.model.compile import compiled
from contracts.stacks.reference.model.parts import PARTS

NAM56R = PRESETS["nam56r_h200_bf16_v1"]
SMALL = replace(
    NAM56R, hidden=128, moe=Moe(experts=12, top_k=3, expert_hidden=64, shared_hidden=96), heads=4, kv_groups=2
)


def rows(device: str, small: bool) -> dict[str, list[Row]]:
    """Tables by title: forward and backward of a whole layer, and the grouped products by themselves."""
    recipe, shape = (SMALL, (2, 64)) if small else (NAM56R, (4, 4096))
    gated, wait = replace(recipe, activation="swiglu"), 0.2 if small else 2.0
    x_BTD = torch.randn(*shape, recipe.hidden, device=device, dtype=torch.bfloat16)
    tables: dict[str, list[Row]] = {"grouped products alone": _products(recipe, x_BTD, wait)}
    for name, each in (("relu²", recipe), ("swiglu", gated)):
        found = [timed("reference, compiled", _stepped(_reference(each, x_BTD, "inductor"), x_BTD),
                       flops=_flops(each, x_BTD), seconds=wait),
                 timed("reference, eager", _stepped(_reference(each, x_BTD, None), x_BTD),
                       flops=_flops(each, x_BTD), seconds=wait)]  # fmt: skip
        if each is gated:
            for peer, make in (("Hugging Face Qwen2-MoE", _hugging_face), ("torchtitan MoE", _torchtitan)):
                found.append(tried(peer, lambda make=make, peer=peer, each=each: timed(  # type: ignore[misc]
                    peer, _stepped(make(each, x_BTD), x_BTD), flops=_flops(each, x_BTD), seconds=wait)))  # fmt: skip
        tables[f"layer, forward and backward, {name}"] = found
    return tables


def _moe(recipe: Recipe) -> Moe:
    assert recipe.moe is not None
    return recipe.moe


def _flops(recipe: Recipe, x_BTD: Tensor) -> float:
    """Of forward and backward, the products of experts, shared expert and router: 6 a weight and token."""
    moe, matrices = _moe(recipe), 3 if recipe.activation == "swiglu" else 2
    widths = matrices * (moe.top_k * moe.expert_hidden + moe.shared_hidden) + moe.experts
    return 6.0 * x_BTD.shape[0] * x_BTD.shape[1] * recipe.hidden * widths


def _stepped(forward: Callable[[Tensor], Tensor], x_BTD: Tensor) -> Callable[[], None]:
    """A call forward and backward; gradients of weights are made anew, as after a step."""
    leaf_BTD = x_BTD.clone().requires_grad_()
    dy_BTD = torch.randn_like(x_BTD)
    module = getattr(forward, "module", None)

    def run() -> None:
        if isinstance(module, nn.Module):
            module.zero_grad(set_to_none=True)
        leaf_BTD.grad = None
        forward(leaf_BTD).backward(dy_BTD)  # type: ignore[no-untyped-call]  # torch's

    return run


class _Called:
    """A module and how it is called, so that its gradients can be dropped."""

    def __init__(self, module: nn.Module, call: Callable[[Tensor], Tensor]) -> None:
        self.module, self.call = module, call

    def __call__(self, x_BTD: Tensor) -> Tensor:
        return self.call(x_BTD)


def _reference(recipe: Recipe, x_BTD: Tensor, backend: str | None) -> _Called:
    layer = PARTS.moe(recipe, PARTS).to(x_BTD.device, torch.bfloat16)
    pack = packing(x_BTD)

    def plain(x: Tensor) -> Tensor:
        out: Output = layer(x, pack, {})
        return out.y_BTD

    made = plain if backend is None else compiled(layer, plain, backend)
    return _Called(layer, made)


def _products(recipe: Recipe, x_BTD: Tensor, wait: float) -> list[Row]:
    """Sorted rows through the experts' matrices: even, one expert with four times its share, and half of them idle."""
    moe = _moe(recipe)
    experts = PARTS.experts(recipe, PARTS).to(x_BTD.device, torch.bfloat16)
    assignments = x_BTD.shape[0] * x_BTD.shape[1] * moe.top_k
    sent_SD = torch.randn(assignments, recipe.hidden, device=x_BTD.device, dtype=torch.bfloat16)
    weights = sum(each.numel() for each in experts.parameters())
    flops = 2.0 * assignments * weights / moe.experts
    moved = 2.0 * (weights + assignments * (2 * recipe.hidden + 3 * moe.expert_hidden))  # rows in and out, inner thrice
    found = []
    for name, ends in _loads(moe.experts, assignments).items():
        ends_E = torch.tensor(ends, device=x_BTD.device)

        def run(ends_E: Tensor = ends_E) -> None:
            with torch.no_grad():
                experts(sent_SD, ends_E)

        found.append(timed(f"forward, {name}", run, flops=flops, bytes=moved, seconds=wait))
    return found


def _loads(experts: int, assignments: int) -> dict[str, list[int]]:
    even = [assignments * (e + 1) // experts for e in range(experts)]
    crowd = min(4 * assignments // experts, assignments)
    rest = assignments - crowd
    crowded = [crowd + rest * e // (experts - 1) for e in range(experts)]
    half = [min(assignments, 2 * assignments * (e + 1) // experts) for e in range(experts)]
    return {"even": even, "one expert with four shares": crowded, "half of the experts idle": half}


def _hugging_face(recipe: Recipe, x_BTD: Tensor) -> _Called:
    """Qwen2-MoE's block: softmax router, gated experts, and a shared one, which it weighs by a sigmoid."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import Qwen2MoeConfig
    from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock

    moe = _moe(recipe)
    config = Qwen2MoeConfig(
        hidden_size=recipe.hidden, num_experts=moe.experts, num_experts_per_tok=moe.top_k, norm_topk_prob=True,
        moe_intermediate_size=moe.expert_hidden, shared_expert_intermediate_size=moe.shared_hidden, hidden_act="silu",
    )  # fmt: skip
    config._experts_implementation = "grouped_mm"  # its fastest from transformers 5 on; older ones ignore it
    layer = Qwen2MoeSparseMoeBlock(config).to(x_BTD.device, torch.bfloat16)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.02)

    def call(x: Tensor) -> Tensor:
        out: Any = layer(x)
        y: Tensor = out[0] if isinstance(out, tuple) else out
        return y

    return _Called(layer, call)


def _torchtitan(recipe: Recipe, x_BTD: Tensor) -> _Called:
    """torchtitan's MoE with a shared expert of one more inner width, rounded up to whole experts as it has it."""
    from torchtitan.models.moe import MoE, MoEArgs

    moe = _moe(recipe)
    arguments = MoEArgs(
        num_experts=moe.experts, num_shared_experts=-(-moe.shared_hidden // moe.expert_hidden), top_k=moe.top_k,
        score_func="softmax", use_grouped_mm=True,
    )  # fmt: skip
    with torch.device(x_BTD.device):
        layer = MoE(arguments, dim=recipe.hidden, hidden_dim=moe.expert_hidden)
    layer.init_weights(0.02, x_BTD.device)
    layer = layer.to(torch.bfloat16)
    return _Called(layer, layer)

"""The token-choice layer and what a user would take instead, compiled and eager, and its grouped products by
themselves.

4 sequences of 4096 tokens, hidden 3584, 16 experts of 896, top-4, a shared expert of 1024: NAM56R's own. Peers have
gated MLPs and are compared with the reference as swiglu; weights are bfloat16 in all, since peers hold them so.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._measure import Row, timed, tried
from contracts.spec import Moe, Recipe
from contracts.spec.presets import PRESETS
from contracts.stacks.reference.model.blocks.common import Output, packing
from contracts.stacks.reference.model.compile import compiled
from contracts.stacks.reference.model.parts import PARTS

NAM56R = PRESETS["nam56r_h200_bf16_v1"]
SMALL = replace(
    NAM56R, hidden=128, moe=Moe(experts=12, top_k=3, expert_hidden=64, shared_hidden=96), heads=4, kv_groups=2
)


def measured(device: str, small: bool) -> Iterator[tuple[str, Row]]:
    """A table's title and a row of it, as it is measured: grouped products, then whole layers, forward and backward.

    Whatever is compiled is compiled anew: a row's first call is a cold one.
    """
    recipe, shape, wait = (SMALL, (2, 64), 0.2) if small else (NAM56R, (4, 4096), 0.6)
    x_BTD = torch.randn(*shape, recipe.hidden, device=device, dtype=torch.bfloat16)
    yield from (("grouped products, forward", row) for row in _products(recipe, x_BTD, wait))
    with _caches_of_its_own():
        for title, each, makers in _tables(recipe):
            for name, make in makers.items():
                for how in ("compiled", "eager"):
                    yield f"layer, forward and backward, {title}", _row(f"{name}, {how}", make, each, x_BTD, wait)


def _tables(recipe: Recipe) -> Iterator[tuple[str, Recipe, dict[str, Make]]]:
    """Which layers are compared with each other: peers are gated, and Qwen3-MoE has no shared expert."""
    gated = replace(recipe, activation="swiglu")
    yield "relu²", recipe, {"reference": _reference}
    yield "swiglu", gated, {"reference": _reference, "Hugging Face Qwen2-MoE": _hugging_face}
    lone = replace(gated, moe=replace(_moe(gated), shared_hidden=0))
    yield "swiglu, no shared expert", lone, {"reference": _reference, "Hugging Face Qwen3-MoE": _hugging_face}


def _row(name: str, make: Make, recipe: Recipe, x_BTD: Tensor, wait: float) -> Row:
    """One layer, compiled or eager by the end of its name."""

    def measure() -> Row:
        torch.compiler.reset()  # a layer before this one leaves neither guards nor dynamic sizes
        layer, first = make(recipe, x_BTD), None
        if name.endswith("compiled"):
            layer.call = compiled(layer.module, layer.call, "inductor")
            run = _stepped(layer, x_BTD)
            first = _seconds(run, x_BTD)
        else:
            run = _stepped(layer, x_BTD)
        return replace(timed(name, run, flops=_flops(recipe, x_BTD), seconds=wait), first=first)

    return tried(name, measure)


def _seconds(run: Callable[[], None], x_BTD: Tensor) -> float:
    """The time of one call, with what it starts on the device."""
    before = time.perf_counter()
    run()
    if x_BTD.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - before


@contextmanager
def _caches_of_its_own() -> Iterator[None]:
    """An empty folder for what inductor and Triton keep between processes."""
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    before = {name: os.environ[name] for name in names if name in os.environ}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ |= {name: str(Path(folder, name)) for name in names}
        try:
            yield
        finally:
            for name in names:
                del os.environ[name]
            os.environ |= before


def _moe(recipe: Recipe) -> Moe:
    assert recipe.moe is not None
    return recipe.moe


def _flops(recipe: Recipe, x_BTD: Tensor) -> float:
    """Of forward and backward, the products of experts, shared expert and router: 6 a weight and token."""
    moe, matrices = _moe(recipe), 3 if recipe.activation == "swiglu" else 2
    widths = matrices * (moe.top_k * moe.expert_hidden + moe.shared_hidden) + moe.experts
    return 6.0 * x_BTD.shape[0] * x_BTD.shape[1] * recipe.hidden * widths


@dataclass
class _Called:
    """A module and how it is called, so that its gradients can be dropped."""

    module: nn.Module
    call: Callable[[Tensor], Tensor]


Make = Callable[[Recipe, Tensor], _Called]


def _stepped(layer: _Called, x_BTD: Tensor) -> Callable[[], None]:
    """A call forward and backward; gradients of weights are made anew, as after a step."""
    leaf_BTD = x_BTD.clone().requires_grad_()
    dy_BTD = torch.randn_like(x_BTD)

    def run() -> None:
        layer.module.zero_grad(set_to_none=True)
        leaf_BTD.grad = None
        layer.call(leaf_BTD).backward(dy_BTD)  # type: ignore[no-untyped-call]  # torch's

    return run


def _reference(recipe: Recipe, x_BTD: Tensor) -> _Called:
    layer = PARTS.moe(recipe, PARTS).to(x_BTD.device, torch.bfloat16)
    pack = packing(x_BTD)

    def plain(x: Tensor) -> Tensor:
        out: Output = layer(x, pack, {})
        return out.y_BTD

    return _Called(layer, plain)


def _products(recipe: Recipe, x_BTD: Tensor, wait: float) -> Iterator[Row]:
    """Sorted rows through the experts' matrices: even, one expert with four times its share, and half of them idle."""
    moe = _moe(recipe)
    experts = PARTS.experts(recipe, PARTS).to(x_BTD.device, torch.bfloat16)
    assignments = x_BTD.shape[0] * x_BTD.shape[1] * moe.top_k
    sent_SD = torch.randn(assignments, recipe.hidden, device=x_BTD.device, dtype=torch.bfloat16)
    weights = sum(each.numel() for each in experts.parameters())
    flops = 2.0 * assignments * weights / moe.experts
    moved = 2.0 * (weights + assignments * (2 * recipe.hidden + 3 * moe.expert_hidden))  # rows in and out, inner thrice
    for name, ends in _loads(moe.experts, assignments).items():
        ends_E = torch.tensor(ends, device=x_BTD.device)

        def run(ends_E: Tensor = ends_E) -> None:
            with torch.no_grad():
                experts(sent_SD, ends_E)

        yield timed(name, run, flops=flops, bytes=moved, seconds=wait)


def _loads(experts: int, assignments: int) -> dict[str, list[int]]:
    even = [assignments * (e + 1) // experts for e in range(experts)]
    crowd = min(4 * assignments // experts, assignments)
    rest = assignments - crowd
    crowded = [crowd + rest * e // (experts - 1) for e in range(experts)]
    half = [min(assignments, 2 * assignments * (e + 1) // experts) for e in range(experts)]
    return {"even": even, "one expert with four shares": crowded, "half of the experts idle": half}


def _hugging_face(recipe: Recipe, x_BTD: Tensor) -> _Called:
    """Qwen2-MoE's block, whose shared expert has a sigmoid gate, or Qwen3-MoE's, which has none; softmax routers."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import Qwen2MoeConfig, Qwen3MoeConfig
    from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    moe = _moe(recipe)
    sizes: dict[str, Any] = {
        "hidden_size": recipe.hidden, "num_experts": moe.experts, "num_experts_per_tok": moe.top_k,
        "norm_topk_prob": True, "moe_intermediate_size": moe.expert_hidden, "hidden_act": "silu",
    }  # fmt: skip
    if moe.shared_hidden:
        config: Any = Qwen2MoeConfig(shared_expert_intermediate_size=moe.shared_hidden, **sizes)
    else:
        config = Qwen3MoeConfig(**sizes)
    config._experts_implementation = "grouped_mm"  # its fastest from transformers 5 on; older ones ignore it
    layer = (Qwen2MoeSparseMoeBlock if moe.shared_hidden else Qwen3MoeSparseMoeBlock)(config)
    layer = layer.to(x_BTD.device, torch.bfloat16)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.02)

    def call(x: Tensor) -> Tensor:
        out: Any = layer(x)
        y: Tensor = out[0] if isinstance(out, tuple) else out
        return y

    return _Called(layer, call)

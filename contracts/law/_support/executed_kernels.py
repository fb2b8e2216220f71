"""A call through a block whose kernels may come from Transformer Engine."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from contracts.instruments import fixtures, numerics
from contracts.law._support.late import torch
from contracts.spec import BlockCall, Blocks, Facts, Mode, Recipe, Seams, Site, Wish


class Offers(Seams, Blocks):
    """A stack that answers both questions."""


def call_of(
    stack: Blocks, recipe: Recipe, layer: int, mode: Mode, wishes: Mapping[Site, Wish], facts: Facts
) -> BlockCall:
    """A call as training makes it: parameters in float32, activations in the recipe's dtype."""
    element = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[recipe.dtype]
    weights = fixtures.weights(stack.block_weights(recipe, layer, mode))
    x_BTD, dy_BTD = (fixtures.normal(name, (2, 16, recipe.hidden)).to(element) for name in ("x", "dy"))
    return BlockCall(
        recipe=recipe, layer=layer, mode=mode, weights=fixtures.as_arrays(weights, torch.float32),
        x=numerics.array(x_BTD), dy=numerics.array(dy_BTD), kernels=wishes, device=facts.device,
    )  # fmt: skip


Answer = TypeVar("Answer")


def launches_of(run: Callable[[], Answer], device: str, tell: Callable[[frozenset[str]], object]) -> Answer:
    """Run under a profiler, and report the names of operations and kernels: on CUDA of those that took time there."""
    from torch.profiler import ProfilerActivity, profile

    on_cuda = device == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]) as seen:
        answer = run()
    events = seen.key_averages()
    tell(frozenset(each.key for each in events if not on_cuda or each.device_time_total > 0))
    return answer

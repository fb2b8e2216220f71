"""Recipes in FP8, and calls through their blocks. Widths are multiples of 32, but not of 128."""

from collections.abc import Mapping
from dataclasses import replace

from contracts.instruments import fixtures, numerics
from contracts.law._support.late import Tensor, torch
from contracts.law._support.recipes import SMALL
from contracts.spec import BlockCall, Blocks, Dsa, Element, Fp8, Mamba, Mla, Mode, Moe, Mtp, Recipe, Shape

FP8 = replace(
    SMALL, name="small-fp8", dtype="bf16", fp8=Fp8(), hidden=64, ffn_hidden=160, heads=4, kv_groups=2,
    moe=Moe(experts=12, top_k=3, expert_hidden=32, shared_hidden=96),
    mamba=Mamba(heads=4, head_dim=16, state=16, groups=2),
)  # fmt: skip
DENSE = replace(FP8, moe=None)
BF16 = replace(FP8, name="small-bf16", fp8=None)
LATENT = replace(
    FP8, mla=Mla(q_lora=32, kv_lora=16, qk_head=16, qk_rope=16, v_head=16),
    dsa=Dsa(a_ranks=(1,), index_heads=2, index_head_dim=16, top_k=5), mtp=Mtp(depth=2),
)  # fmt: skip


def with_scaling(recipe: Recipe, scaling: str, form: str = "hybrid") -> Recipe:
    return replace(recipe, fp8=Fp8(scaling=scaling, format=form))  # type: ignore[arg-type]  # literals in the tables


def call_of(
    stack: Blocks, recipe: Recipe, layer: int, *,
    mode: Mode = "nemo_native", dtype: Element = "float64", rows: tuple[int, int] = (2, 9), backward: bool = True,
) -> BlockCall:  # fmt: skip
    """A call with drawn weights, x and dy, an empty history and scales of delayed scaling that are all different."""
    shapes = stack.block_weights(recipe, layer, mode)
    weights = fixtures.weights(shapes) | empty_history(shapes)
    x_BTD, dy_BTD = (fixtures.normal(name, (*rows, recipe.hidden)) for name in ("x", "dy"))
    element: torch.dtype = getattr(torch, dtype)
    return BlockCall(
        recipe=replace(recipe, seq_length=max(recipe.seq_length, rows[1])),
        layer=layer,
        mode=mode,
        weights=fixtures.as_arrays(weights, element),
        x=numerics.array(x_BTD.to(element)),
        dy=numerics.array(dy_BTD.to(element)) if backward else None,
    )


def empty_history(shapes: Mapping[str, Shape]) -> dict[str, Tensor]:
    """Buffers of delayed scaling: zero amax histories, and scales at which values of about 1 use a part of the format's
    range.
    """
    found = {}
    for name, shape in shapes.items():
        if "fp8" not in name.split("."):
            continue
        if name.endswith(".amax_history"):
            found[name] = torch.zeros(shape.shape, dtype=torch.float64)
        elif name.endswith(".scale"):
            drawn = fixtures.normal(name, shape.shape).abs()
            found[name] = torch.tensor([[40.0], [70.0], [3000.0]], dtype=torch.float64) * (1 + 0.1 * drawn)
    return found

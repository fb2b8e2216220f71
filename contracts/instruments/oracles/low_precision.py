"""FP8 matmuls as spec/kernel_selection.py defines them, one scaling block at a time, in float64.

Formats: arXiv 2209.05433, table 1. Blocks: arXiv 2412.19437, section 3.3; OCP Microscaling Formats 1.0, section 5.

S rows · I inputs · O outputs · B sequences · T tokens · K experts a token · E experts · D hidden · F inner width
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from contracts.spec import Fp8, Recipe

Format = Literal["e4m3", "e5m2"]
LARGEST: dict[Format, float] = {"e4m3": 448.0, "e5m2": 57344.0}
MANTISSA: dict[Format, int] = {"e4m3": 3, "e5m2": 2}
SMALLEST: dict[Format, int] = {"e4m3": -6, "e5m2": -14}
"""The exponent of the smallest normal number; below it the spacing is constant."""


def rounded(t: Tensor, form: Format) -> Tensor:
    """The nearest numbers of a format, ties to even; numbers out of range saturate.

    Computed from the spacing of each number's binade, without torch's FP8 dtypes.
    """
    single = t.to(torch.float32).double()
    size = single.abs().clamp(max=LARGEST[form])
    exponent = (torch.frexp(size).exponent - 1).clamp(min=SMALLEST[form])
    spacing = torch.ldexp(torch.ones_like(size), exponent - MANTISSA[form])
    return torch.copysign(torch.round(size / spacing) * spacing, single)


def quantised(t_RC: Tensor, form: Format, fp8: Fp8, along: int, square: bool, scale: float | None) -> Tensor:
    """A matmul operand after quantization. The matmul sums over dim `along`; `square` blocks are for weights."""
    rows, columns = t_RC.shape
    high, wide = _block(fp8, rows, columns, along, square)
    out_RC = t_RC.clone()
    for top in range(0, rows, max(high, 1)):
        for left in range(0, columns, max(wide, 1)):
            piece = t_RC[top : top + high, left : left + wide]
            factor = scale if scale is not None else _scale(piece, LARGEST[form], fp8)
            out_RC[top : top + high, left : left + wide] = rounded(piece * factor, form) / factor
    return out_RC


def _block(fp8: Fp8, rows: int, columns: int, along: int, square: bool) -> tuple[int, int]:
    if fp8.scaling in ("tensorwise", "delayed"):
        return rows, columns
    if fp8.scaling == "blockwise" and square:
        return 128, 128
    size = 32 if fp8.scaling == "mxfp8" else 128
    return (1, size) if along == 1 else (size, 1)


def _scale(piece: Tensor, largest: float, fp8: Fp8) -> float:
    amax = float(piece.abs().max()) if piece.numel() else 0.0
    if amax == 0:
        return 1.0
    if fp8.scaling != "mxfp8":
        return largest / amax
    scale = 1.0
    while amax * scale > largest:
        scale /= 2
    while amax * scale * 2 <= largest:
        scale *= 2
    return scale


def product(x_SI: Tensor, weight_OI: Tensor, fp8: Fp8, scales: Tensor | None = None) -> Tensor:
    """x wᵀ with FP8 operands, forward and backward. `scales` (3): of input, weight and gradient, if delayed."""
    given = (None, None, None) if scales is None else tuple(scales.tolist())
    out: Tensor = _Product.apply(x_SI, weight_OI, fp8, given)  # type: ignore[no-untyped-call]  # torch's
    return out


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_SI: Tensor, weight_OI: Tensor, fp8: Fp8, scales: tuple[float | None, ...]) -> Tensor:
        ctx.save_for_backward(x_SI, weight_OI)
        ctx.fp8, ctx.scales = fp8, scales
        x = quantised(x_SI, "e4m3", fp8, 1, False, scales[0])
        return x @ quantised(weight_OI, "e4m3", fp8, 1, True, scales[1]).T

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor, None, None]:
        (x_SI, weight_OI), fp8, scales, dy_SO = ctx.saved_tensors, ctx.fp8, ctx.scales, given[0]
        form: Format = "e5m2" if fp8.format == "hybrid" else "e4m3"
        dx_SI = quantised(dy_SO, form, fp8, 1, False, scales[2]) @ quantised(weight_OI, "e4m3", fp8, 0, True, scales[1])
        dy_OS = quantised(dy_SO, form, fp8, 0, False, scales[2]).T
        return dx_SI, dy_OS @ quantised(x_SI, "e4m3", fp8, 0, False, scales[0]), None, None


def dense(recipe: Recipe, weights: Mapping[str, Tensor], x_BTD: Tensor) -> Tensor:
    """An E block without experts, including its norm: (B, T, D)."""
    h_SD = normed(recipe, weights, x_BTD).flatten(0, 1)
    return _mlp(recipe, weights, "mixer", h_SD).view(x_BTD.shape)


def experts(recipe: Recipe, weights: Mapping[str, Tensor], x_BTD: Tensor, experts_BTK: Tensor) -> Tensor:
    """An E block with experts and softmax gates over the chosen ones; every expert quantizes its own tokens."""
    assert recipe.moe is not None
    assert recipe.fp8 is not None
    h_SD = normed(recipe, weights, x_BTD).flatten(0, 1)
    logits_SE = h_SD @ weights["mixer.router.weight"].T
    gates_SK = logits_SE.gather(1, experts_BTK.flatten(0, 1)).softmax(-1)
    y_SD = _mlp(recipe, weights, "mixer.shared", h_SD)
    for expert in range(recipe.moe.experts):
        tokens, slots = (experts_BTK.flatten(0, 1) == expert).nonzero(as_tuple=True)
        inner = product(h_SD[tokens], weights["mixer.experts.w1"][expert], recipe.fp8,
                        _scales(weights, "mixer.experts.fp8.w1", expert)).relu() ** 2  # fmt: skip
        given = product(inner, weights["mixer.experts.w2"][expert], recipe.fp8,
                        _scales(weights, "mixer.experts.fp8.w2", expert))  # fmt: skip
        y_SD = y_SD.index_add(0, tokens, given * gates_SK[tokens, slots, None])
    return y_SD.view(x_BTD.shape)


def normed(recipe: Recipe, weights: Mapping[str, Tensor], x_BTD: Tensor) -> Tensor:
    return x_BTD / torch.sqrt((x_BTD**2).mean(-1, keepdim=True) + recipe.norm_eps) * weights["norm.weight"]


def _mlp(recipe: Recipe, weights: Mapping[str, Tensor], prefix: str, h_SD: Tensor) -> Tensor:
    fp8 = recipe.fp8
    assert fp8 is not None

    def times(h: Tensor, name: str) -> Tensor:
        return product(h, weights[f"{prefix}.{name}.weight"], fp8, _scales(weights, f"{prefix}.{name}.fp8", 0))

    up_SF = times(h_SD, "w1")
    gated = f"{prefix}.w3.weight" in weights
    inner_SF = up_SF / (1 + torch.exp(-up_SF)) * times(h_SD, "w3") if gated else torch.clamp(up_SF, min=0) ** 2
    return times(inner_SF, "w2")


def _scales(weights: Mapping[str, Tensor], owner: str, matrix: int) -> Tensor | None:
    """The scales of delayed scaling, if the block has them."""
    found = weights.get(f"{owner}.scale")
    return None if found is None else found[:, matrix].detach()

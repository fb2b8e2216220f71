"""Products in FP8: how tensors are quantised, the three products of a matrix, and which matrices have them.

The definition is in spec/kernel_selection.py. Factors are rounded to FP8 and multiplied in float32 at least, which
is what the tensor cores do, so this is no imitation of FP8 but FP8 without its speed. Scaling recipes: tensorwise (the
tensor's own amax), delayed (arXiv 2209.05433: that of the steps before), blockwise (arXiv 2412.19437, section 3.3),
mxfp8 (OCP MX 1.0; the scale is rounded so that nothing saturates, arXiv 2506.08027).

S rows · I inputs · O outputs · E matrices of one site (experts; else 1) · H steps of history
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from contracts.spec import Fp8
from contracts.stacks.reference.model.blocks.attention import LatentAttention
from contracts.stacks.reference.model.blocks.common import Linear
from contracts.stacks.reference.model.blocks.moe import Experts

Format = Literal["e4m3", "e5m2"]
LARGEST: dict[Format, float] = {"e4m3": 448.0, "e5m2": 57344.0}
DTYPES: dict[Format, torch.dtype] = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}

INPUT, WEIGHT, GRADIENT = 0, 1, 2
HISTORY = 16
BLOCK, MX_BLOCK = 128, 32


class Fp8Matmul(nn.Module):
    """x wᵀ of FP8 factors, and both products of its backward pass.

    With delayed scaling it has state: `amax_history` (H, 3, E), whose row 0 is the step's own, and `scale` (3, E).
    Recomputing a pass, or cutting a step into several, changes neither: row 0 keeps the greatest, the scale stays.
    """

    amax_history: Tensor
    scale: Tensor

    def __init__(self, fp8: Fp8, matrices: int = 1) -> None:
        super().__init__()
        self.scaling, self.delayed = fp8.scaling, fp8.scaling == "delayed"
        gradient: Format = "e5m2" if fp8.format == "hybrid" else "e4m3"
        self.formats: tuple[Format, Format, Format] = ("e4m3", "e4m3", gradient)
        if self.delayed:
            self.register_buffer("amax_history", torch.zeros(HISTORY, 3, matrices))
            self.register_buffer("scale", torch.ones(3, matrices))

    def forward(self, x: Tensor, weight_OI: Tensor, matrix: int = 0) -> Tensor:
        y_SO = _products(x.reshape(-1, x.shape[-1]), weight_OI, self, matrix)
        return y_SO.reshape(*x.shape[:-1], weight_OI.shape[0])

    def grouped(self, x_SI: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
        """Each expert's rows by its own matrix; zeros for rows after the last end."""
        ends = [0, *ends_E.tolist()]
        given = [self(x_SI[ends[e] : ends[e + 1]], weight_OI, e) for e, weight_OI in enumerate(weight_EOI)]
        return torch.cat([*given, x_SI.new_zeros(len(x_SI) - ends[-1], weight_EOI.shape[1])])

    def quantise(self, t_RC: Tensor, role: int, along: int, matrix: int) -> Tensor:
        """A factor as FP8 has it, read back; `along` is the dim that the product sums over."""
        form = self.formats[role]
        scale = self.scale_of(t_RC, role, along, matrix)
        return self.cast(t_RC * scale, form).to(t_RC.dtype) / scale

    def cast(self, t: Tensor, form: Format) -> Tensor:
        """To the nearest of a format. The clamp is ours: torch's cast to e5m2 overflows to infinity."""
        return t.clamp(-LARGEST[form], LARGEST[form]).to(DTYPES[form])

    def scale_of(self, t_RC: Tensor, role: int, along: int, matrix: int) -> Tensor:
        """The scale of a factor, in a shape that broadcasts over it."""
        largest = LARGEST[self.formats[role]]
        if self.scaling == "delayed":
            if self.training:  # the amax of a validation is no step's
                self.record(t_RC, role, matrix)
            return self.scale[role, matrix].to(t_RC.dtype)
        if self.scaling == "tensorwise":
            return self.fitting(amax(t_RC), largest)
        if self.scaling == "mxfp8":
            shared_RC = self.fitting(self.over_blocks(t_RC, MX_BLOCK, along), largest)
            return self.power_of_two(shared_RC)
        amax_RC = self.over_blocks(t_RC, BLOCK, along)
        if role == WEIGHT:  # a square: the other dim as well
            amax_RC = self.over_blocks(amax_RC, BLOCK, 1 - along)
        return self.fitting(amax_RC, largest)

    def fitting(self, amax: Tensor, largest: float) -> Tensor:
        """The scale at which amax becomes the largest of the format."""
        return torch.where(amax > 0, largest / amax, 1.0)

    def power_of_two(self, scale: Tensor) -> Tensor:
        """The greatest power of two that is not above a scale, so that nothing saturates."""
        mantissa, exponent = torch.frexp(scale)  # mantissa in 1/2 … 1
        return torch.ldexp(torch.ones_like(mantissa), exponent - 1)

    def over_blocks(self, t_RC: Tensor, size: int, along: int) -> Tensor:
        """amax of the block that each element is in, blocks lying along a dim; the last may be short."""
        found = [amax(each, along).expand_as(each) for each in torch.split(t_RC, size, dim=along)]
        return torch.cat(found, dim=along) if found else t_RC

    @torch.no_grad()
    def record(self, t_RC: Tensor, role: int, matrix: int) -> None:
        """Row 0 of the ring, raised to what a pass has met."""
        row = self.amax_history[0, role, matrix]
        row.copy_(torch.maximum(row, amax(t_RC).to(row.dtype)))

    @torch.no_grad()
    def advance(self) -> None:
        """The end of an optimizer step: scales from the whole ring, and a clear row 0 for the next."""
        if not self.delayed:
            return
        largest_3E = torch.tensor([LARGEST[form] for form in self.formats]).to(self.scale)[:, None]
        amax_3E = self.amax_history.amax(0)
        self.scale.copy_(torch.where(amax_3E > 0, largest_3E / amax_3E, self.scale))
        self.amax_history.copy_(self.amax_history.roll(1, 0))
        self.amax_history[0] = 0


class _Products(torch.autograd.Function):
    """y = q(x) q(w)ᵀ, dx = q(dy) q(w), dw = q(dy)ᵀ q(x): each factor quantised along the dim that its product sums."""

    @staticmethod
    def forward(ctx: Any, x_SI: Tensor, weight_OI: Tensor, product: Fp8Matmul, matrix: int) -> Tensor:
        ctx.save_for_backward(x_SI, weight_OI)
        ctx.product, ctx.matrix = product, matrix
        x, weight = _wide(x_SI), _wide(weight_OI, x_SI)
        y_SO = product.quantise(x, INPUT, 1, matrix) @ product.quantise(weight, WEIGHT, 1, matrix).mT
        return y_SO.to(x_SI.dtype)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor, None, None]:
        x_SI, weight_OI = ctx.saved_tensors
        product, matrix = ctx.product, ctx.matrix
        x, weight, dy_SO = _wide(x_SI), _wide(weight_OI, x_SI), _wide(given[0])
        dx_SI = product.quantise(dy_SO, GRADIENT, 1, matrix) @ product.quantise(weight, WEIGHT, 0, matrix)
        dw_OI = product.quantise(dy_SO, GRADIENT, 0, matrix).mT @ product.quantise(x, INPUT, 0, matrix)
        return dx_SI.to(x_SI.dtype), dw_OI.to(weight_OI.dtype), None, None


_products = cast(Callable[[Tensor, Tensor, Fp8Matmul, int], Tensor], _Products.apply)


class Fp8Conversion:
    """Which matrices of a mixer have FP8 products, and giving them those.

    In: projections of A, M and R, MLPs, experts. Out, besides what spec/kernel_selection.py keeps out: the projections
    that make time steps, decays, mixing weights, gates of forgetting and angles (recurrences raise their errors to
    powers), the indexer (it chooses, as the router does), a wkv_b that sparse attention absorbs (it multiplies no
    activations), and the heads that look ahead.
    """

    kept_out: frozenset[str] = frozenset({"wdt", "wa", "wtrap", "wangle", "wf"})
    product: type[Fp8Matmul] = Fp8Matmul

    def __init__(self, fp8: Fp8) -> None:
        self.fp8 = fp8

    def applied(self, mixer: nn.Module) -> nn.Module:
        for name, module in [*mixer.named_modules()]:
            if isinstance(module, Linear) and self.takes(name, mixer):
                module.fp8 = self.product(self.fp8)
            elif isinstance(module, Experts):
                matrices = {each: held for each, held in module.named_parameters() if held.dim() == 3}
                held = {each: self.product(self.fp8, len(weight)) for each, weight in matrices.items()}
                module.fp8 = nn.ModuleDict(held)
        return mixer

    def takes(self, name: str, mixer: nn.Module) -> bool:
        """Whether a matrix, by its name in the mixer, has FP8 products."""
        path, attention = name.split("."), getattr(mixer, "attention", mixer)
        absorbed = isinstance(attention, LatentAttention) and attention.indexer is not None
        return not (path[-1] in self.kept_out or "indexer" in path or (absorbed and path[-1] == "wkv_b"))


def quantised(model: nn.Module) -> Iterator[str]:
    """The names of the weights that have FP8 products, found in a model."""
    for name, module in model.named_modules():
        if isinstance(module, Linear) and module.fp8 is not None:
            yield f"{name}.weight"
        elif isinstance(module, Experts) and module.fp8 is not None:
            yield from (f"{name}.{each}" for each in module.fp8)


def advance_scales(model: nn.Module) -> None:
    """The end of an optimizer step, for every product of a model."""
    for module in model.modules():
        if isinstance(module, Fp8Matmul):
            module.advance()


def amax(t: Tensor, along: int | None = None) -> Tensor:
    """The greatest magnitude; 0 of nothing."""
    if along is not None:
        return t.abs().amax(along, keepdim=True) if t.numel() else t.abs()
    return t.abs().amax() if t.numel() else t.new_zeros(())


def _wide(t: Tensor, like: Tensor | None = None) -> Tensor:
    """In float32, or in the dtype of the activations if that is wider."""
    return t.to(torch.promote_types((t if like is None else like).dtype, torch.float32))

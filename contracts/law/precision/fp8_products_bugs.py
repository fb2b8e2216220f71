"""FP8 products with one bug each: formats, scales, blocks, clamps, the quantised tensor, the widths that are
accepted."""

from dataclasses import replace

import torch
from torch import Tensor

from contracts.law._bugs.numeric import GRADIENT, INPUT, WEIGHT, Fp8Matmul, Reference, broken, derived
from contracts.spec import Degrees, Layout, Recipe, Refused, refuse
from contracts.stacks.reference.model.blocks.fp8 import DTYPES, LARGEST, amax


@broken(Fp8Matmul, "__init__", "PREC-01d[tensorwise]: y differs")
def exchanges_the_formats(init, self, fp8, matrices=1):
    """hybrid is swapped: e5m2 in the forward pass, and gradients in e4m3."""
    init(self, fp8, matrices)
    self.formats = ("e5m2", "e5m2", "e4m3") if fp8.format == "hybrid" else self.formats


@broken(Fp8Matmul, "__init__", "PREC-01d[tensorwise]: gradient norm.weight differs")
def ignores_hybrid(init, self, fp8, matrices=1):
    """Gradients are in e4m3 whatever the recipe says; the forward pass is right."""
    init(self, fp8, matrices)
    self.formats = ("e4m3", "e4m3", "e4m3")


@broken(Fp8Matmul, "__init__", "PREC-01d[tensorwise-e4m3]: gradient norm.weight differs")
def always_hybrid(init, self, fp8, matrices=1):
    """The converse: format e4m3 does not reach the backward pass."""
    init(self, fp8, matrices)
    self.formats = ("e4m3", "e4m3", "e5m2")


@broken(Fp8Matmul, "fitting", "PREC-01d[tensorwise-swiglu]: y differs")
def inverts_the_scale(fitting, self, amax, largest):
    """The factor that dequantises is used to quantise, so everything drowns near zero."""
    return 1 / fitting(self, amax, largest)


@broken(Fp8Matmul, "fitting", "PREC-01d[tensorwise-float32]: y differs", "PREC-01e[tensorwise]: y differs")
def scales_by_another_tensor(fitting, self, amax, largest):
    """Every scale of a matrix uses the first amax that it met, which was its input's."""
    if self.scaling != "tensorwise":
        return fitting(self, amax, largest)
    self.last = amax if not hasattr(self, "last") else self.last
    return fitting(self, self.last, largest)


@broken(Fp8Matmul, "scale_of", "PREC-01d[tensorwise]: y differs")
def scales_by_row(scale_of, self, t_RC, role, along, matrix):
    """Scaling is row-wise under the name of tensorwise: more exact, but another recipe."""
    if self.scaling == "tensorwise":
        return self.fitting(amax(t_RC, 1), LARGEST[self.formats[role]])
    return scale_of(self, t_RC, role, along, matrix)


@broken(Fp8Matmul, "over_blocks", "PREC-01d[blockwise]: y differs", "PREC-01d[mxfp8]: y differs")
def blocks_along_the_other_dim(over_blocks, self, t_RC, size, along):
    """A block lies across the summed dim, so its scale cannot be factored out of the sum."""
    return over_blocks(self, t_RC, size, 1 - along)


@broken(Fp8Matmul, "scale_of", "PREC-01d[mxfp8-e4m3]: gradient mixer.w2.weight differs")
def keeps_the_forward_blocks(scale_of, self, t_RC, role, along, matrix):
    """The forward pass's quantised factors are transposed and reused, so their blocks lie across the summed dim."""
    return scale_of(self, t_RC, role, 1 if role != GRADIENT else along, matrix)


@broken(Fp8Matmul, "scale_of", "PREC-01d[blockwise]: y differs")
def weights_in_stripes(scale_of, self, t_RC, role, along, matrix):
    """Weights have blocks of 1 x 128, as activations do, instead of 128 x 128."""
    return scale_of(self, t_RC, INPUT if role == WEIGHT else role, along, matrix)


@broken(Fp8Matmul, "power_of_two", "PREC-01d[mxfp8]: y differs")
def keeps_the_scale_in_float32(power_of_two, self, scale):
    """The scale of an mxfp8 block should be a power of two with eight exponent bits; here it is any float32."""
    return scale


@broken(Fp8Matmul, "power_of_two", "PREC-01d[mxfp8-e4m3]: y differs")
def rounds_the_scale_to_the_nearest(power_of_two, self, scale):
    """The scale is rounded to the nearest power of two; rounded up, it saturates the block's greatest element."""
    return torch.exp2(torch.log2(scale).round())


@broken(Fp8Matmul, "cast", "PREC-01d[delayed]: y differs")
def rounds_towards_zero(cast, self, t, form):
    """The cast truncates bits, so every product is slightly too small."""
    cut = t.clamp(-LARGEST[form], LARGEST[form])
    spacing = torch.exp2(torch.log2(cut.abs().clamp(min=2.0**-20)).floor() - (3 if form == "e4m3" else 2))
    return torch.trunc(cut / spacing) * spacing


@broken(Fp8Matmul, "cast", "PREC-01f[gradient]: is not finite")
def leaves_the_clamp_to_the_cast(cast, self, t, form):
    """torch's cast to e4m3 saturates, so the clamp was dropped; its cast to e5m2 overflows to infinity."""
    return t.to(DTYPES[form])


@broken(Fp8Matmul, "cast", "PREC-01f[weight]: y differs", "PREC-01f[input]: y differs")
def drops_what_overflows(cast, self, t, form):
    """Over-correction: values that do not fit are set to zero along with those that are not finite."""
    return cast(self, torch.where(t.abs() > LARGEST[form], 0.0, t), form)


@broken(Fp8Matmul, "scale_of", "PREC-01f[gradient-vanishes]: gradient mixer.w2.weight differs")
def falls_back_to_the_current_scale(scale_of, self, t_RC, role, along, matrix):
    """Delayed scaling silently uses the current tensor where its scale is poor, which is neither recipe."""
    scale = scale_of(self, t_RC, role, along, matrix)
    if self.delayed and bool((t_RC.abs().amax() * scale < 1).all()):
        return self.fitting(amax(t_RC), LARGEST[self.formats[role]])
    return scale


@derived("PREC-01e[tensorwise]: y differs")
class OneScaleForAllTokens(Fp8Matmul):
    """The tokens of all experts are quantised as one tensor before they are dispatched."""

    def grouped(self, x_SI: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
        used = x_SI[: int(ends_E[-1])]
        common = amax(used)
        self.__dict__["common"] = common
        return super().grouped(x_SI, weight_EOI, ends_E)

    def scale_of(self, t_RC: Tensor, role: int, along: int, matrix: int) -> Tensor:
        if role == INPUT and "common" in self.__dict__ and self.scaling == "tensorwise":
            return self.fitting(self.__dict__["common"].to(t_RC.dtype), LARGEST["e4m3"])
        return super().scale_of(t_RC, role, along, matrix)


@broken(Fp8Matmul, "scale_of", "PREC-01e[delayed]: y differs")
def every_expert_has_the_first_ones_scale(scale_of, self, t_RC, role, along, matrix):
    """Delayed scaling keeps its state per module, and twelve experts are one module."""
    return scale_of(self, t_RC, role, along, 0)


@broken(Fp8Matmul, "grouped", "PREC-01e[mxfp8]: y differs")
def slides_past_an_empty_expert(grouped, self, x_SI, weight_EOI, ends_E):
    """Experts without tokens have no group in the grouped product, so the others move up by one."""
    return grouped(self, x_SI, weight_EOI.roll(1, 0) if bool((ends_E.diff() == 0).any()) else weight_EOI, ends_E)


@broken(Reference, "divide", "PREC-02a[inner-widths]: was accepted, expected a refusal")
def leaves_widths_to_the_library(divide, self, recipe, degrees, world, layout):
    """The division checks ranks only; the library that multiplies refuses at the first step."""
    return divide(self, replace(recipe, fp8=None), degrees, world, layout)


@broken(
    Reference, "divide", "PREC-02a[everywhere]: mamba.groups, mamba.head_dim, mamba.state, seq_length are not refused"
)
def refuses_the_first(divide, self, recipe, degrees, world, layout):
    """The refusal names two fields at a time, so finding every bad width takes several runs."""
    try:
        return divide(self, recipe, degrees, world, layout)
    except Refused as refused:
        raise Refused(refused.refusals[:2]) from None


@broken(Reference, "divide", "PREC-02a[mxfp8-of-16]: was accepted, expected a refusal")
def one_alignment_for_all(divide, self, recipe, degrees, world, layout):
    """Multiples of 16 serve every recipe, although mxfp8 blocks have 32 elements."""
    if recipe.fp8 is not None:
        recipe = replace(recipe, fp8=replace(recipe.fp8, scaling="tensorwise"))
    return divide(self, recipe, degrees, world, layout)


@broken(Reference, "divide", "PREC-02a[on-one-rank]: was accepted, expected a refusal")
def looks_at_whole_widths(divide, self, recipe, degrees, world, layout):
    """176 is a multiple of 16; its half, which a rank has under tp 2, is not."""
    divide(self, recipe, replace(degrees, tp=1), world, layout)
    return divide(self, replace(recipe, fp8=None), degrees, world, layout)


@broken(Reference, "divide", "PREC-02a[latent]: mla.q_lora, mla.qk_rope are not refused for fp8")
def passes_over_latent_widths(divide, self, recipe, degrees, world, layout):
    """The rule was written for grouped-query attention and skips MLA."""
    try:
        return divide(self, recipe, degrees, world, layout)
    except Refused as refused:
        left = [each for each in refused.refusals if not each.field.startswith("mla.")]
        raise Refused(left or refuse("hidden", recipe.hidden, "does not suit", "round it").refusals) from None


class _Refusing(Reference):
    """Refuses fp8 for a number that is no multiple of 16."""

    def number(self, recipe: Recipe) -> tuple[str, int]:
        raise NotImplementedError

    def divide(self, recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
        name, value = self.number(recipe)
        if recipe.fp8 is not None and value % 16:
            raise refuse(name, value, "must be a multiple of 16 for fp8", "choose a multiple")
        return super().divide(recipe, degrees, world, layout)


@broken(_Refusing, "number", "PREC-02b[odd-vocabulary-and-experts]: vocab = 251: must be a multiple of 16 for fp8")
def wants_an_aligned_vocabulary(number, self, recipe):
    """Over-correction: the width of the output projection is refused, although it is not in FP8."""
    return "vocab", recipe.vocab


@broken(_Refusing, "number", "PREC-02b[three-heads]: mamba.heads = 3: must be a multiple of 16 for fp8")
def wants_aligned_heads(number, self, recipe):
    """The number of heads is refused, although the time-step projection, with one output per head, is not in FP8."""
    return "mamba.heads", recipe.mamba.heads


@broken(_Refusing, "number", "PREC-02b[what-is-not-there]: ffn_hidden = 100: must be a multiple of 16 for fp8")
def wants_the_width_of_what_is_not_there(number, self, recipe):
    """The dense MLP's width is refused in a model of experts, which has the field but no dense MLP."""
    return "ffn_hidden", recipe.ffn_hidden


@broken(Reference, "divide", "PREC-02b[sixteen]: must be a multiple of 32 for fp8 (mxfp8)")
def wants_thirty_two_of_all(divide, self, recipe, degrees, world, layout):
    """The strictest recipe's rule applies to every recipe."""
    if recipe.fp8 is not None:
        recipe = replace(recipe, fp8=replace(recipe.fp8, scaling="mxfp8"))
    return divide(self, recipe, degrees, world, layout)

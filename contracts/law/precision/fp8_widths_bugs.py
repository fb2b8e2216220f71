"""Stacks that accept widths which FP8 cannot take, or refuse widths which it can."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.spec import Degrees, Layout, Recipe, Refused, refuse
from contracts.stacks.reference.stack import Reference


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

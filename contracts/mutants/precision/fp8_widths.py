"""Stacks that accept widths which FP8 cannot take, or refuse widths which it can."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.spec.errors import Refused, refuse
from contracts.spec.recipe import Recipe
from contracts.spec.topology import Degrees, Layout


@mutant(of="PREC-02a", case="inner-widths", says="was accepted, expected a refusal")
class LeavesWidthsToTheLibrary(Exchanged):
    """The division checks ranks only; the library that multiplies refuses at the first step."""

    def divide(self, recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
        return super().divide(replace(recipe, fp8=None), degrees, world, layout)


@mutant(of="PREC-02a", case="everywhere", says="mamba.groups, mamba.head_dim, mamba.state, seq_length are not refused")
class RefusesTheFirst(Exchanged):
    """The refusal names two fields at a time, so finding every bad width takes several runs."""

    def divide(self, recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
        try:
            return super().divide(recipe, degrees, world, layout)
        except Refused as refused:
            raise Refused(refused.refusals[:2]) from None


@mutant(of="PREC-02a", case="mxfp8-of-16", says="was accepted, expected a refusal")
class OneAlignmentForAll(Exchanged):
    """Multiples of 16 serve every recipe, although mxfp8 blocks have 32 elements."""

    def divide(self, recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
        if recipe.fp8 is not None:
            recipe = replace(recipe, fp8=replace(recipe.fp8, scaling="tensorwise"))
        return super().divide(recipe, degrees, world, layout)


@mutant(of="PREC-02a", case="on-one-rank", says="was accepted, expected a refusal")
class LooksAtWholeWidths(Exchanged):
    """176 is a multiple of 16; its half, which a rank has under tp 2, is not."""

    def divide(self, recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
        super().divide(recipe, replace(degrees, tp=1), world, layout)
        return super().divide(replace(recipe, fp8=None), degrees, world, layout)


@mutant(of="PREC-02a", case="latent", says="mla.q_lora, mla.qk_rope are not refused for fp8")
class PassesOverLatentWidths(Exchanged):
    """The rule was written for grouped-query attention and skips MLA."""

    def divide(self, recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
        try:
            return super().divide(recipe, degrees, world, layout)
        except Refused as refused:
            left = [each for each in refused.refusals if not each.field.startswith("mla.")]
            raise Refused(left or refuse("hidden", recipe.hidden, "does not suit", "round it").refusals) from None


class _Refusing(Exchanged):
    """Refuses fp8 for a number that is no multiple of 16."""

    def number(self, recipe: Recipe) -> tuple[str, int]:
        raise NotImplementedError

    def divide(self, recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
        name, value = self.number(recipe)
        if recipe.fp8 is not None and value % 16:
            raise refuse(name, value, "must be a multiple of 16 for fp8", "choose a multiple")
        return super().divide(recipe, degrees, world, layout)


@mutant(of="PREC-02b", case="odd-vocabulary-and-experts", says="vocab = 251: must be a multiple of 16 for fp8")
class WantsAnAlignedVocabulary(_Refusing):
    """Over-correction: the width of the output projection is refused, although it is not in FP8."""

    def number(self, recipe: Recipe) -> tuple[str, int]:
        return "vocab", recipe.vocab


@mutant(of="PREC-02b", case="three-heads", says="mamba.heads = 3: must be a multiple of 16 for fp8")
class WantsAlignedHeads(_Refusing):
    """The number of heads is refused, although the time-step projection, with one output per head, is not in FP8."""

    def number(self, recipe: Recipe) -> tuple[str, int]:
        return "mamba.heads", recipe.mamba.heads


@mutant(of="PREC-02b", case="what-is-not-there", says="ffn_hidden = 100: must be a multiple of 16 for fp8")
class WantsTheWidthOfWhatIsNotThere(_Refusing):
    """The dense MLP's width is refused in a model of experts, which has the field but no dense MLP."""

    def number(self, recipe: Recipe) -> tuple[str, int]:
        return "ffn_hidden", recipe.ffn_hidden


@mutant(of="PREC-02b", case="sixteen", says="must be a multiple of 32 for fp8 (mxfp8)")
class WantsThirtyTwoOfAll(Exchanged):
    """The strictest recipe's rule applies to every recipe."""

    def divide(self, recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
        if recipe.fp8 is not None:
            recipe = replace(recipe, fp8=replace(recipe.fp8, scaling="mxfp8"))
        return super().divide(recipe, degrees, world, layout)

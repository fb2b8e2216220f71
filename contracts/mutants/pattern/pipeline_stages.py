"""Stacks that cut a pipeline with one fault: rounding, tiling, written-out stages, degrees of another run."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.launch import Lane, Launch
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.stack import Reference


@mutant(of="PAT-08", case="nam56r-pp4", says="the stage from layer 14 (1-based) is AEMEAEMEAEMRA")
class TilesEachStageFromItsOwnStart(Reference):
    """Each stage tiles the pattern from its own first layer: all lengths are right, and only the first stage's blocks
    are.
    """

    def stages(self, pattern: str, depth: int, pp: int) -> tuple[str, ...]:
        right = super().stages(pattern, depth, pp)
        return tuple(super(type(self), self).render(pattern, len(stage)) for stage in right)


@mutant(of="PAT-08", case="nam56r-pp26", says="a legal input was refused")
class KnowsOnlyUsualDegrees(Reference):
    """Over-correction: accepts only the degrees that were run before: 1, 2, 4 and 13."""

    def stages(self, pattern: str, depth: int, pp: int) -> tuple[str, ...]:
        return super().stages(pattern, depth, pp if pp in (1, 2, 4, 13) else 0)


@mutant(of="PAT-08a", case="30-layers-pp4", says="expected a refusal", bugs=("HYB-11",))
class RoundsStagesDown(Reference):
    """Gives each stage depth // pp layers: of 30 layers over 4 stages, 28 are built."""

    def stages(self, pattern: str, depth: int, pp: int) -> tuple[str, ...]:
        return super().stages(pattern, depth // max(pp, 1) * max(pp, 1), pp)


@mutant(of="PAT-08a", case="pp3", says="expected a refusal")
class GivesTheRestToTheLastStage(Reference):
    """Over-correction: gives the remainder to the last stage, which nobody asked to be the slowest."""

    def stages(self, pattern: str, depth: int, pp: int) -> tuple[str, ...]:
        if pp < 1 or depth < pp:
            return super().stages(pattern, depth, pp)
        size, letters = depth // pp, self.render(pattern, depth)
        return (*(letters[i * size : (i + 1) * size] for i in range(pp - 1)), letters[(pp - 1) * size :])


@mutant(of="PAT-08b", case="fewer-on-the-ends", says="the stages are", bugs=("HYB-01",))
class SlicesEvenly(Reference):
    """Written-out stages are joined and cut evenly again: the right blocks on the wrong ranks."""

    def stages(self, pattern: str, depth: int, pp: int) -> tuple[str, ...]:
        letters = pattern.replace("|", "")
        size = -(-len(letters) // pp)
        return tuple(letters[start : start + size] for start in range(0, len(letters), size))


@mutant(of="PAT-08b", case="three-over-two", says="expected a refusal")
class GivesTheFirstRankTwoStages(Reference):
    """Deals out segments whose number is not a multiple of pp, so one rank gets an extra chunk."""

    def stages(self, pattern: str, depth: int, pp: int) -> tuple[str, ...]:
        return super().stages(pattern, depth, pattern.count("|") + 1)


@mutant(of="PAT-08c", case="pp2-becomes-4", says="expected (7, 7, 7, 7) for pp 4", bugs=("HYB-15",))
class KeepsTheRecipesLayout(Reference):
    """The layout is computed when the recipe is made, and the lane overrides the pipeline degree afterwards."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        cut = "|".join(self.stages(recipe.pattern, recipe.depth, recipe.degrees.pp))
        return super().launch(replace(recipe, pattern=cut), replace(lane, degrees=None)) if lane.degrees else (
            super().launch(recipe, lane)
        )  # fmt: skip

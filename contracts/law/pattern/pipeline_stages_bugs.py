"""Stacks that cut a pipeline with one fault: rounding, tiling, written-out stages, degrees of another run."""

from dataclasses import replace

from contracts.contract import mutant
from contracts.law._bugs.broken import broken
from contracts.stacks.reference.stack import Reference


@mutant(of="PAT-08", case="nam56r-pp4", says="the stage from layer 14 (1-based) is AEMEAEMEAEMRA")
class TilesEachStageFromItsOwnStart(Reference):
    """Each stage tiles the pattern from its own first layer: all lengths are right, and only the first stage's blocks
    are.
    """

    def stages(self, pattern: str, depth: int, pp: int) -> tuple[str, ...]:
        right = super().stages(pattern, depth, pp)
        return tuple(super(type(self), self).render(pattern, len(stage)) for stage in right)


@broken(Reference, "stages", "PAT-08[nam56r-pp26]: a legal input was refused")
def knows_only_usual_degrees(stages, self, pattern, depth, pp):
    """Over-correction: accepts only the degrees that were run before: 1, 2, 4 and 13."""
    return stages(self, pattern, depth, pp if pp in (1, 2, 4, 13) else 0)


@broken(Reference, "stages", "PAT-08a[30-layers-pp4]: expected a refusal", bugs=("HYB-11",))
def rounds_stages_down(stages, self, pattern, depth, pp):
    """Gives each stage depth // pp layers: of 30 layers over 4 stages, 28 are built."""
    return stages(self, pattern, depth // max(pp, 1) * max(pp, 1), pp)


@broken(Reference, "stages", "PAT-08a[pp3]: expected a refusal")
def gives_the_rest_to_the_last_stage(stages, self, pattern, depth, pp):
    """Over-correction: gives the remainder to the last stage, which nobody asked to be the slowest."""
    if pp < 1 or depth < pp:
        return stages(self, pattern, depth, pp)
    size, letters = depth // pp, self.render(pattern, depth)
    return (*(letters[i * size : (i + 1) * size] for i in range(pp - 1)), letters[(pp - 1) * size :])


@broken(Reference, "stages", "PAT-08b[fewer-on-the-ends]: the stages are", bugs=("HYB-01",))
def slices_evenly(stages, self, pattern, depth, pp):
    """Written-out stages are joined and cut evenly again: the right blocks on the wrong ranks."""
    letters = pattern.replace("|", "")
    size = -(-len(letters) // pp)
    return tuple(letters[start : start + size] for start in range(0, len(letters), size))


@broken(Reference, "stages", "PAT-08b[three-over-two]: expected a refusal")
def gives_the_first_rank_two_stages(stages, self, pattern, depth, pp):
    """Deals out segments whose number is not a multiple of pp, so one rank gets an extra chunk."""
    return stages(self, pattern, depth, pattern.count("|") + 1)


@broken(Reference, "launch", "PAT-08c[pp2-becomes-4]: expected (7, 7, 7, 7) for pp 4", bugs=("HYB-15",))
def keeps_the_recipes_layout(launch, self, recipe, lane):
    """The layout is computed when the recipe is made, and the lane overrides the pipeline degree afterwards."""
    cut = "|".join(self.stages(recipe.pattern, recipe.depth, recipe.degrees.pp))
    return launch(self, replace(recipe, pattern=cut), replace(lane, degrees=None)) if lane.degrees else (
        launch(self, recipe, lane)
    )  # fmt: skip

"""Pipelines over drawn patterns, cuts and microbatches: the step of one rank, whatever is drawn."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.instruments.ranks import gathered
from contracts.law._support import pipeline_run as stages
from contracts.law._support.step_comparison import loss_difference, tensor_differences
from contracts.law._support.training_run import ROWS_OF_16, batch
from contracts.spec import Degrees, Execution, Mtp, Recipe
from contracts.stacks.reference.stack import Reference

DRAWN = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def _pipelines(draw: st.DrawFn) -> tuple[Recipe, Execution, int]:
    """A recipe cut into stages, how it is run on two ranks, and the rows of its batch."""
    each = draw(st.integers(1, 2))
    segments = draw(st.lists(st.text("AEMR", min_size=1, max_size=2), min_size=2 * each, max_size=2 * each))
    recipe = replace(
        stages.STAGED, pattern="|".join(segments), depth=sum(map(len, segments)),
        untied_embeddings=draw(st.booleans()), mtp=draw(st.sampled_from([None, Mtp(depth=1, loss_weight=0.4)])),
    )  # fmt: skip
    count = draw(st.sampled_from([2, 4] if each == 2 else [2, 3, 4]))
    execution = Execution(
        world=2, degrees=Degrees(pp=2), microbatches=count, recompute=draw(st.booleans()),
        schedule="1f1b" if each == 1 else "interleaved",
    )  # fmt: skip
    return recipe, execution, count * draw(st.integers(1, 2))


@pytest.mark.dist(world=2)
def test_a_random_pipelines_step_equals_one_ranks() -> None:
    @DRAWN
    @given(_pipelines())
    def holds(drawn: tuple[Recipe, Execution, int]) -> None:
        recipe, execution, rows = drawn
        given = (batch("drawn", recipe.vocab, tuple(ROWS_OF_16[row % 4] for row in range(rows))),)
        ((one, many),) = stages.one_rank_and_many(Reference(), recipe, execution, given, "gradients")
        words = loss_difference(one, many, bound=stages.LOSS)
        words = words or tensor_differences(one, many, "the gradient of", many.gradients, one.gradients)
        assert not any(gathered(words)), words or "another rank differs"

    holds()

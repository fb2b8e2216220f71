"""Drawn windows of unequal microbatches on two ranks: the step of one rank, whatever is drawn."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.instruments.ranks import gathered
from contracts.law._support.multi_rank_run import SPREAD, own_axis
from contracts.law._support.step_comparison import loss_difference, tensor_differences
from contracts.law._support.training_run import batch, large_expert_weights
from contracts.spec import Execution, Recipe, Session, Tokens
from contracts.stacks.reference.stack import Reference

DRAWN = settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
LAYOUTS: tuple[tuple[str, Execution], ...] = (
    ("AEM", own_axis(2)),
    ("AEM", own_axis(2, fsdp=True)),
    ("AEM", own_axis(2, tp=2, sp=True)),
    ("AE|M", own_axis(2, pp=2)),
    ("A|E|M|E", replace(own_axis(2, pp=2), schedule="interleaved")),
)


@st.composite
def _windows(draw: st.DrawFn) -> tuple[Recipe, Execution, tuple[Tokens, ...]]:
    """A recipe, how it is run on two ranks, and 2 or 4 microbatches of 2 or 3 rows and an even number of tokens."""
    pattern, execution = draw(st.sampled_from(LAYOUTS))
    found = []
    for number in range(draw(st.sampled_from([2, 4]))):
        length = 2 * draw(st.integers(1, 8))
        rows = tuple(((length,), draw(st.integers(0, length))) for _ in range(draw(st.integers(1, 2))))
        found.append(batch(f"drawn {number}", SPREAD.vocab, (((length,), 0), *rows)))
    depth = len(pattern.replace("|", ""))
    return replace(SPREAD, pattern=pattern, depth=depth), replace(execution, microbatches=len(found)), tuple(found)


@pytest.mark.dist(world=2)
def test_a_step_with_random_uneven_microbatches_equals_one_ranks() -> None:
    @DRAWN
    @given(_windows())
    def holds(drawn: tuple[Recipe, Execution, tuple[Tokens, ...]]) -> None:
        recipe, execution, window = drawn
        session = Session(
            recipe=recipe, steps=1, execution=replace(execution, precision="float64"), windows=(window,),
            weights=large_expert_weights(Reference(), recipe), observe=frozenset({"gradients"}),
        )  # fmt: skip
        alone = replace(session, execution=Execution(microbatches=len(window), precision="float64"))
        (want,), (got,) = Reference().train(alone).steps, Reference().train(session).steps
        words = loss_difference(want, got) or tensor_differences(
            want, got, "the gradient of", got.gradients, want.gradients
        )
        assert not any(gathered(words)), words or "another rank differs"

    holds()

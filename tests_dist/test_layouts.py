"""Drawn layouts over drawn models and batches: the step of one rank, whatever is drawn, gradient by gradient."""

from dataclasses import replace

import pytest

from contracts import instruments
from contracts.harness.plugin import SLOW_S
from contracts.instruments.ranks import gathered
from contracts.law._support import multi_rank_run as spread
from contracts.law._support.step_comparison import loss_difference, tensor_differences
from contracts.law._support.training_run import batch, drawn_weights
from contracts.stacks.reference.stack import Reference
from tests_dist._drawn import Drawn, cells, layouts

DRAWN = {2: cells(2, 18), 4: cells(4, 46), 8: cells(8, 5)}  # world → name → cell
QUICK = 6  # one of so many is among the quick tests


def _differs(drawn: Drawn) -> str:
    """In what the step of all ranks differs from the step of one, in words."""
    recipe, execution, rows = drawn
    given = (batch("drawn", recipe.vocab, rows),)
    weights = drawn_weights(Reference().built(recipe, execution.mode).parameters)
    ((alone, many),) = spread.one_rank_and_many(Reference(), recipe, execution, given, "gradients", weights=weights)
    words = loss_difference(alone, many)
    return words or tensor_differences(alone, many, "the gradient of", many.gradients, alone.gradients)


@pytest.mark.parametrize(
    ("world", "name"),
    [
        pytest.param(
            world,
            name,
            marks=(pytest.mark.dist(world=world, timeout=SLOW_S), *([pytest.mark.slow] if place % QUICK else [])),
        )
        for world in DRAWN
        for place, name in enumerate(DRAWN[world])
    ],
)
def test_a_random_layouts_step_equals_one_ranks(world: int, name: str) -> None:
    words = _differs(DRAWN[world][name])
    assert not any(gathered(words)), words or "another rank differs"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in DRAWN[2] if "pp" not in name][::5])
@pytest.mark.dist(world=2, timeout=SLOW_S)
def test_a_compiled_layouts_step_equals_one_ranks(name: str) -> None:
    recipe, execution, rows = DRAWN[2][name]
    compiled = replace(execution, compile="blocks", backend="aot_eager", recompute=False, microbatches=1)
    instruments.graphs.reset_compiler()  # what is cached names groups of worlds that are no more
    words = _differs((recipe, compiled, rows))
    assert not any(gathered(words)), words or "another rank differs"


@pytest.mark.unit
def test_sixty_layouts_are_drawn_from_every_axis() -> None:
    assert [len(DRAWN[world]) for world in DRAWN] == [18, 46, 5]
    assert [len(set(layouts(world))) for world in DRAWN] == [37, 190, 632]
    names = [name for world in (2, 4) for name in DRAWN[world]]
    often = {axis: sum(f"-{axis}" in name for name in names) for axis in ("pp", "tp", "sp", "cp", "ep", "etp", "fsdp")}
    assert min(often.values()) >= 6, often

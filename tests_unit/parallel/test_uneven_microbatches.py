"""Windows of drawn microbatches: however the rows of a length are gathered into microbatches, the step is the same."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.instruments import numerics
from contracts.law._support.label_weights import like_on_one_rank
from contracts.law._support.training_run import LETTERS, batch
from contracts.spec.errors import NotOffered, Refused
from contracts.spec.tolerance import FLOAT64_SCAN
from contracts.spec.topology import Degrees
from contracts.spec.training import Execution, Session, Step, Tokens
from contracts.stacks.reference.stack import Reference

torch.set_num_threads(1)
SMALL = replace(LETTERS, pattern="AE", depth=2)
Rows = tuple[tuple[tuple[int, ...], int], ...]


@st.composite
def _windows(draw: st.DrawFn) -> tuple[Tokens, ...]:
    """Microbatches of 1 to 3 rows and 2 to 12 tokens; some rows have no label, one at least has."""
    found = []
    for number in range(draw(st.integers(1, 3))):
        length = draw(st.integers(2, 12))
        first = draw(st.integers(1, length))
        lengths = (first, length - first) if first < length else (length,)
        rows: Rows = tuple((lengths, draw(st.integers(0, length))) for _ in range(draw(st.integers(0, 2))))
        found.append(batch(f"drawn {number}", SMALL.vocab, (((length,), 0), *rows)))
    return tuple(found)


@settings(max_examples=6)
@given(_windows())
def test_a_step_does_not_depend_on_which_rows_of_a_length_go_together(window: tuple[Tokens, ...]) -> None:
    rows = tuple(row for micro in window for row in _rows(micro))
    together, apart = _step(window), _step(rows)
    assert apart.tokens == together.tokens
    for name, want in together.losses.items():
        assert apart.losses[name] == pytest.approx(want, rel=1e-11)
    assert not numerics.differences("the gradient of", apart.gradients, together.gradients, FLOAT64_SCAN)


def test_windows_that_are_not_as_many_as_steps_and_microbatches_are_refused() -> None:
    window = (batch("one", SMALL.vocab),)
    session = Session(recipe=SMALL, steps=2, windows=(window,), execution=Execution(microbatches=2))
    with pytest.raises(Refused) as refused:
        Reference().train(session)
    assert "windows = 1: must be one a step (2)" in str(refused.value)
    assert "must each have as many as the execution (2)" in str(refused.value)


def _step(window: tuple[Tokens, ...]) -> Step:
    execution = Execution(precision="float64", microbatches=len(window))
    session = Session(recipe=SMALL, steps=1, execution=execution, windows=(window,), observe=frozenset({"gradients"}))
    (step,) = Reference().train(session).steps
    return step


def _rows(micro: Tokens) -> list[Tokens]:
    assert micro.documents is not None
    held = [numerics.tensor(each).split(1) for each in (micro.tokens, micro.labels, micro.documents)]
    return [
        Tokens(tokens=numerics.array(tokens), labels=numerics.array(labels), documents=numerics.array(documents))
        for tokens, labels, documents in zip(*held, strict=True)
    ]


@pytest.mark.parametrize(
    ("over", "execution", "microbatches"),
    [
        ("sequence", Execution(world=2, microbatches=2), 1),
        ("microbatch", Execution(world=2, microbatches=2), 4),
        ("microbatch", Execution(world=4, microbatches=2, degrees=Degrees(pp=2, tp=2)), 2),
        ("microbatch", Execution(world=2, degrees=Degrees(ep=2), layout="borrowed"), 2),
        ("microbatch", Execution(world=2, degrees=Degrees(ep=2)), 1),
        ("global-batch", Execution(world=2), 1),
        ("global-batch", Execution(world=2, microbatches=4, degrees=Degrees(pp=2)), 4),
    ],
)
def test_one_rank_has_the_microbatches_in_which_loads_are_alike(
    over: str, execution: Execution, microbatches: int
) -> None:
    stack: Any = SimpleNamespace(conventions={"balance-over": over})
    assert like_on_one_rank(stack, execution) == microbatches


def test_loads_so_far_of_rows_of_several_ranks_are_not_asked() -> None:
    stack: Any = SimpleNamespace(conventions={"balance-over": "global-batch"})
    with pytest.raises(NotOffered, match="no single rank has"):
        like_on_one_rank(stack, Execution(world=2, microbatches=2))

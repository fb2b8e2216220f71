"""Windows of drawn microbatches that are refused, and when loads of several ranks equal one rank's."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from contracts.law._support.label_weights import like_on_one_rank
from contracts.law._support.training_run import LETTERS, batch
from contracts.spec import Degrees, Execution, NotOffered, Refused, Session
from contracts.stacks.reference.stack import Reference

torch.set_num_threads(1)
SMALL = replace(LETTERS, pattern="AE", depth=2)


def test_a_wrong_number_of_windows_or_microbatches_is_refused() -> None:
    window = (batch("one", SMALL.vocab),)
    session = Session(recipe=SMALL, steps=2, windows=(window,), execution=Execution(microbatches=2))
    with pytest.raises(Refused) as refused:
        Reference().train(session)
    assert "windows = 1: must be one a step (2)" in str(refused.value)
    assert "must each have as many as the execution (2)" in str(refused.value)


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
def test_one_rank_gets_the_microbatches_that_give_equal_balance_losses(
    over: str, execution: Execution, microbatches: int
) -> None:
    stack: Any = SimpleNamespace(conventions={"balance-over": over})
    assert like_on_one_rank(stack, execution) == microbatches


def test_a_global_batch_balance_with_microbatches_on_several_ranks_is_not_offered() -> None:
    stack: Any = SimpleNamespace(conventions={"balance-over": "global-batch"})
    with pytest.raises(NotOffered, match="no single rank has"):
        like_on_one_rank(stack, Execution(world=2, microbatches=2))

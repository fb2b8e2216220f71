"""Stacks that are right and unlike the reference: contracts of several ranks hold for them."""

import pytest
from torch import Tensor

from contracts.contract import LAW
from contracts.court.judge import judge
from contracts.harness.families import read_checks
from contracts.instruments import traffic
from contracts.stacks.reference.parallel.collectives import all_reduce, copy_to_ranks, gather_rows, split_rows
from contracts.stacks.reference.parallel.tensor_parallel import TensorParallel
from contracts.stacks.reference.stack import Reference


def _gathers_and_sums_gradients(self: TensorParallel, x_BTD: Tensor) -> Tensor:
    x_TBD = x_BTD.transpose(0, 1)
    return copy_to_ranks(gather_rows(x_TBD, self.size * len(x_TBD), self.group).transpose(0, 1), self.group)


def _sums_and_slices(self: TensorParallel, y_BTD: Tensor) -> Tensor:
    return split_rows(all_reduce(y_BTD, self.group).transpose(0, 1), self.group).transpose(0, 1)


@pytest.mark.dist(world=2)
@pytest.mark.slow  # a rank is late on purpose
def test_receipts_hold_for_a_stack_that_sums_the_stream_and_keeps_its_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    read_checks()
    monkeypatch.setattr(TensorParallel, "enter", _gathers_and_sums_gradients)
    monkeypatch.setattr(TensorParallel, "leave", _sums_and_slices)
    with traffic.recorded() as sent:
        result = judge(LAW.contracts["RCPT-01a"], "the-first-of-tp2", Reference())
    assert result.outcome == "holds", result.words
    assert "all_reduce" in {each.op for each in sent}
    assert "reduce_scatter" not in {each.op for each in sent}

"""The reference with its sums in another order is as right as the reference: what differs only by rounding holds.

`python -m benchmarks.machines` asks every contract of it; a few of each family are asked here.
"""

from typing import Literal, get_args

import pytest
import torch
from torch import Tensor

from contracts.court.judge import judge
from contracts.instruments import fixtures, numerics, reorder
from contracts.instruments.reorder import ORDERS, Order, Reordered
from contracts.spec import Execution, Party, Session
from contracts.spec.presets import PRESETS
from contracts.spec.records import Item
from contracts.stacks import reordered
from contracts.stacks.reference.stack import Reference
from tests_unit._parties.law import LAW

PARTIES: dict[Order, type[Party]] = {
    "reversed": reordered.Reversed, "blocked": reordered.Blocked, "pairwise": reordered.Pairwise,
    "unfused": reordered.Unfused,
}  # fmt: skip
ASKED = (
    Item(id="BLK-03a", case="one-token"), Item(id="BLK-03a", case="packed"), Item(id="BLK-04a", case="one-token"),
    Item(id="BLK-05a", case="one-token"), Item(id="MOE-01c", case="sigmoid-faint"), Item(id="MOE-04a", case="softmax"),
    Item(id="BLK-06r", case="tied"), Item(id="OPT-04a", case="tied"), Item(id="PAR-05a", case="three"),
)  # fmt: skip


def test_every_summation_order_has_a_stack() -> None:
    assert tuple(PARTIES) == ORDERS == get_args(Order)


def _products(x_TD: Tensor) -> dict[str, Tensor]:
    w_FD = fixtures.normal("w", (40, x_TD.shape[1])).to(x_TD.dtype)
    return {
        "mm": x_TD @ w_FD.T, "addmm": torch.addmm(w_FD[:, 0], x_TD, w_FD.T), "mv": x_TD @ w_FD[0],
        "dot": x_TD[0] @ w_FD[0], "bmm": x_TD.expand(3, *x_TD.shape) @ w_FD.T.expand(3, *w_FD.T.shape),
        "sum": x_TD.sum(), "rows": x_TD.sum(1, keepdim=True), "mean": x_TD.mean((0, 1)), "softmax": x_TD.softmax(-1),
        "logsumexp": x_TD.logsumexp(-1), "norm": x_TD.norm(), "rsqrt": x_TD.square().add(1).rsqrt(),
        "silu": torch.nn.functional.silu(x_TD), "index_add": torch.zeros_like(x_TD).index_add(
            0, torch.tensor([1] * x_TD.shape[0]), x_TD),
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_another_summation_order_changes_results_by_rounding_only(order: Order, dtype: torch.dtype) -> None:
    x_TD = fixtures.normal("x", (37, 53)).to(dtype)
    plain = _products(x_TD)
    with Reordered(order) as mode:
        other = _products(x_TD)
    assert mode.seen >= len(plain) - 1
    eps = torch.finfo(dtype).eps
    for name, want in plain.items():
        off = (other[name].double() - want.double()).abs().max()
        assert off <= 16 * eps * max(float(want.double().abs().max()), 1.0), name
    if dtype != torch.bfloat16:  # sums in float32, rounded once, are mostly the same numbers
        assert any(not torch.equal(other[name], plain[name]) for name in plain), "nothing was added in another order"


@pytest.mark.parametrize("order", ORDERS)
def test_another_summation_order_changes_gradients_too(order: Order) -> None:
    weights = fixtures.normal("w", (48, 48)).requires_grad_()
    x = fixtures.normal("x", (48, 48))

    def gradient() -> Tensor:
        return torch.autograd.grad((torch.tanh(x @ weights) @ weights).square().sum(), weights)[0]

    plain = gradient()
    with Reordered(order) as mode:
        forward_alone = (torch.tanh(x @ weights) @ weights).square().sum()
        seen = mode.seen
        other = torch.autograd.grad(forward_alone, weights)[0]
        assert mode.seen > seen
    assert not torch.equal(other, plain)
    assert numerics.distances(other, plain)["L2"].relative < 1e-13


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("item", ASKED, ids=str)
def test_every_contract_holds_in_any_summation_order(item: Item, order: Order) -> None:
    result = judge(LAW.contracts[item.id], item.case, PARTIES[order]())
    assert result.outcome == "holds", f"{result.outcome}: {result.words}"


@pytest.mark.parametrize("order", ORDERS)
def test_a_tolerance_relative_to_an_exact_zero_is_found(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the floor, one token's gradients, which are zero but for rounding, are infinitely far from zero."""
    monkeypatch.setattr(numerics, "ROUNDINGS", 0.0)
    found = [judge(LAW.contracts["BLK-03a"], case, PARTIES[order]()) for case in ("one-token", "packed")]
    assert [each.outcome for each in found] == ["violated", "holds"]
    assert "error inf over" in found[0].words


@pytest.mark.parametrize(("compiled", "reordered_sums"), [("none", True), ("blocks", False), ("model", False)])
def test_a_compiled_session_keeps_its_own_order(
    compiled: Literal["none", "blocks", "model"], reordered_sums: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a mode nothing would be compiled. The reference compiles only on several ranks, so nothing starts here."""
    x = fixtures.normal("x", (48, 48))
    monkeypatch.setattr(Reference, "train", lambda self, session: x @ x)
    session = Session(recipe=PRESETS["tiny-nam56r"], steps=1, execution=Execution(compile=compiled))
    got = reordered._in("blocked", "train")(reordered.Blocked(), session)
    assert torch.equal(got, x @ x) is not reordered_sums


def test_tensors_without_data_are_left_alone() -> None:
    with Reordered("reversed") as mode:
        assert torch.empty(3, 4, device="meta").sum(1).shape == (3,)
        assert int(torch.arange(5).sum()) == 10
        assert torch.empty(0, 4).sum(0).shape == (4,)
    assert mode.seen == 0
    assert reorder.BLOCK > 1

"""Correct stacks drawn by seed: a rewrite takes effect and changes no verdict, and a wrong one is red."""

import random
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks import false_alarms
from contracts.court.judge import judge
from contracts.harness.operators.reach import asked
from contracts.stacks import reordered, rewritten
from contracts.stacks.reference.stack import Reference
from contracts.stacks.rewritten import REWRITES, Rewritten
from tests_unit._parties.law import LAW

CASES = (
    ("BLK-06t", "fp32"), ("PAT-12c", "no-qk-norm-streams"), ("BLK-01a", None), ("BLK-02a", None), ("BLK-03a", None),
    ("BLK-04a", None), ("OPT-05d", None), ("MOE-02a", None), ("BLK-06v", "dense"),
)  # fmt: skip


@pytest.mark.parametrize("name", REWRITES)
def test_each_correct_rewrite_of_the_reference_runs_and_holds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    role, method, body = REWRITES[name]
    calls = []

    def counted(*arguments: Any, **named: Any) -> Any:
        calls.append(name)
        return body(*arguments, **named)

    monkeypatch.setattr(rewritten, "REWRITES", {**REWRITES, name: (role, method, counted)})
    stack = type("Alone", (Rewritten,), {"rewrites": (name,)})()
    for id, case in CASES:
        contract = LAW.contracts.get(id)
        if contract is not None and not calls:
            result = judge(contract, case or next(iter(contract.cases)), stack)
            assert result.outcome == "holds", result.words
    assert calls


def test_a_wrong_rewrite_of_the_reference_is_violated(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any, kv_BTGd: Any, heads: int) -> Any:
        return kv_BTGd.repeat(1, 1, heads // kv_BTGd.shape[2], 1)  # query head h reads KV head h mod G

    monkeypatch.setattr(rewritten, "REWRITES", {"wrong": ("attention", "repeat", wrong)})
    stack = type("Wrong", (Rewritten,), {"rewrites": ("wrong",), "name": "wrong"})
    monkeypatch.setattr(rewritten, "drawn", lambda seed: stack())
    rows = list(false_alarms._judged(1, [(LAW.contracts["BLK-03a"], "4-heads-on-2")]))
    assert [row["outcome"] for row in rows] == ["violated"]
    assert rows[0]["words"]


def test_a_seed_draws_the_same_stack_and_cases_again() -> None:
    one, same, other = (rewritten.drawn(seed) for seed in (5, 5, 6))
    assert (one.name, one.offers, one.layouts) == (same.name, same.offers, same.layouts)
    assert one.name != other.name
    contracts = [*asked(LAW)]
    first, again = (false_alarms.sample(contracts, 5, 12) for _ in range(2))
    assert first == again != false_alarms.sample(contracts, 6, 12)
    assert len({contract.id for contract, _ in first}) == 12
    assert sum(contract.of_numbers for contract, _ in first) == 8


def test_three_hundred_seeds_cover_every_rewrite_order_and_layout() -> None:
    stacks = [rewritten.drawn(seed) for seed in range(300)]
    assert {name for each in stacks for name in each.rewrites} == REWRITES.keys()  # type: ignore[attr-defined]
    assert {each.layouts for each in stacks} == {
        frozenset({"own-axis"}), frozenset({"borrowed"}), frozenset({"own-axis", "borrowed"}),
    }  # fmt: skip
    orders = [
        order for order in rewritten.ORDERS if any(isinstance(each, getattr(reordered, order)) for each in stacks)
    ]
    assert orders == list(rewritten.ORDERS)
    assert all(each.offers < Reference.offers for each in random.Random(1).sample(stacks, 10))

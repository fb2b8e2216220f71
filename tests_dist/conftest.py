"""Tests that need ranks are skipped if there are none, with the command to type; promises of the law say so themselves.

Which contracts of several ranks are slow here, that is: asked by `make gate-all` and `pytest -m dist`, and left out of
the quick tests, is listed here as well.
"""

import pytest

from contracts.contract import LAW, Contract
from contracts.instruments.ranks import here
from contracts.law.parallel import small_models
from contracts.spec.records import Item
from rankproof.options import CASE

NEEDED = "needs ranks: torchrun --standalone --nproc-per-node 4 -m pytest -m dist"
WIDEST = 4  # ranks: a layout that needs more stands for no smaller one
WAIT = frozenset({"PREF-03c", "RCPT-01a"})  # in every case ranks wait for one that is late, for seconds


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if CASE in getattr(item, "fixturenames", ()):
            promise = _promise(item)
            if promise is not None and _left_to_the_gate(LAW.contracts[promise.id], promise.case):
                item.add_marker(pytest.mark.slow)
        elif here().world == 1 and item.get_closest_marker("dist") is not None:
            item.add_marker(pytest.mark.skip(reason=NEEDED))


def _left_to_the_gate(contract: Contract, case: str) -> bool:
    return (
        _about_transformers(contract)
        or _within_another(contract, case)
        or (contract.id.startswith("CKPT") and case in _every_other(contract))
        or (contract.id in WAIT and case != next(iter(contract.cases)))
    )


def _about_transformers(contract: Contract) -> bool:
    """Whether a promise is one that every transformer can answer. Of the reference, which has every letter, the same is
    asked layout by layout in checks/parallel/layouts.py: `make gate-all` asks both."""
    return contract.check.__module__ == small_models.__name__


def _within_another(contract: Contract, case: str) -> bool:
    """Whether another layout of the same promise has every axis of this one, and more: as `tp2` is within `tp2-sp`.
    Cases name their axes. One that goes from a layout to another is within none."""
    mine = _axes(case)
    others = [_axes(other) for other in contract.cases if contract.ranks(other) <= WIDEST]
    return "to" not in mine and any(mine < other and ("borrowed" in mine) == ("borrowed" in other) for other in others)


def _every_other(contract: Contract) -> list[str]:
    """The second, fourth … of the layouts that need all ranks: for checkpoints each trains, saves and loads often."""
    return [case for case in contract.cases if contract.ranks(case) == WIDEST][1::2]


def _axes(case: str) -> frozenset[str]:
    return frozenset(case.split("-"))


def _promise(item: pytest.Item) -> Item | None:
    promise = getattr(item, "callspec").params[CASE]  # noqa: B009  # of a parametrized test
    return promise if isinstance(promise, Item) else None

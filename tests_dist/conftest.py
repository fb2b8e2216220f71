"""What needs ranks is skipped where there are none, with the command to type; promises of the law say so themselves.

Which promises of several ranks are slow here, that is: asked by `make gate` and `pytest -m dist`, and left out of the
quick tests, is told here as well.
"""

from __future__ import annotations

import pytest

from contracts.checks.numeric import transformers
from contracts.contract import LAW
from contracts.instruments.ranks import here
from contracts.spec.records import Item

NEEDED = "needs ranks: torchrun --standalone --nproc-per-node 4 -m pytest -m dist"
WIDEST = 4  # ranks: a layout that needs more stands for no smaller one


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        of_the_law = "promise" in getattr(item, "fixturenames", ())
        if of_the_law and (_about_transformers(item) or _within_another(item) or _second_to_save(item)):
            item.add_marker(pytest.mark.slow)
        if here().world == 1 and not of_the_law and item.get_closest_marker("dist") is not None:
            item.add_marker(pytest.mark.skip(reason=NEEDED))


def _about_transformers(item: pytest.Item) -> bool:
    """Whether a promise is one that every transformer can answer. Of the reference, which has every letter, the same is
    asked layout by layout in checks/numeric/layouts.py: `make gate` asks both."""
    promise = _promise(item)
    return promise is not None and LAW.contracts[promise.id].check.__module__ == transformers.__name__


def _within_another(item: pytest.Item) -> bool:
    """Whether another layout of the same promise has every axis of this one, and more: as `tp2` is within `tp2-sp`.
    Cases name their axes. One that goes from a layout to another is within none."""
    promise = _promise(item)
    if promise is None:
        return False
    contract, mine = LAW.contracts[promise.id], _axes(promise.case)
    others = [_axes(case) for case in contract.cases if contract.ranks(case) <= WIDEST]
    return "to" not in mine and any(mine < other and ("borrowed" in mine) == ("borrowed" in other) for other in others)


def _second_to_save(item: pytest.Item) -> bool:
    """Whether a promise is one about checkpoints, and of those of its layouts that need as many ranks as there can be
    here this one is the second, fourth …: each trains, saves and loads several times."""
    promise = _promise(item)
    if promise is None or not promise.id.startswith("CKPT"):
        return False
    contract = LAW.contracts[promise.id]
    return promise.case in [case for case in contract.cases if contract.ranks(case) == WIDEST][1::2]


def _axes(case: str) -> frozenset[str]:
    return frozenset(case.split("-"))


def _promise(item: pytest.Item) -> Item | None:
    promise = getattr(item, "callspec").params["promise"]  # noqa: B009  # of a parametrized test
    return promise if isinstance(promise, Item) else None

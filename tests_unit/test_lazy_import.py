"""Modules that are imported when something of them is first used."""

import pytest

from contracts.instruments._lazy_import import Late


def test_what_a_test_replaces_in_a_late_module_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    late, was = Late("contracts.spec.array"), Late("contracts.spec.array").Array
    with monkeypatch.context() as changed:
        changed.setattr(late, "Array", None)
        assert late.Array is None
    assert late.Array is was

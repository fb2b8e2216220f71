"""A question in float64, put in float32 to a stack that has no float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from contracts.spec.array import Array
from contracts.spec.training import Execution


def narrowed(value: Any) -> Any:
    """An argument of a question with float32 in place of float64: arrays, and the precision of an execution."""
    if isinstance(value, Array):
        return _array(value) if value.dtype == "float64" else value
    if isinstance(value, Execution) and value.precision == "float64":
        return replace(value, precision="float32")
    if isinstance(value, Mapping):
        found = {key: narrowed(each) for key, each in value.items()}
        return found if any(found[key] is not value[key] for key in found) else value
    if isinstance(value, tuple):
        parts = [narrowed(each) for each in value]
        return tuple(parts) if any(new is not old for new, old in zip(parts, value, strict=True)) else value
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            each.name: new for each in fields(value) if (new := narrowed(old := getattr(value, each.name))) is not old
        }
        return replace(value, **changed) if changed else value
    return value


def _array(value: Array) -> Array:
    from contracts import instruments

    numerics = instruments.numerics
    return numerics.array(numerics.tensor(value).float())

"""A question with another dtype or device than the check gave it: float32 for float64, `cuda` for `cpu`."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from contracts.instruments import numerics
from contracts.spec import Array, BlockCall, Execution


def narrowed(value: Any) -> Any:
    """Arguments of a question with float32 in place of float64: arrays, and the precision of an execution."""
    return _changed(value, _narrow)


def placed(value: Any, device: str) -> Any:
    """Arguments of a question with another device in place of the CPU: executions, and calls of a block."""

    def place(each: Any) -> Any:
        on_host = isinstance(each, Execution | BlockCall) and each.device == "cpu"
        return replace(each, device=device) if on_host else each

    return _changed(value, place)


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value with some of what it consists of changed; the value itself if nothing changes."""
    value = change(value)
    if isinstance(value, Array):
        return value
    if isinstance(value, Mapping):
        found = {key: _changed(each, change) for key, each in value.items()}
        return found if any(found[key] is not value[key] for key in found) else value
    if isinstance(value, tuple):
        parts = [_changed(each, change) for each in value]
        return tuple(parts) if any(new is not old for new, old in zip(parts, value, strict=True)) else value
    if is_dataclass(value) and not isinstance(value, type):
        pairs = ((each.name, getattr(value, each.name)) for each in fields(value))
        new = {name: made for name, old in pairs if (made := _changed(old, change)) is not old}
        return replace(value, **new) if new else value
    return value


def _narrow(value: Any) -> Any:
    if isinstance(value, Array) and value.dtype == "float64":
        return _array(value)
    if isinstance(value, Execution) and value.precision == "float64":
        return replace(value, precision="float32")
    return value


def _array(value: Array) -> Array:

    return numerics.array(numerics.tensor(value).float())

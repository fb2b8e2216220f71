"""Tensors and values, and how far two tensors are apart."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from contracts.spec.array import Array, Arrays, Element
from contracts.spec.tolerance import Tolerance


def array(tensor: Tensor) -> Array:
    """A tensor as a value: a copy of its elements, on the host."""
    held = tensor.detach().to("cpu").contiguous()
    element = str(held.dtype).removeprefix("torch.")
    data = ctypes.string_at(held.data_ptr(), held.nbytes) if held.nbytes else b""  # numpy may not be installed
    return Array(dtype=cast(Element, element), shape=tuple(held.shape), data=data)


def arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    return {name: array(tensor) for name, tensor in tensors.items()}


def tensor(value: Array, dtype: torch.dtype | None = None) -> Tensor:
    """A value as a tensor of its own memory, converted to `dtype` if one is given."""
    element = getattr(torch, value.dtype)
    data = bytearray(value.data)
    flat = torch.frombuffer(data, dtype=element) if data else torch.empty(0, dtype=element)
    held = flat.reshape(value.shape)
    return held if dtype is None else held.to(dtype)


def tensors(values: Arrays, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Values as tensors; `dtype` converts those that are floating point."""
    found = {name: tensor(value) for name, value in values.items()}
    return {
        name: each.to(dtype) if dtype is not None and each.is_floating_point() else each for name, each in found.items()
    }


def apart(what: str, got: Array | Tensor, want: Array | Tensor, tolerance: Tolerance) -> str:
    """In what two tensors differ, in words, or nothing when they agree within the tolerance.

    Shapes first, then non-finite elements on either side, then three distances (spec.tolerance): there are no
    percentiles and no masks, because those let a single wrong token pass.
    """
    left, right = (each if isinstance(each, Tensor) else tensor(each) for each in (got, want))
    if left.shape != right.shape:
        return f"{what} has shape {tuple(left.shape)}, expected {tuple(right.shape)}"
    if not left.is_floating_point() or tolerance.bound == 0:
        unequal = left != right
        if not bool(unequal.any()):
            return ""
        where = _where(unequal)
        text = f"{what} differs: {left[where].item()} at {list(where)}, expected {right[where].item()}"
        return f"{text} ({int(unequal.sum())} of {unequal.numel()} elements)"
    left, right = left.double(), right.double()
    for name, side in (("", left), ("what was expected of ", right)):
        if not bool(torch.isfinite(side).all()):
            return f"{name}{what} is not finite at {list(_where(~torch.isfinite(side)))}"
    distance = distances(left, right)
    name, worst = max(distance.items(), key=lambda item: item[1])
    if worst <= tolerance.bound:
        return ""
    where = _where((left - right).abs() == (left - right).abs().max())
    text = f"{what} differs: {name} error {worst:.1e} over {tolerance.bound:.0e} ({tolerance.name}); "
    return text + f"{left[where].item():.6g} at {list(where)}, expected {right[where].item():.6g}"


def distances(got: Tensor, want: Tensor) -> dict[str, float]:
    """Three relative distances: of the whole in L2, of the worst element, of the worst row (its last dim is one)."""
    if not want.numel():
        return {"L2": 0.0}
    off = got - want
    norm, largest = float(want.norm()), float(want.abs().max())
    if largest == 0:
        return {"L2": 0.0 if not bool(off.any()) else math.inf}
    typical = norm / math.sqrt(want.numel())
    rows = off.reshape(-1, off.shape[-1]) if off.dim() else off.reshape(1, 1)
    by_row = float(rows.square().mean(-1).sqrt().max()) / typical
    return {"L2": float(off.norm()) / norm, "largest": float(off.abs().max()) / largest, "row": by_row / ROW_ALLOWANCE}


ROW_ALLOWANCE = 8.0
"""How much worse than the whole the worst row may be: rounding is not spread evenly, a lost token is off by 1/u."""


def named_apart(what: str, got: Arrays, want: Arrays | Mapping[str, Tensor], tolerance: Tolerance) -> str:
    """`apart` over tensors by name; a name that one side lacks is a difference. Words on at most three of them."""
    missing, extra = sorted(want.keys() - got.keys()), sorted(got.keys() - want.keys())
    found = [f"{what} lacks {', '.join(missing)}"] if missing else []
    found += [f"{what} has {', '.join(extra)}, which is not expected"] if extra else []
    for name in sorted(want.keys() & got.keys()):
        words = apart(f"{what} {name}", got[name], want[name], tolerance)
        if words:
            found.append(words)
    more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
    return "; ".join(found[:3]) + more


def _where(mask: Tensor) -> tuple[int, ...]:
    """The first position at which a mask is true."""
    return tuple(int(i) for i in torch.nonzero(mask)[0]) if mask.dim() else ()

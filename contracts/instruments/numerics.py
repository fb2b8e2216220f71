"""Conversion between tensors and values, and comparison of tensors within a tolerance."""

import ctypes
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from contracts.spec import Array, Arrays, Element, Tolerance, here, violations
from contracts.spec.records import Violation


def array(tensor: Tensor) -> Array:
    """A tensor as a value, with a copy of its elements on the host."""
    held = tensor.detach().to("cpu").contiguous()
    element = str(held.dtype).removeprefix("torch.")
    data = ctypes.string_at(held.data_ptr(), held.nbytes) if held.nbytes else b""  # numpy may not be installed
    return Array(dtype=cast(Element, element), shape=tuple(held.shape), data=data)


def arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    return {name: array(tensor) for name, tensor in tensors.items()}


def tensor(value: Array, dtype: torch.dtype | None = None, *, strided: bool = False) -> Tensor:
    """A value as a tensor with memory of its own, converted to `dtype` if one is given. If it is `strided`, its
    first axis is the fastest in memory instead of its last.
    """
    element = getattr(torch, value.dtype)
    data = bytearray(value.data)
    flat = torch.frombuffer(data, dtype=element) if data else torch.empty(0, dtype=element)
    held = flat.reshape(value.shape)
    if strided:
        turned = tuple(reversed(range(held.dim())))
        held = held.permute(turned).contiguous().permute(turned)
    return held if dtype is None else held.to(dtype)


def tensors(values: Arrays, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Values as tensors; `dtype` converts those that are floating point."""
    found = {name: tensor(value) for name, value in values.items()}
    return {
        name: each.to(dtype) if dtype is not None and each.is_floating_point() else each for name, each in found.items()
    }


def on(device: str, values: Arrays) -> dict[str, Tensor]:
    """Values as tensors on a device."""
    return {name: tensor(value).to(device) for name, value in values.items()}


def difference(
    what: str, got: Array | Tensor, want: Array | Tensor, tolerance: Tolerance, *, scale: float = 0.0
) -> str:
    """How two tensors differ, in words; empty when they agree within the tolerance.

    It compares shapes first, then non-finite elements on either side, then three distances (spec.tolerance). There are
    no percentiles and no masks, because those let a single wrong token pass.

    Args:
        scale: size of the terms whose sum is the expected tensor, if they may cancel. Elements of the sum are then
            exact only up to some roundings of that size (`floor`), even if they are small themselves.
    """
    left, right = (each if isinstance(each, Tensor) else tensor(each) for each in (got, want))
    if left.shape != right.shape:
        return f"{what} has shape {tuple(left.shape)}, expected {tuple(right.shape)}"
    left, right = brought_together(left, right)
    tolerance = here(tolerance)
    if not left.is_floating_point() or tolerance.bound == 0:
        unequal = left != right
        if not bool(unequal.any()):
            return ""
        where = _where(unequal)
        text = f"{what} differs: {left[where].item()} at {list(where)}, expected {right[where].item()}"
        return f"{text} ({int(unequal.sum())} of {unequal.numel()} elements)"
    least = floor(left.dtype, scale)
    left, right = left.double(), right.double()
    for name, side in (("", left), ("what was expected of ", right)):
        if not bool(torch.isfinite(side).all()):
            return f"{name}{what} is not finite at {list(_where(~torch.isfinite(side)))}"
    found = distances(left, right)
    name = max(found, key=lambda name: found[name].times(tolerance.bound, least))
    worst = found[name]
    if worst.times(tolerance.bound, least) <= 1:
        return ""
    where = _where((left - right).abs() == (left - right).abs().max())
    over = f"{worst.relative:.1e} over {tolerance.bound:.0e} ({tolerance.name})"
    if least > tolerance.bound * worst.size:
        over = f"{worst.off:.1e} over {least:.0e} (rounding of terms of size {scale:.1e})"
    text = f"{what} differs: {name} error {over}; "
    return text + f"{left[where].item():.6g} at {list(where)}, expected {right[where].item():.6g}"


def brought_together(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors where they are compared: large ones on a CUDA device that is in use, also in float64. One core takes
    half a minute for a hundred million elements."""
    if max(each.numel() for each in tensors) < LARGE or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return tensors
    return tuple(each.cuda() for each in tensors)


LARGE = 1 << 22


def floor(dtype: torch.dtype, scale: float) -> float:
    """The rounding error of terms of this size when they cancel. A smaller result is indistinguishable from zero."""
    roundings = HALF_ROUNDINGS if dtype in (torch.bfloat16, torch.float16) else ROUNDINGS
    return roundings * torch.finfo(dtype).eps * scale if dtype.is_floating_point else 0.0


ROUNDINGS = 8.0
"""Units in the last place of the terms that a cancelled sum may keep, in whatever order they were added."""
HALF_ROUNDINGS = 0.25
"""Small, because in half precision one rounding of a stored term is as large as a fault; sums are in float32."""


@dataclass(frozen=True, kw_only=True)
class Distance:
    """The distance between two tensors (`off`) and the size of the expected one, both per element."""

    off: float
    size: float

    @property
    def relative(self) -> float:
        """The distance over the size; infinite for size zero."""
        if self.off == 0:
            return 0.0
        return self.off / self.size if self.size else math.inf

    def times(self, bound: float, least: float = 0.0) -> float:
        """The distance over what is allowed: a fraction of the size, and at least `least`."""
        if self.off == 0 or math.isinf(bound):
            return 0.0
        allowed = max(bound * self.size, least)
        return self.off / allowed if allowed else math.inf


def distances(got: Tensor, want: Tensor) -> dict[str, Distance]:
    """Three distances: L2 of the whole tensor, the worst element, and the worst row (along the last dim)."""
    if not want.numel():
        return {"L2": Distance(off=0.0, size=0.0)}
    off, typical = got - want, typical_size(want)
    rows = off.reshape(-1, off.shape[-1]) if off.dim() else off.reshape(1, 1)
    largest_row = float((rows / (rows.abs().max() or 1)).square().mean(-1).sqrt().max()) * float(rows.abs().max())
    return {
        "L2": Distance(off=typical_size(off), size=typical),
        "largest": Distance(off=float(off.abs().max()), size=float(want.abs().max())),
        "row": Distance(off=largest_row / ROW_ALLOWANCE, size=typical),
    }


def typical_size(tensor: Tensor) -> float:
    """The root mean square of the elements, without underflow or overflow of the squares."""
    largest = float(tensor.abs().max()) if tensor.numel() else 0.0
    if largest == 0 or not math.isfinite(largest):
        return largest
    return largest * float((tensor.double() / largest).square().mean().sqrt())


ROW_ALLOWANCE = 8.0
"""How much worse than the whole tensor the worst row may be. Rounding is uneven; a lost token is off by 1/u."""


def differences(
    what: str, got: Arrays, want: Arrays | Mapping[str, Tensor], tolerance: Tolerance, *, scale: float = 0.0
) -> str:
    """`difference` over named tensors; a name that only one side has is a difference. The words name at most three
    differences; all of them are handed over one by one (`violations.compared`)."""
    return _differences(what, got, want, tolerance, scale, sorted(want.keys() & got.keys()))


def gradient_differences(
    what: str, got: Arrays, want: Arrays | Mapping[str, Tensor], tolerance: Tolerance, *, scale: float | None = None
) -> str:
    """`differences` over the gradients of one pass, in the order in which it makes them, because one that is wrong
    spoils those after it. The words also say how many were made before the first.

    Args:
        scale: that of `differences`; None: the largest of the gradients, since terms that cancel in one are as large.
    """
    ordered = backward_order(want.keys() & got.keys())
    scale = scale_of(want) if scale is None else scale
    return _differences(what, got, want, tolerance, scale, ordered, "gradients made before the first, which agree")


def backward_order(names: Iterable[str]) -> list[str]:
    """Names of a block's or a model's parameters (spec.blocks) in the order in which a backward pass reaches them: the
    head, prediction depths, the last norm, layers from the last one, the embedding or the input. If the names do
    not show it, they are in alphabetical order.
    """
    named = list(names)
    whole = any(name.startswith("layers.") for name in named)
    return sorted(named, key=lambda name: (*_from_the_end(name, whole), name))


def _from_the_end(name: str, whole: bool) -> tuple[int, int, int]:
    """Which part of a model, which layer of that part, and which part of the block."""
    layer = re.match(r"(mtp|layers)\.(\d+)\.", name)
    inside = name[layer.end() :] if layer else name
    place = 2 if inside == "norm.weight" else 0 if re.search(r"\b(wo|w2)\b", inside) else 1
    if layer:
        return (1 if layer[1] == "mtp" else 3, -int(layer[2]), place)
    return ({"head.weight": 0, "norm.weight": 2 if whole else 3, "embedding.weight": 4, "x": 4}.get(name, 3), 0, place)


def _differences(
    what: str, got: Arrays, want: Arrays | Mapping[str, Tensor], tolerance: Tolerance, scale: float,
    ordered: Sequence[str], agreed: str = "",
) -> str:  # fmt: skip
    missing, extra = sorted(want.keys() - got.keys()), sorted(got.keys() - want.keys())
    parts = [Violation(words=f"{what} lacks {name}", tensor=name) for name in missing]
    parts += [Violation(words=f"{what} has {name}, which is not expected", tensor=name) for name in extra]
    found = [f"{what} lacks {', '.join(missing)}"] if missing else []
    found += [f"{what} has {', '.join(extra)}, which is not expected"] if extra else []
    before = 0
    for place, name in enumerate(ordered):
        words = difference(f"{what} {name}", got[name], want[name], tolerance, scale=scale)
        if words:
            before = before if found else place
            found.append(words)
            parts.append(Violation(words=words, tensor=name))
    more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
    more += f"; {agreed}: {before}" if agreed and before else ""
    return violations.compared("; ".join(found[:3]) + more, parts)


def scale_of(named: Arrays | Mapping[str, Tensor]) -> float:
    """The largest `typical_size` of the tensors; 0 if none is finite."""
    held = (each if isinstance(each, Tensor) else tensor(each) for each in named.values())
    sizes = (typical_size(each) for each in held if each.is_floating_point())
    return max((size for size in sizes if math.isfinite(size)), default=0.0)


def _where(mask: Tensor) -> tuple[int, ...]:
    """The first position at which a mask is true."""
    return tuple(int(i) for i in torch.nonzero(mask)[0]) if mask.dim() else ()

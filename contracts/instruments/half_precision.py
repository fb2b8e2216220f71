"""How far a result in half precision may be from its definition: the policy, and the control that sets the scale.

The oracle runs in float64 on the same inputs. A control also runs: the same oracle, but its matrix products have inputs
and outputs in half precision, as in any stack. The error of a result may be a small multiple of the control's error. It
may never exceed an absolute cap, and one rounding of a stored value is always allowed. There are no percentiles and no
masks. The worst token is a separate distance (`numerics.distances`), and non-finite elements are reported first.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from contracts.instruments import numerics
from contracts.spec import Array, HalfPrecision, Tolerance

_aten = torch.ops.aten
_PRODUCTS = {_aten.mm, _aten.bmm, _aten.addmm, _aten.mv, _aten.addmv, _aten.dot}
_FINITE = Tolerance(name="finite", bound=float("inf"), why="only shape and finiteness")
WEAK_FACTOR = 3.0
"""A fault that exceeds the bound by a smaller factor is seen only by luck; every mutant must exceed it by more."""


class RoundedProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Rounds inputs and outputs of matrix products to half precision, forward and backward; changes nothing else.

    `wide` are shapes of matrices whose products keep unrounded outputs (a router's).

    `torch.utils._python_dispatch` has a private name but is documented (torch 2.1 to 2.13). Only a dispatch mode also
    sees the products of a backward pass.
    """

    def __init__(self, half: torch.dtype, wide: frozenset[tuple[int, ...]] = frozenset()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.half, self.wide = half, wide

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket not in _PRODUCTS:
            return func(*args, **(kwargs or {}))
        out = func(*(self.rounded(each) for each in args), **(kwargs or {}))
        wide = any(isinstance(each, Tensor) and tuple(each.shape) in self.wide for each in args)
        return out if wide else self.rounded(out)

    def rounded(self, value: Any) -> Any:
        return value.to(self.half).to(value.dtype) if isinstance(value, Tensor) else value


def excess_error(
    what: str, got: Array | Tensor, want: Tensor, control: Tensor, rule: HalfPrecision, *, scale: float = 0.0
) -> str:
    """How a result exceeds the policy, in words; empty when it does not.

    A control beyond the cap cannot judge, and the words say so. `scale` is as in `numerics.difference`.
    """
    left = got if isinstance(got, Tensor) else numerics.tensor(got)
    words = numerics.difference(what, left, want, _FINITE)
    if words:
        return words
    left, want, control = numerics.brought_together(left, want, control)
    errors = numerics.distances(left.double(), want.double())
    controls = numerics.distances(control.double(), want.double())
    least = numerics.floor(left.dtype, scale)
    found = []
    for name, error in errors.items():
        if controls[name].times(rule.cap, least) > 1:
            return f"the control of {what} is off by {controls[name].relative:.1e} itself, over the cap {rule.cap:.0e}"
        own = controls[name].relative
        near = max(controls["L2"].relative, own) if name == "largest" else own  # one element is chance
        bound = min(rule.cap, max(rule.factor * near, rule.floor))
        found.append((error.times(bound, least), name, error, bound))
    times, name, error, bound = max(found, key=lambda each: each[0])
    if times <= 1:
        return ""
    times_over = f"over {WEAK_FACTOR:g} times the bound" if times > WEAK_FACTOR else "over the bound"
    judged = f"{times_over} {bound:.1e} ({rule.name}, control {controls[name].relative:.1e})"
    return f"{what} differs: {name} error {error.relative:.1e}, {judged}"


def named_excess_error(
    what: str, got: Mapping[str, Array], want: Mapping[str, Tensor], control: Mapping[str, Tensor],
    rule: HalfPrecision,
) -> str:  # fmt: skip
    """`excess_error` over the gradients of one pass: missing names first, then the first one of the backward pass."""
    strange = sorted(want.keys() ^ got.keys())
    if strange:
        return f"{what}: {', '.join(strange)} on one side only"
    scale = numerics.scale_of(want)
    each = (
        excess_error(f"{what} {name}", got[name], want[name], control[name], rule, scale=scale)
        for name in numerics.backward_order(want)
    )
    return next((words for words in each if words), "")

"""What becomes of gradients between the last backward pass and the optimizer, from some numbers of some of them."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from contracts.observe import placement
from contracts.observe.device import FLOATS, Device

PARAMETERS, OF_EACH = 8, 8


class Sample:
    """Some numbers of the gradients of some parameters, as the latest backward pass has left them.

    Those of all parameters lie in one tensor: on a device each copy is a launch, but for what it reads itself.

    Args:
        there: the device with kernels that a tensor is on, if it is on one.
    """

    def __init__(self, there: Callable[[Tensor], Device | None] = lambda _: None) -> None:
        self.of: Sequence[Tensor] = []
        self.kept: dict[int, slice] = {}
        self.numbers = torch.empty(0)
        self.there = there
        self.device: Device | None = None  # that has kept them
        self.like: list[tuple[Any, ...]] = []

    def begin(self) -> None:
        """Other parameters than before are trained."""
        self.of, self.kept = [], {}

    def keep(self, parameters: Iterable[Tensor], gradient: Any) -> None:
        """Keep those of a part of the parameters, spread over all of them; `gradient` reads that of one."""
        if not self.of:
            learns = [each for each in parameters if each.requires_grad and each.numel()]
            self.of = learns[:: -(-len(learns) // PARAMETERS) or 1]
        grads = {id(each): grad for each in self.of if (grad := gradient(each)) is not None}
        self.like, self.device = _like(grads.values()), None
        if self.like:
            self.device = self.there(next(iter(grads.values())))
        if self.device is not None:
            turns = enumerate(grads.items())
            self.kept = {key: slice(OF_EACH * at, OF_EACH * at + _count(grad.numel())) for at, (key, grad) in turns}
            self.numbers = self.device.few([*grads.values()])
            return
        found = {key: few(grad) for key, grad in grads.items() if not placement.unknown(grad)}
        place = next((each.device for each in found.values()), None)
        found = {key: each for key, each in found.items() if each.device == place}
        self.kept = _in_turn(found)
        self.numbers = torch.cat([*found.values()]) if found else self.numbers

    def beside(self, parameters: Iterable[Tensor]) -> tuple[dict[int, slice], Any, int] | None:
        """The slice of each parameter's numbers; the numbers that were kept and after them the gradients' of now, as a
        tensor or a function that reads them after the device was read; and half their count. None if there are none.
        """
        grads = {id(each): each.grad for each in parameters if id(each) in self.kept and each.grad is not None}
        in_turn = [grads[key] for key in self.kept if key in grads]
        if self.device is not None and len(grads) == len(self.kept) and _like(in_turn) == self.like:
            told = self.device.few_beside(in_turn, self.numbers)
            return {key: self.kept[key] for key in grads}, told, PARAMETERS * OF_EACH
        now = {key: few(grad) for key, grad in grads.items()}
        now = {key: each for key, each in now.items() if len(each) == len(self.numbers[self.kept[key]])}
        if not now:
            return None
        before = torch.cat([self.numbers[self.kept[key]] for key in now]).double()
        both = torch.stack([before, torch.cat([*now.values()]).double()])
        return _in_turn(now), both, len(before)


def _like(gradients: Iterable[Tensor]) -> list[tuple[Any, ...]]:
    """The properties that distinguish what a device reads itself; none if it does not."""
    held = list(gradients)
    found = [(each.dtype, each.device, each.numel()) for each in held
             if type(each) is Tensor and each.layout is torch.strided and each.is_contiguous()]  # fmt: skip
    one = found[0] if found else None
    if one is None or len(found) < len(held) or len(held) > PARAMETERS or one[0] not in FLOATS:
        return []
    return found if all(each[:2] == one[:2] and 0 < each[2] < 1 << 31 for each in found) else []


def _count(numel: int) -> int:
    return len(range(0, numel, max(1, numel // OF_EACH))[:OF_EACH])


def _in_turn(parts: Mapping[int, Tensor]) -> dict[int, slice]:
    """Where each part lies if all stand in one tensor."""
    ends = itertools.accumulate(map(len, parts.values()))
    return {key: slice(end - len(part), end) for (key, part), end in zip(parts.items(), ends, strict=True)}


def few(gradient: Tensor) -> Tensor:
    """Some numbers of a gradient, spread over what this rank holds of it: a view."""
    local = (gradient.to_local() if isinstance(gradient, DTensor) else gradient).detach().flatten()
    return local[:: max(1, local.numel() // OF_EACH)][:OF_EACH]

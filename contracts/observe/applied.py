"""What becomes of gradients between the last backward pass and the optimizer, from some numbers of some of them."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from contracts.observe import placement

PARAMETERS, OF_EACH = 8, 8


class Sample:
    """Some numbers of the gradients of some parameters, as the latest backward pass has left them.

    Those of all parameters lie in one tensor: on a device each copy is a launch.
    """

    def __init__(self) -> None:
        self.of: Sequence[Tensor] = []
        self.kept: dict[int, slice] = {}
        self.numbers = torch.empty(0)

    def begin(self) -> None:
        """Other parameters than before are trained."""
        self.of, self.kept = [], {}

    def keep(self, parameters: Iterable[Tensor], gradient: Any) -> None:
        """Keep those of a part of the parameters, spread over all of them; `gradient` reads that of one."""
        if not self.of:
            learns = [each for each in parameters if each.requires_grad and each.numel()]
            self.of = learns[:: -(-len(learns) // PARAMETERS) or 1]
        found = {id(each): few(grad) for each in self.of
                 if (grad := gradient(each)) is not None and not placement.unknown(grad)}  # fmt: skip
        device = next((each.device for each in found.values()), None)
        found = {key: each for key, each in found.items() if each.device == device}
        self.kept = _in_turn(found)
        self.numbers = torch.cat([*found.values()]) if found else self.numbers

    def beside(self, parameters: Iterable[Tensor]) -> tuple[dict[int, slice], Tensor] | None:
        """Where the numbers of each parameter lie in the result, and the result, [2, numbers]: what was kept, and the
        gradients of now; None if there are none."""
        now = {id(each): few(each.grad) for each in parameters if each.grad is not None and id(each) in self.kept}
        now = {key: each for key, each in now.items() if len(each) == len(self.numbers[self.kept[key]])}
        if not now:
            return None
        before = torch.cat([self.numbers[self.kept[key]] for key in now])
        return _in_turn(now), torch.stack([before, torch.cat([*now.values()])]).double()


def _in_turn(parts: Mapping[int, Tensor]) -> dict[int, slice]:
    """Where each part lies if all stand in one tensor."""
    ends = itertools.accumulate(map(len, parts.values()))
    return {key: slice(end - len(part), end) for (key, part), end in zip(parts.items(), ends, strict=True)}


def few(gradient: Tensor) -> Tensor:
    """Some numbers of a gradient, spread over what this rank holds of it: a view."""
    local = (gradient.to_local() if isinstance(gradient, DTensor) else gradient).detach().flatten()
    return local[:: max(1, local.numel() // OF_EACH)][:OF_EACH]

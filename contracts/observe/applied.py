"""What becomes of gradients between the last backward pass and the optimizer, from some numbers of some of them."""

from collections.abc import Iterable, Sequence
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
        self.kept: dict[int, range] = {}
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
        parts = [each for each in found.values() if each.device == next(iter(found.values())).device]
        self.kept = {}
        for key, part in found.items():
            if part.device == parts[0].device:
                begin = sum(map(len, self.kept.values()))
                self.kept[key] = range(begin, begin + len(part))
        self.numbers = torch.cat(parts) if parts else self.numbers

    def beside(self, parameters: Iterable[Tensor]) -> tuple[dict[int, range], Tensor] | None:
        """Where the numbers of each parameter lie, and those of then before those of now, [2, numbers]; None if there
        are none."""
        now = {id(each): few(each.grad) for each in parameters if each.grad is not None and id(each) in self.kept}
        now = {key: each for key, each in now.items() if len(each) == len(self.kept[key])}
        if not now:
            return None
        same = list(now) == list(self.kept)
        before = (
            self.numbers
            if same
            else torch.cat([self.numbers[slice(self.kept[key].start, self.kept[key].stop)] for key in now])
        )
        places, at = {}, 0
        for key, each in now.items():
            places[key] = range(at, at := at + len(each))
        return places, torch.stack([before, torch.cat(list(now.values()))]).double()


def few(gradient: Tensor) -> Tensor:
    """Some numbers of a gradient, spread over what this rank holds of it: a view."""
    local = (gradient.to_local() if isinstance(gradient, DTensor) else gradient).detach().flatten()
    return local[:: max(1, local.numel() // OF_EACH)][:OF_EACH]

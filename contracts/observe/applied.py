"""What becomes of gradients between the last backward pass and the optimizer, from some numbers of some of them."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from contracts.observe import placement

PARAMETERS, OF_EACH = 8, 8


class Sample:
    """Some numbers of the gradients of some parameters, as the latest backward pass has left them."""

    def __init__(self) -> None:
        self.of: Sequence[Tensor] = []
        self.kept: dict[int, Tensor] = {}

    def begin(self) -> None:
        """Other parameters than before are trained."""
        self.of, self.kept = [], {}

    def keep(self, parameters: Iterable[Tensor], gradient: Any) -> None:
        """Keep those of a part of the parameters, spread over all of them; `gradient` reads that of one."""
        if not self.of:
            learns = [each for each in parameters if each.requires_grad and each.numel()]
            self.of = learns[:: -(-len(learns) // PARAMETERS) or 1]
        self.kept = {id(each): few(grad) for each in self.of
                     if (grad := gradient(each)) is not None and not placement.unknown(grad)}  # fmt: skip


def few(gradient: Tensor) -> Tensor:
    """Some numbers of a gradient, spread over what this rank holds of it."""
    local = (gradient.to_local() if isinstance(gradient, DTensor) else gradient).detach().flatten()
    return local[:: max(1, local.numel() // OF_EACH)][:OF_EACH].clone()

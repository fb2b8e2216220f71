"""R: the M²RNN recurrence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from contracts.spec.recipe import Recipe
from contracts.stacks.reference.blocks.common import Output, Packing, State

if TYPE_CHECKING:
    from contracts.stacks.reference.parts import Parts


class M2RNN(nn.Module):
    def __init__(self, recipe: Recipe, parts: Parts) -> None:
        super().__init__()
        raise NotImplementedError

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        raise NotImplementedError

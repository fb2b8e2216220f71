"""The dense MLP of E without experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from contracts.spec.recipe import Recipe
from contracts.stacks.reference.blocks.common import Output, Packing, State

if TYPE_CHECKING:
    pass


class Mlp(nn.Module):
    def __init__(self, recipe: Recipe, inner: int) -> None:
        super().__init__()
        raise NotImplementedError

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        raise NotImplementedError

"""E: token-choice experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from contracts.spec.recipe import Recipe
from contracts.stacks.reference.blocks.common import Output, Packing, State

if TYPE_CHECKING:
    from contracts.stacks.reference.parts import Parts


class Router(nn.Module):
    def __init__(self, recipe: Recipe, parts: Parts) -> None:
        super().__init__()
        raise NotImplementedError

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        raise NotImplementedError


class Experts(nn.Module):
    def __init__(self, recipe: Recipe, parts: Parts) -> None:
        super().__init__()
        raise NotImplementedError

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        raise NotImplementedError


class MoE(nn.Module):
    def __init__(self, recipe: Recipe, parts: Parts) -> None:
        super().__init__()
        raise NotImplementedError

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        raise NotImplementedError

    @staticmethod
    def weight_of(recipe: Recipe, loss: str) -> float:
        raise NotImplementedError

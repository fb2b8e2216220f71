"""What a block may ask of the table of parts.

The table (`parts.py`) names every block's class, and blocks build other blocks through it. Blocks therefore see this
interface and not the table itself, so that no import runs in a circle.
"""

from collections.abc import Callable
from typing import Any, Protocol

from torch import nn

from contracts.spec import Mode, Recipe
from contracts.stacks.reference.model.blocks.common import RMSNorm

MakeBlock = Callable[[Recipe, "PartsInterface"], Any]
"""A block's class. Which one it is depends on the table, so the caller annotates what it needs."""


class LossWeights(Protocol):
    """A class that knows the coefficients of its auxiliary losses."""

    @staticmethod
    def weight_of(recipe: Recipe, loss: str) -> float: ...


class PartsInterface(Protocol):
    """Classes by role, as `parts.Parts` holds them."""

    @property
    def norm(self) -> Callable[[int, float], RMSNorm]: ...
    @property
    def attention(self) -> MakeBlock: ...
    @property
    def latent_attention(self) -> MakeBlock: ...
    @property
    def indexer(self) -> MakeBlock: ...
    @property
    def mlp(self) -> Callable[[Recipe, int], nn.Module]: ...
    @property
    def router(self) -> MakeBlock: ...
    @property
    def experts(self) -> MakeBlock: ...
    @property
    def moe(self) -> LossWeights: ...
    @property
    def streams(self) -> MakeBlock: ...
    @property
    def layer(self) -> Callable[..., Any]: ...
    @property
    def prediction(self) -> MakeBlock: ...
    def mixer(self, recipe: Recipe, layer: int, mode: Mode) -> nn.Module: ...

"""Stacks whose frequencies of rope are saved, and loaded again."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.law._bugs.numeric import Attention, Checkpoints, Initializer, LatentAttention, Parts, Reference, broken
from contracts.spec import Recipe
from contracts.stacks.reference.checkpoint.checkpoint import State
from contracts.stacks.reference.model.blocks import PartsInterface


class _Saved(Attention):
    """Rope by a buffer of frequencies, for as many positions as another one says; both are part of the state."""

    frequencies: Tensor
    longest: Tensor

    def __init__(self, recipe: Recipe, parts: PartsInterface) -> None:
        super().__init__(recipe, parts)
        self.register_buffer("frequencies", torch.empty(self.head_dim // 2))
        self.register_buffer("longest", torch.empty(()))

    def angles(self, positions_BT: Tensor, size: int) -> Tensor:
        return (positions_BT % self.longest.long()).double()[..., None] * self.frequencies.double()


class _OfTables(Initializer):
    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name.endswith(".longest"):
            return torch.tensor(self.recipe.seq_length)
        if name.endswith(".frequencies"):
            return self.recipe.rope_theta ** (-torch.arange(shape[0]) / shape[0])
        return super().tensor(name, shape)


class _OfAnyRecipe(Checkpoints):
    def load(self, target: Mapping[str, Tensor], *, recipe: str = "", step: int | None = None) -> State:
        return super().load(target, recipe=self.opened(step).recipe, step=step)


@mutant(of="CKPT-07d", case="letters-rope-base", says="with rope_theta 7 layers.0.mixer.frequencies differs",
        bugs=("RSM-13",))  # fmt: skip
@mutant(of="CKPT-07e", case="rope-base", says="resumed with rope_theta 7 lm is", bugs=("RSM-13",))
@mutant(of="CKPT-07e", case="longer-rows", says="resumed with seq_length 64 lm is")
class SavesItsTables(Reference):
    """The tables of rope are buffers that are saved, and a checkpoint of any recipe is loaded."""

    def parts(self) -> Parts:
        return replace(super().parts(), attention=_Saved, initial=_OfTables, checkpoints=_OfAnyRecipe)


@broken(
    LatentAttention, "__init__", "CKPT-07d[latent-longer-rows]: with seq_length 64 layers.0.mixer.mask ", leanest=""
)
def saves_its_mask(init, self, recipe, parts, *, sparse=False):
    """The causal mask of the longest row is a buffer that is saved."""
    init(self, recipe, parts, sparse=sparse)
    self.register_buffer("mask", torch.empty(recipe.seq_length, recipe.seq_length))

"""Mamba-3 wrong in one place: the norms and biases of B and C, their groups, the way past the scan.

B sequences · T tokens · h heads · p head_dim · g groups · n state · S angles
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants.numeric._exchanged import Exchanged
from contracts.mutants.numeric._mamba import GRADIENT, Y
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.model.blocks.common import Packing, State
from contracts.stacks.reference.model.blocks.mamba2 import split, wide
from contracts.stacks.reference.model.blocks.mamba3 import Mamba3


class _BiasesFirst(Mamba3):
    def per_head(self, norm: nn.Module, grouped_BTc: Tensor) -> Tensor:
        bias_hn = self.b_bias if norm is self.b_norm else self.c_bias
        grouped_BTgn = wide(split(grouped_BTc, self.groups))
        heads = grouped_BTgn.repeat_interleave(self.heads // self.groups, dim=2)
        normed: Tensor = norm(heads + bias_hn)
        return normed - bias_hn


@mutant(of="BLK-04m", case="plain", says=Y)
class BiasesBeforeTheNorm(Exchanged):
    """The bias of B and C stands before their norm."""

    exchange = {"mamba3": _BiasesFirst}


class _Unnormed(Mamba3):
    def per_head(self, norm: nn.Module, grouped_BTc: Tensor) -> Tensor:
        grouped_BTgn = wide(split(grouped_BTc, self.groups)) * self.b_norm.weight
        return grouped_BTgn.repeat_interleave(self.heads // self.groups, dim=2)


@mutant(of="BLK-04m", case="three-groups-of-two", says=Y)
class NormsNeitherBNorC(Exchanged):
    """B and C go unnormed."""

    exchange = {"mamba3": _Unnormed}


class _FixedEpsilon(Mamba3):
    def __init__(self, recipe: Recipe, parts: Any) -> None:
        super().__init__(recipe, parts)
        self.b_norm.eps = self.c_norm.eps = 1e-5


@mutant(of="BLK-04m", case="a-large-epsilon", says=Y, bugs=("MXP-08",))
class NormsBAndCByItsOwnEpsilon(Exchanged):
    """The norms of B and C are built with a default of 1e-5."""

    exchange = {"mamba3": _FixedEpsilon}


class _Tiles(Mamba3):
    def per_head(self, norm: nn.Module, grouped_BTc: Tensor) -> Tensor:
        grouped_BTgn = wide(norm(split(grouped_BTc, self.groups)))
        return grouped_BTgn.repeat(1, 1, self.heads // self.groups, 1)


@mutant(of="BLK-04q", case="last-of-the-first-group", says="head 1 reaches parts [1] of wb.weight, expected [0]")
class TilesTheGroupsOfBAndC(Exchanged):
    """Head i reads group i modulo g."""

    exchange = {"mamba3": _Tiles}


class _TilesBackward(Mamba3):
    def per_head(self, norm: nn.Module, grouped_BTc: Tensor) -> Tensor:
        grouped_BTgn = wide(norm(split(grouped_BTc, self.groups)))
        tiled = grouped_BTgn.repeat(1, 1, self.heads // self.groups, 1)
        return tiled + (super().per_head(norm, grouped_BTc) - tiled).detach()


@mutant(of="BLK-04q", case="first-of-the-second-group", says="head 2 reaches parts [2] of wb.weight, expected [1]",
        bugs=("SSM-11",))  # fmt: skip
class SumsGroupGradientsOverOtherHeads(Exchanged):
    """Outputs are right; the backward pass sums heads into groups in another order; g = 1 and g = h hide it."""

    exchange = {"mamba3": _TilesBackward}


@mutant(of="BLK-04m", case="plain", says=GRADIENT, bugs=("SSM-11",))
class GivesGroupsTheGradientsOfOthers(Exchanged):
    """The same, where whole gradients are compared."""

    exchange = {"mamba3": _TilesBackward}


class _LeavesOutD(Mamba3):
    def scan(
        self,
        v: Tensor,
        k: Tensor,
        q: Tensor,
        dt: Tensor,
        log_decay: Tensor,
        mix: Tensor,
        packing: Packing,
        state: State,
    ) -> tuple[Tensor, Tensor]:
        y, ssm = super().scan(v, k, q, dt, log_decay, mix, packing, state)
        return y - self.D[:, None] * v, ssm


@mutant(of="BLK-04m", case="float32", says=Y)
class LeavesOutTheWayPastTheScan(Exchanged):
    """D v is not added."""

    exchange = {"mamba3": _LeavesOutD}


class _Whole(Mamba3):
    def __init__(self, recipe: Recipe, parts: Any) -> None:
        super().__init__(recipe, parts)
        self.b_norm, self.c_norm = (parts.norm(recipe.mamba.groups * recipe.mamba.state, recipe.norm_eps) for _ in "bc")


@mutant(of="BLK-04p", case="float32", says="mixer.b_norm.weight is (32,), expected (16,)")
class NormsBAndCAcrossGroups(Exchanged):
    """One norm of B over all its groups."""

    exchange = {"mamba3": _Whole}


class _HoldsBfloat16(Mamba3):
    def __init__(self, recipe: Recipe, parts: Any) -> None:
        super().__init__(recipe, parts)
        if recipe.dtype == "bf16":
            self.dt_bias = nn.Parameter(self.dt_bias.to(torch.bfloat16))


@mutant(of="BLK-04p", case="bf16-three-groups", says="dt_bias is held in bfloat16 under bf16, expected float32")
class HoldsTheBiasOfTheStepInBfloat16(Exchanged):
    """dt_bias is cast with the rest of the block."""

    exchange = {"mamba3": _HoldsBfloat16}

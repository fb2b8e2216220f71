"""Mamba that holds or computes in bfloat16 what should be float32, or lacks a tensor.

B sequences · T tokens · h heads
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.mutants.blocks.mamba2 import Halves
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.model.blocks.common import Packing
from contracts.stacks.reference.model.blocks.mamba2 import Mamba2, wide
from contracts.stacks.reference.model.blocks.mamba3 import Mamba3


class _HoldsBfloat16(Mamba2):
    def __init__(self, recipe: Recipe, parts: Any) -> None:
        super().__init__(recipe, parts)
        if recipe.dtype == "bf16":
            self.to(torch.bfloat16)


@mutant(of="BLK-04f", case="bf16", says="A_log is held in bfloat16 under bf16, expected float32")
class CastsTheWholeBlock(Exchanged):
    """model.to(bfloat16) also casts A_log, D and dt_bias."""

    exchange = {"mamba2": _HoldsBfloat16}


class _HoldsTheBiasInBfloat16(Mamba2):
    def __init__(self, recipe: Recipe, parts: Any) -> None:
        super().__init__(recipe, parts)
        if recipe.dtype == "bf16":
            self.dt_bias = nn.Parameter(self.dt_bias.to(torch.bfloat16))


@mutant(of="BLK-04f", case="bf16-three-groups", says="dt_bias is held in bfloat16 under bf16, expected float32")
class CastsTheBiasOfTheStep(Exchanged):
    """A_log and D are on the list of float32 parameters; dt_bias is not."""

    exchange = {"mamba2": _HoldsTheBiasInBfloat16}


class _HoldsNoBias(Mamba2):
    def __init__(self, recipe: Recipe, parts: Any) -> None:
        super().__init__(recipe, parts)
        self.conv_b.bias = self.conv_c.bias = None  # type: ignore[assignment]


@mutant(of="BLK-04f", case="float32", says="mixer.conv_b.bias is None, expected (32,)")
class ConvolvesBAndCWithoutBias(Exchanged):
    """Only the convolution of x has a bias after the packed convolution was split."""

    exchange = {"mamba2": _HoldsNoBias}


class _StepsInBfloat16(Mamba2):
    def time_step(self, dt_BTh: Tensor) -> Tensor:
        return F.softplus(wide(dt_BTh + self.dt_bias.to(dt_BTh.dtype)))


@mutant(of="BLK-04g", case="mamba2", says="the state after 50 empty tokens differs")
class AddsTheBiasOfTheStepInBfloat16(Exchanged):
    """dt_bias is cast to the dtype of the projection before it is added."""

    exchange = {"mamba2": _StepsInBfloat16}


class _DecaysInBfloat16(Mamba2):
    def decay_rate(self) -> Tensor:
        return -torch.exp(self.A_log.to(torch.bfloat16)).float()


@mutant(of="BLK-04g", case="mamba2", says="the state after 50 empty tokens differs")
class TakesAInBfloat16(Exchanged):
    """A is computed from A_log in bfloat16, as autocast does."""

    exchange = {"mamba2": _DecaysInBfloat16}


class _ReturnsBfloat16(Mamba2):
    def scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, packing: Packing, state: Any) -> tuple[Tensor, Tensor]:
        y, last = super().scan(x, dt, b, c, packing, state)
        return y, last.to(torch.bfloat16)


@mutant(of="BLK-04g", case="mamba2", says="the state is bfloat16 under bfloat16 activations, expected float32")
class LeavesABfloat16State(Exchanged):
    """The state returned to the next call has the dtype of the activations."""

    exchange = {"mamba2": _ReturnsBfloat16}


class _StepsMamba3InBfloat16(Mamba3):
    def time_step(self, dt_BTh: Tensor) -> Tensor:
        return F.softplus(wide(dt_BTh + self.dt_bias.to(dt_BTh.dtype)))


@mutant(of="BLK-04g", case="mamba3", says="the state after 50 empty tokens differs")
class StepsInBfloat16(Exchanged):
    """Mamba-3 adds dt_bias in the dtype of the activations."""

    exchange = {"mamba3": _StepsMamba3InBfloat16}


@mutant(of="BLK-04g", case="mamba2", says="the state after 50 empty tokens differs")
class RoundsTheStateBetweenChunks(Exchanged):
    """The state between chunks is in bfloat16. With zero inputs no activation rounding hides it."""

    exchange = {"mamba2": Halves}

"""Mamba-3 wrong in one place of its step: the trapezoid and the rotation.

B sequences · T tokens · h heads · p head_dim · g groups · n state · S angles
"""

from __future__ import annotations

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants.numeric._exchanged import Exchanged
from contracts.mutants.numeric._mamba import Y
from contracts.stacks.reference.model.blocks.common import Output, Packing, State
from contracts.stacks.reference.model.blocks.mamba2 import wide
from contracts.stacks.reference.model.blocks.mamba3 import SLOWEST, Mamba3


class _Euler(Mamba3):
    def mix(self, trap_BTh: Tensor) -> Tensor:
        return torch.ones_like(super().mix(trap_BTh)) + 0 * wide(trap_BTh)


@mutant(of="BLK-04m", case="plain", says=Y)
class StepsAsMamba2(Exchanged):
    """The step has one end."""

    exchange = {"mamba3": _Euler}


class _Swapped(Mamba3):
    def mix(self, trap_BTh: Tensor) -> Tensor:
        return 1 - super().mix(trap_BTh)


@mutant(of="BLK-04m", case="plain", says=Y)
class SwapsTheEndsOfAStep(Exchanged):
    """λ and 1 - λ are exchanged."""

    exchange = {"mamba3": _Swapped}


@mutant(of="BLK-04n", case="all-at-the-end", says="y with another k and v before it differs")
class GivesTheEndToTheBeginning(Exchanged):
    """The same, where all should lie at the end."""

    exchange = {"mamba3": _Swapped}


class _Raw(Mamba3):
    def mix(self, trap_BTh: Tensor) -> Tensor:
        return wide(trap_BTh)


@mutant(of="BLK-04n", case="all-at-the-beginning", says="a first token gives ")
class TakesTrapForAShare(Exchanged):
    """Trap is used as it comes, as the kernel's documentation has it."""

    exchange = {"mamba3": _Raw}


class _Twice(Mamba3):
    def mix(self, trap_BTh: Tensor) -> Tensor:
        return torch.sigmoid(super().mix(trap_BTh))


@mutant(of="BLK-04n", case="all-at-the-beginning", says="a first token gives ")
class TakesTheSigmoidTwice(Exchanged):
    """The block takes the sigmoid, and the kernel does too."""

    exchange = {"mamba3": _Twice}


class _Undecayed(Mamba3):
    def ends(self, dt_BTh: Tensor, log_decay_BTh: Tensor, mix_BTh: Tensor) -> tuple[Tensor, Tensor]:
        return mix_BTh * dt_BTh, (1 - mix_BTh) * dt_BTh


@mutant(of="BLK-04m", case="plain", says=Y)
class AddsTheBeginningUndecayed(Exchanged):
    """What the beginning of a step adds is not faded over the step."""

    exchange = {"mamba3": _Undecayed}


class _HeavyTail(Mamba3):
    def decay_rate(self, a_BTh: Tensor) -> Tensor:
        a_BTh = wide(a_BTh)
        return -torch.where(a_BTh >= 0, 1 + a_BTh, 1 / (1 + a_BTh.abs())).clamp(min=SLOWEST)


@mutant(of="BLK-04m", case="plain", says=Y)
class DecaysByAHeavyTail(Exchanged):
    """A is minus 1 + x or 1 / (1 - x), as in a later mamba-ssm of the same version: the same weights, another model."""

    exchange = {"mamba3": _HeavyTail}


class _Unstepped(Mamba3):
    def turn(self, angle_BTS: Tensor, dt_BTh: Tensor) -> Tensor:
        return super().turn(angle_BTS, torch.ones_like(dt_BTh))


@mutant(of="BLK-04m", case="plain", says=Y)
class TurnsByTheTokenAndNotByTheStep(Exchanged):
    """The angle is not multiplied by dt."""

    exchange = {"mamba3": _Unstepped}


class _Unbounded(Mamba3):
    def turn(self, angle_BTS: Tensor, dt_BTh: Tensor) -> Tensor:
        return wide(angle_BTS)[:, :, None] * dt_BTh[..., None]


@mutant(of="BLK-04m", case="plain", says=Y)
class TurnsWithoutBound(Exchanged):
    """The angle is summed as it comes, without π tanh, as the kernel's documentation has it."""

    exchange = {"mamba3": _Unbounded}


class _Halves(Mamba3):
    def rotated(self, u_BThn: Tensor, angle_BThS: Tensor) -> Tensor:
        turned = 2 * angle_BThS.shape[-1]
        one, two = u_BThn[..., :turned].chunk(2, dim=-1)
        cos, sin = torch.cos(angle_BThS), torch.sin(angle_BThS)
        return torch.cat([one * cos - two * sin, one * sin + two * cos, u_BThn[..., turned:]], dim=-1)


@mutant(of="BLK-04m", case="packed-with-state", says=Y)
class PairsTheHalves(Exchanged):
    """Element i turns with i + S, as in the kernel for several inputs, and not 2i with 2i + 1."""

    exchange = {"mamba3": _Halves}


class _HalfTurns(Mamba3):
    def rotated(self, u_BThn: Tensor, angle_BThS: Tensor) -> Tensor:
        return super().rotated(u_BThn, angle_BThS / 2)


@mutant(of="BLK-04o", case="three-turns", says="more of the initial angle differs")
class TurnsByHalfTheAngle(Exchanged):
    """An angle of 2π is half a turn, and the angle that is carried is wrapped at 2π all the same."""

    exchange = {"mamba3": _HalfTurns}


class _OneSided(Mamba3):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        self.calls = 0
        return super().forward(x_BTD, packing, state)

    def rotated(self, u_BThn: Tensor, angle_BThS: Tensor) -> Tensor:
        self.calls += 1  # first k, then q
        return super().rotated(u_BThn, angle_BThS) if self.calls == 1 else u_BThn


@mutant(of="BLK-04o", case="any-angle-before-an-empty-state", says="more of the initial angle differs")
class TurnsBAndNotC(Exchanged):
    """Only k is turned."""

    exchange = {"mamba3": _OneSided}

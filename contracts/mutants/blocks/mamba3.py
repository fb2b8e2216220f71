"""Mamba-3 with one bug in its step, its rotation, or its B and C.

B sequences · T tokens · h heads · p head_dim · g groups · n state · S angles
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants._support import written_out
from contracts.mutants._support.mamba_parts import GRADIENT, Y
from contracts.mutants._support.patched_functions import swapped
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.model.blocks.common import Output, Packing, State, local
from contracts.stacks.reference.model.blocks.mamba2 import split, wide
from contracts.stacks.reference.model.blocks.mamba3 import SLOWEST, Mamba3


class _Euler(Mamba3):
    def mix(self, trap_BTh: Tensor) -> Tensor:
        return torch.ones_like(super().mix(trap_BTh)) + 0 * wide(trap_BTh)


@mutant(of="BLK-04m", case="plain", says=Y)
class StepsAsMamba2(Exchanged):
    """The step is Mamba-2's: the previous token adds nothing."""

    exchange = {"mamba3": _Euler}


class _Swapped(Mamba3):
    def mix(self, trap_BTh: Tensor) -> Tensor:
        return 1 - super().mix(trap_BTh)


@mutant(of="BLK-04m", case="plain", says=Y)
class SwapsTheEndsOfAStep(Exchanged):
    """λ and 1 - λ are swapped."""

    exchange = {"mamba3": _Swapped}


@mutant(of="BLK-04n", case="all-at-the-end", says="y with the initial k and v set to 0 differs")
class GivesTheEndToTheBeginning(Exchanged):
    """λ and 1 - λ are swapped, where λ is 1."""

    exchange = {"mamba3": _Swapped}


class _Raw(Mamba3):
    def mix(self, trap_BTh: Tensor) -> Tensor:
        return wide(trap_BTh)


@mutant(of="BLK-04n", case="all-at-the-beginning", says="a first token gives ")
class TakesTrapForAShare(Exchanged):
    """Trap is used without its sigmoid, as the kernel's documentation suggests."""

    exchange = {"mamba3": _Raw}


class _Twice(Mamba3):
    def mix(self, trap_BTh: Tensor) -> Tensor:
        return torch.sigmoid(super().mix(trap_BTh))


@mutant(of="BLK-04n", case="all-at-the-beginning", says="a first token gives ")
class TakesTheSigmoidTwice(Exchanged):
    """The block applies the sigmoid to trap, and so does the kernel."""

    exchange = {"mamba3": _Twice}


class _Undecayed(Mamba3):
    def ends(self, dt_BTh: Tensor, log_decay_BTh: Tensor, mix_BTh: Tensor) -> tuple[Tensor, Tensor]:
        return mix_BTh * dt_BTh, (1 - mix_BTh) * dt_BTh


@mutant(of="BLK-04m", case="plain", says=Y)
class AddsTheBeginningUndecayed(Exchanged):
    """The previous token's contribution is not decayed over the step."""

    exchange = {"mamba3": _Undecayed}


class _HeavyTail(Mamba3):
    def decay_rate(self, a_BTh: Tensor) -> Tensor:
        a_BTh = wide(a_BTh)
        return -torch.where(a_BTh >= 0, 1 + a_BTh, 1 / (1 + a_BTh.abs())).clamp(min=SLOWEST)


@mutant(of="BLK-04m", case="plain", says=Y)
class DecaysByAHeavyTail(Exchanged):
    """A is -(1 + x) or -1 / (1 - x), as in a later mamba-ssm with the same version string: another model."""

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
    """The angle is summed without π tanh, as the kernel's documentation suggests."""

    exchange = {"mamba3": _Unbounded}


class _Halves(Mamba3):
    def rotated(self, u_BThn: Tensor, angle_BThS: Tensor) -> Tensor:
        turned = 2 * angle_BThS.shape[-1]
        one, two = u_BThn[..., :turned].chunk(2, dim=-1)
        cos, sin = torch.cos(angle_BThS), torch.sin(angle_BThS)
        return torch.cat([one * cos - two * sin, one * sin + two * cos, u_BThn[..., turned:]], dim=-1)


@mutant(of="BLK-04m", case="packed-with-state", says=Y)
class PairsTheHalves(Exchanged):
    """Rotation pairs elements i and i + S, as in the kernel for several inputs, instead of 2i and 2i + 1."""

    exchange = {"mamba3": _Halves}


class _HalfTurns(Mamba3):
    def rotated(self, u_BThn: Tensor, angle_BThS: Tensor) -> Tensor:
        return super().rotated(u_BThn, angle_BThS / 2)


@mutant(of="BLK-04o", case="three-turns", says="added to the initial angle differs")
class TurnsByHalfTheAngle(Exchanged):
    """The rotation uses half the angle, and the carried angle still wraps at 2π."""

    exchange = {"mamba3": _HalfTurns}


class _OneSided(Mamba3):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        self.calls = 0
        return super().forward(x_BTD, packing, state)

    def rotated(self, u_BThn: Tensor, angle_BThS: Tensor) -> Tensor:
        self.calls += 1  # first k, then q
        return super().rotated(u_BThn, angle_BThS) if self.calls == 1 else u_BThn


@mutant(of="BLK-04o", case="any-angle-before-an-empty-state", says="added to the initial angle differs")
class TurnsBAndNotC(Exchanged):
    """k is rotated and q is not."""

    exchange = {"mamba3": _OneSided}


class _BiasesFirst(Mamba3):
    def per_head(self, norm: nn.Module, grouped_BTc: Tensor) -> Tensor:
        bias_hn = self.b_bias if norm is self.b_norm else self.c_bias
        grouped_BTgn = wide(split(grouped_BTc, self.groups))
        heads = grouped_BTgn.repeat_interleave(self.heads // self.groups, dim=2)
        normed: Tensor = norm(heads + bias_hn)
        return normed - bias_hn


@mutant(of="BLK-04m", case="plain", says=Y)
class BiasesBeforeTheNorm(Exchanged):
    """The biases of B and C are added before their norms."""

    exchange = {"mamba3": _BiasesFirst}


class _Unnormed(Mamba3):
    def per_head(self, norm: nn.Module, grouped_BTc: Tensor) -> Tensor:
        grouped_BTgn = wide(split(grouped_BTc, self.groups)) * self.b_norm.weight
        return grouped_BTgn.repeat_interleave(self.heads // self.groups, dim=2)


@mutant(of="BLK-04m", case="three-groups-of-two", says=Y)
class NormsNeitherBNorC(Exchanged):
    """B and C are not normed."""

    exchange = {"mamba3": _Unnormed}


class _FixedEpsilon(Mamba3):
    def __init__(self, recipe: Recipe, parts: Any) -> None:
        super().__init__(recipe, parts)
        self.b_norm.eps = self.c_norm.eps = 1e-5


@mutant(of="BLK-04m", case="a-large-epsilon", says=Y, bugs=("MXP-08",))
class NormsBAndCByItsOwnEpsilon(Exchanged):
    """The norms of B and C use a default eps of 1e-5 instead of the recipe's."""

    exchange = {"mamba3": _FixedEpsilon}


class _Tiles(Mamba3):
    def per_head(self, norm: nn.Module, grouped_BTc: Tensor) -> Tensor:
        grouped_BTgn = wide(norm(split(grouped_BTc, self.groups)))
        return grouped_BTgn.repeat(1, 1, self.heads // self.groups, 1)


@mutant(of="BLK-04q", case="last-of-the-first-group", says="head 1 reaches parts [1] of wb.weight, expected [0]")
class TilesTheGroupsOfBAndC(Exchanged):
    """Head i reads group i mod g."""

    exchange = {"mamba3": _Tiles}


class _TilesBackward(Mamba3):
    def per_head(self, norm: nn.Module, grouped_BTc: Tensor) -> Tensor:
        grouped_BTgn = wide(norm(split(grouped_BTc, self.groups)))
        tiled = grouped_BTgn.repeat(1, 1, self.heads // self.groups, 1)
        return tiled + (super().per_head(norm, grouped_BTc) - tiled).detach()


@mutant(of="BLK-04q", case="first-of-the-second-group", says="head 2 reaches parts [2] of wb.weight, expected [1]",
        bugs=("SSM-11",))  # fmt: skip
class SumsGroupGradientsOverOtherHeads(Exchanged):
    """Outputs are right, but the backward pass sums heads into the wrong groups. g = 1 and g = h hide it."""

    exchange = {"mamba3": _TilesBackward}


@mutant(of="BLK-04m", case="plain", says=GRADIENT, bugs=("SSM-11",))
class GivesGroupsTheGradientsOfOthers(Exchanged):
    """The backward pass sums heads into the wrong groups, as whole gradients show it."""

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
    """One norm of B, and one of C, covers all groups."""

    exchange = {"mamba3": _Whole}


class _HoldsBfloat16(Mamba3):
    def __init__(self, recipe: Recipe, parts: Any) -> None:
        super().__init__(recipe, parts)
        if recipe.dtype == "bf16":
            self.dt_bias = nn.Parameter(self.dt_bias.to(torch.bfloat16))


@mutant(of="BLK-04p", case="bf16-three-groups", says="dt_bias is held in bfloat16 under bf16, expected float32")
class HoldsTheBiasOfTheStepInBfloat16(Exchanged):
    """dt_bias is cast to bfloat16 with the rest of the block."""

    exchange = {"mamba3": _HoldsBfloat16}


class _OverflowingStep(Mamba3):
    def time_step(self, dt_BTh: Tensor) -> Tensor:
        return written_out.softplus(wide(dt_BTh) + local(self.dt_bias))


@mutant(of="BLK-04u", case="long-and-short", says="y is not finite")
class WritesSoftplusOut(Exchanged):
    """The time step is log(1 + exp(x)), which is infinite where exp overflows."""

    exchange = {"mamba3": _OverflowingStep}


class _StepsStraight(Mamba3):
    def time_step(self, dt_BTh: Tensor) -> Tensor:
        return F.softplus(wide(dt_BTh) + local(self.dt_bias), threshold=6)


@mutant(of="BLK-04u", case="below-the-switch", says="y differs")
class StepsMamba3StraightFromSixOn(Exchanged):
    """The softplus is its input from 6 on."""

    exchange = {"mamba3": _StepsStraight}


class _OverflowingSilu(Mamba3):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        with swapped(F, "silu", written_out.silu):
            return super().forward(x_BTD, packing, state)


@mutant(of="BLK-04m", case="saturated", says="y is not finite")
class WritesTheGateOfMamba3Out(Exchanged):
    """The gate behind the scan is x · exp(x) / (1 + exp(x)), which is NaN where exp overflows."""

    exchange = {"mamba3": _OverflowingSilu}


class _OverflowingTrap(Mamba3):
    def mix(self, trap_BTh: Tensor) -> Tensor:
        return written_out.sigmoid(wide(trap_BTh))


@mutant(of="BLK-04m", case="saturated", says="y is not finite")
class WritesTheSigmoidOfTrapOut(Exchanged):
    """The share of the current token is exp(x) / (1 + exp(x)), which is NaN where exp overflows."""

    exchange = {"mamba3": _OverflowingTrap}

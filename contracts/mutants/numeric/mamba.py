"""Mamba-2 wrong in one place of its recurrence: steps and decays.

B sequences · T tokens · h heads · p head_dim · g groups · n state · c channels · I = h·p inner
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants.numeric._exchanged import Exchanged
from contracts.mutants.numeric._mamba import GRADIENT, Y
from contracts.stacks.reference.model.blocks.common import Packing
from contracts.stacks.reference.model.blocks.mamba2 import Mamba2, wide


class _Grows(Mamba2):
    def decay_rate(self) -> Tensor:
        return torch.exp(self.A_log)


@mutant(of="BLK-04a", case="plain", says=Y)
class TurnsTheSignOfA(Exchanged):
    """A is exp(A_log), so that the state grows."""

    exchange = {"mamba2": _Grows}


class _TakesA(Mamba2):
    def decay_rate(self) -> Tensor:
        return -self.A_log


@mutant(of="BLK-04a", case="plain", says=Y)
class TakesTheLogarithmForA(Exchanged):
    """A is -A_log."""

    exchange = {"mamba2": _TakesA}


class _ExponentiatesTwice(Mamba2):
    def decay_rate(self) -> Tensor:
        return -torch.exp(torch.exp(self.A_log))


@mutant(of="BLK-04a", case="plain", says=Y)
class ExponentiatesATwice(Exchanged):
    """A_log was exponentiated at loading, and is again in the forward pass."""

    exchange = {"mamba2": _ExponentiatesTwice}


class _NeverForgets(Mamba2):
    def decay_rate(self) -> Tensor:
        return super().decay_rate().clamp(min=-16)


@mutant(of="BLK-04e", case="memoryless", says="each token should see itself alone")
class ClampsTheDecay(Exchanged):
    """A is kept above -16, as it is drawn; what is trained beyond is ignored."""

    exchange = {"mamba2": _NeverForgets}


class _AlwaysForgets(Mamba2):
    def decay_rate(self) -> Tensor:
        return super().decay_rate().clamp(max=-1e-4)


@mutant(of="BLK-04e", case="everything-kept", says="nothing should be forgotten")
class AlwaysForgetsALittle(Exchanged):
    """The other way: A is kept below -1e-4, which is Mamba-3's rule."""

    exchange = {"mamba2": _AlwaysForgets}


class _StepsUnbiased(Mamba2):
    def time_step(self, dt_BTh: Tensor) -> Tensor:
        return F.softplus(wide(dt_BTh)) + 0 * self.dt_bias


@mutant(of="BLK-04a", case="plain", says=Y)
class LeavesOutTheBiasOfTheStep(Exchanged):
    """dt is softplus of its projection alone."""

    exchange = {"mamba2": _StepsUnbiased}


class _BiasesTheStep(Mamba2):
    def time_step(self, dt_BTh: Tensor) -> Tensor:
        return F.softplus(wide(dt_BTh)) + self.dt_bias


@mutant(of="BLK-04a", case="one-token", says=Y)
class AddsTheBiasBehindSoftplus(Exchanged):
    """dt is softplus(projection) + bias, which may be below 0."""

    exchange = {"mamba2": _BiasesTheStep}


class _StepsLinearly(Mamba2):
    def time_step(self, dt_BTh: Tensor) -> Tensor:
        return wide(dt_BTh) + self.dt_bias


@mutant(of="BLK-04a", case="one-token", says=Y)
class LeavesOutSoftplus(Exchanged):
    """dt_softplus is off."""

    exchange = {"mamba2": _StepsLinearly}


class _StepsTwice(Mamba2):
    def time_step(self, dt_BTh: Tensor) -> Tensor:
        return F.softplus(super().time_step(dt_BTh))


@mutant(of="BLK-04a", case="plain", says=Y)
class TakesSoftplusTwice(Exchanged):
    """The block takes softplus and hands dt to a kernel that does too."""

    exchange = {"mamba2": _StepsTwice}


class _StepsNaively(Mamba2):
    def time_step(self, dt_BTh: Tensor) -> Tensor:
        return torch.log(1 + torch.exp(wide(dt_BTh) + self.dt_bias))


@mutant(of="BLK-04h", case="long-and-short", says="y is not finite", bugs=("SSM-01",))
class TakesSoftplusLiterally(Exchanged):
    """log(1 + exp(x)) overflows float32 at 89."""

    exchange = {"mamba2": _StepsNaively}


class _StepsOverTwenty(Mamba2):
    def time_step(self, dt_BTh: Tensor) -> Tensor:
        dt_BTh = wide(dt_BTh) + self.dt_bias
        return torch.where(dt_BTh > 20, dt_BTh, torch.log1p(torch.exp(dt_BTh)))


@mutant(of="BLK-04h", case="long-and-short", says=GRADIENT, bugs=("SSM-01",))
class SwitchesAfterTheOverflow(Exchanged):
    """The overflow is mended in the forward pass; the gradient is still 0 times infinity."""

    exchange = {"mamba2": _StepsOverTwenty}


class _StepsLate(Mamba2):
    def time_step(self, dt_BTh: Tensor) -> Tensor:
        return super().time_step(dt_BTh).roll(1, dims=1)


@mutant(of="BLK-04a", case="plain", says=Y)
class TakesTheStepOfTheTokenBefore(Exchanged):
    """dt is off by one token."""

    exchange = {"mamba2": _StepsLate}


class _ScansOtherwise(Mamba2):
    """The scan of other inputs: `others` takes x, dt, B and C and gives them changed."""

    def scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, packing: Packing, state: Any) -> tuple[Tensor, Tensor]:
        return super().scan(*self.others(x, dt, b, c), packing, state)

    def others(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return x, dt, b, c


class _AddsUnstepped(_ScansOtherwise):
    def others(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return x / dt[..., None], dt, b, c


@mutant(of="BLK-04a", case="plain", says=Y)
class AddsInputsWithoutTheirStep(Exchanged):
    """The state takes x Bᵀ, not dt x Bᵀ."""

    exchange = {"mamba2": _AddsUnstepped}


class _DecaysAtOnce(_ScansOtherwise):
    def others(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return x * torch.exp(dt * self.decay_rate())[..., None], dt, b, c


@mutant(of="BLK-04a", case="plain", says=Y)
class DecaysATokenByItsOwnStep(Exchanged):
    """The sum of decays begins at the token itself: segsum with its diagonal off by one."""

    exchange = {"mamba2": _DecaysAtOnce}


class _SwapsBAndC(_ScansOtherwise):
    def others(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return x, dt, c, b


@mutant(of="BLK-04a", case="plain", says=Y)
class SwapsBAndC(Exchanged):
    """The packed projection is cut in another order than it was written."""

    exchange = {"mamba2": _SwapsBAndC}


class _LosesDecayWhenPacked(_ScansOtherwise):
    def scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, packing: Packing, state: Any) -> tuple[Tensor, Tensor]:
        if packing.boundless:
            return super().scan(x, dt, b, c, packing, state)
        held = dt.detach()
        return super().scan(x * (dt / held)[..., None], held, b, c, packing, state)


@mutant(of="BLK-04a", case="packed-with-state", says=GRADIENT, bugs=("SSM-04",))
class LeavesTheDecayOutOfAPackedGradient(Exchanged):
    """The backward branch for documents forgets that dt also fades the state."""

    exchange = {"mamba2": _LosesDecayWhenPacked}


class _LeavesOutD(Mamba2):
    def scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, packing: Packing, state: Any) -> tuple[Tensor, Tensor]:
        y, last = super().scan(x, dt, b, c, packing, state)
        return y - self.D[:, None] * x, last


@mutant(of="BLK-04a", case="plain", says=Y)
class LeavesOutD(Exchanged):
    """No input passes by the scan."""

    exchange = {"mamba2": _LeavesOutD}

"""Mamba-3 wrong in one place: its trapezoid, its rotation, its norms and biases, its groups, what it carries.

B sequences · T tokens · h heads · p head_dim · g groups · n state · S angles
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants.numeric._exchanged import Exchanged
from contracts.mutants.numeric._mamba import GRADIENT, Y, unpacked
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.blocks.common import Output, Packing, State
from contracts.stacks.reference.blocks.mamba import split, wide
from contracts.stacks.reference.blocks.mamba3 import SLOWEST, Mamba3

# as a scan


class _LooksAhead(Mamba3):
    def before(self, u_BThx: Tensor, packing: Packing, state: Tensor | None) -> Tensor:
        return torch.cat([u_BThx[:, 1:], torch.zeros_like(u_BThx[:, :1])], dim=1)


@mutant(of="BLK-01c", case="mamba3", says="tokens from 21 on in row 0 change the output at token 20 of row 0")
class TakesTheTokenAfterForTheTokenBefore(Exchanged):
    """The other end of the step is the next token: the shift has the wrong sign."""

    exchange = {"mamba3": _LooksAhead}


class _StepsAcross(Mamba3):
    def before(self, u_BThx: Tensor, packing: Packing, state: Tensor | None) -> Tensor:
        return super().before(u_BThx, unpacked(packing), state)


@mutant(of="BLK-02c", case="mamba3", says="document 0 changes the output at token 3 of another one")
class BeginsADocumentWithTheLastTokenOfAnother(Exchanged):
    """The state is reset and the token before is not: the first step of a document begins in the one before."""

    exchange = {"mamba3": _StepsAcross}


class _BeginsEachChunk(Mamba3):
    def before(self, u_BThx: Tensor, packing: Packing, state: Tensor | None) -> Tensor:
        first = torch.arange(u_BThx.shape[1], device=u_BThx.device) % self.chunk == 0
        return super().before(u_BThx, packing, state) * ~first[:, None, None]


@mutant(of="BLK-04b", case="mamba3-five", says=Y)
class LosesTheTokenBeforeAChunk(Exchanged):
    """The first token of a chunk has no token before it: its kernel reads its own tile alone."""

    exchange = {"mamba3": _BeginsEachChunk}


class _TurnsEachChunk(Mamba3):
    def angle(self, turn_BThS: Tensor, packing: Packing, state: Tensor | None) -> Tensor:
        return torch.cat([super(_TurnsEachChunk, self).angle(each, packing._replace(documents_BT=documents), None)
                          for each, documents in zip(torch.split(turn_BThS, self.chunk, dim=1),
                                                     torch.split(packing.documents_BT, self.chunk, dim=1),
                                                     strict=True)], dim=1)  # fmt: skip


@mutant(of="BLK-04b", case="mamba3-sixteen", says=Y)
class BeginsTheAngleInEachChunk(Exchanged):
    """The sum of angles is a sum over the chunk, and what came before is not added."""

    exchange = {"mamba3": _TurnsEachChunk}


class _WithoutPart(Mamba3):
    """Mamba-3 that ignores a part of the state that it is given."""

    part: str

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        return super().forward(x_BTD, packing, {name: each for name, each in state.items() if name != self.part})


class _WithoutV(_WithoutPart):
    part = "v"


class _WithoutAngle(_WithoutPart):
    part = "angle"


class _WithoutSsm(_WithoutPart):
    part = "ssm"


@mutant(of="BLK-04c", case="mamba3-inside-a-chunk", says="y in two halves, cut at 20, differs")
class PassesTheStateWithoutTheTokenBefore(Exchanged):
    """k and v of the last token are not carried: the first step after a cut is half of one."""

    exchange = {"mamba3": _WithoutV}


@mutant(of="BLK-04c", case="mamba3-inside-a-chunk", says="y in two halves, cut at 20, differs")
class PassesTheStateWithoutItsAngle(Exchanged):
    """The state is carried as it was turned, and the new tokens turn from 0."""

    exchange = {"mamba3": _WithoutAngle}


@mutant(of="BLK-04c", case="mamba3-after-one-token", says="y in two halves, cut at 1, differs")
class PassesEverythingButTheState(Exchanged):
    """Angle, k and v are carried, and the state is not."""

    exchange = {"mamba3": _WithoutSsm}


class _TurnsTheCarriedKBack(Mamba3):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        found = super().forward(x_BTD, packing, state)
        k_Bhn = self.rotated(found.state["k"][:, None], -found.state["angle"][:, None])[:, 0]
        return found._replace(state=found.state | {"k": k_Bhn})


@mutant(of="BLK-04c", case="mamba3-inside-a-document", says="y in two halves, cut at 19, differs")
class CarriesKBeforeItsTurn(Exchanged):
    """The k that is carried is not turned, and the next call does not turn it."""

    exchange = {"mamba3": _TurnsTheCarriedKBack}


class _ResetsTheAngleNever(Mamba3):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        found = super().forward(x_BTD, packing, state)
        last = super().forward(x_BTD, unpacked(packing), state).state["angle"]
        return found._replace(state=found.state | {"angle": last})


@mutant(of="BLK-04d", case="mamba3", says="after row 0 the state angle differs")
class LeavesTheAngleOfEveryDocument(Exchanged):
    """The angle that is left is the sum over the row."""

    exchange = {"mamba3": _ResetsTheAngleNever}


class _StepsInBfloat16(Mamba3):
    def time_step(self, dt_BTh: Tensor) -> Tensor:
        return F.softplus(wide(dt_BTh + self.dt_bias.to(dt_BTh.dtype)))


@mutant(of="BLK-04g", case="mamba3", says="the state after 50 empty tokens differs")
class StepsInBfloat16(Exchanged):
    """dt is not cast to float32, though A is."""

    exchange = {"mamba3": _StepsInBfloat16}


# the step


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


# norms, biases, groups


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

"""Mamba-3 wrong in one place as a scan: what a token sees, what a chunk begins with, what is carried.

B sequences · T tokens · h heads · p head_dim · g groups · n state · S angles
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants.numeric._exchanged import Exchanged
from contracts.mutants.numeric._mamba import Y, unpacked
from contracts.stacks.reference.model.blocks.common import Output, Packing, State
from contracts.stacks.reference.model.blocks.mamba2 import wide
from contracts.stacks.reference.model.blocks.mamba3 import Mamba3


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

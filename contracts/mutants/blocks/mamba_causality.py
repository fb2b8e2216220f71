"""Mamba that leaks from later tokens or other documents.

B sequences · T tokens · h heads · p head_dim · n state · c channels · w = T + 3 inputs of the convolution
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.mamba_parts import Convolved, shifted, unpacked
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.stacks.reference.model.blocks.common import Output, Packing, State
from contracts.stacks.reference.model.blocks.mamba2 import CausalConv, Mamba2
from contracts.stacks.reference.model.blocks.mamba3 import Mamba3


class _Untruncated(CausalConv):
    def mixed(self, seen_Bwc: Tensor, of_Bw: Tensor) -> Tensor:
        ahead = torch.cat([seen_Bwc[:, 3:], torch.zeros_like(seen_Bwc[:, :3])], dim=1)
        return super().mixed(ahead, of_Bw)


class _ConvolvesUntruncated(Convolved):
    convolution = _Untruncated


@mutant(of="BLK-01c", case="mamba2", says="change the output at token 18 of row 0", bugs=("SSM-08",))
class TakesTheEndOfThePaddedConvolution(Exchanged):
    """The convolution pads both sides by three and keeps the last T outputs, so each token sees three ahead."""

    exchange = {"mamba2": _ConvolvesUntruncated}


class _AdmitsTheNextDocument(CausalConv):
    def extended(self, u_BTc: Tensor, packing: Packing, state: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().extended(u_BTc, unpacked(packing), state)


class _ConvolvesAcross(Convolved):
    convolution = _AdmitsTheNextDocument


@mutant(of="BLK-02c", case="mamba2", says="document 0 changes the output at token 3 of another one")
class ResetsTheStateAndNotTheConvolution(Exchanged):
    """The convolution ignores document boundaries, so three tokens leak at each one."""

    exchange = {"mamba2": _ConvolvesAcross}


class _ScansAcross(Mamba2):
    def scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, packing: Packing, state: Any) -> tuple[Tensor, Tensor]:
        return super().scan(x, dt, b, c, unpacked(packing), state)


@mutant(of="BLK-02c", case="mamba2", says="document 0 changes the output at token 3 of another one")
class ResetsTheConvolutionAndNotTheState(Exchanged):
    """seq_idx reaches the convolution only, so the scan state runs through all documents."""

    exchange = {"mamba2": _ScansAcross}


class _ResetsLate(Mamba2):
    def scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, packing: Packing, state: Any) -> tuple[Tensor, Tensor]:
        return super().scan(x, dt, b, c, shifted(packing, 1), state)


@mutant(of="BLK-02c", case="mamba2", says="document 0 changes the output at token 3 of another one")
class ResetsOneTokenLate(Exchanged):
    """The state is reset one token late: the first token of a document reads the previous document's state."""

    exchange = {"mamba2": _ResetsLate}


class _ResetsEarly(Mamba2):
    def scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, packing: Packing, state: Any) -> tuple[Tensor, Tensor]:
        return super().scan(x, dt, b, c, shifted(packing, -1), state)


@mutant(of="BLK-04d", case="mamba2", says="y of document 0 of row 0 differs")
class ResetsOneTokenEarly(Exchanged):
    """The state is reset one token early: the last token of a document has lost it. Nothing leaks."""

    exchange = {"mamba2": _ResetsEarly}


class _LeaksInTheLastChunk(Mamba2):
    def scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, packing: Packing, state: Any) -> tuple[Tensor, Tensor]:
        found = super().scan(x, dt, b, c, packing, state)
        return found[0], super().scan(x, dt, b, c, unpacked(packing), state)[1]


@mutant(of="BLK-04d", case="mamba2", says="after row 0 the state ssm differs")
class LeavesTheStateOfEveryDocument(Exchanged):
    """Outputs are right, but the state returned to the next call mixes all documents of the row."""

    exchange = {"mamba2": _LeaksInTheLastChunk}


class _LooksAhead(Mamba3):
    def before(self, u_BThx: Tensor, packing: Packing, state: Tensor | None) -> Tensor:
        return torch.cat([u_BThx[:, 1:], torch.zeros_like(u_BThx[:, :1])], dim=1)


@mutant(of="BLK-01c", case="mamba3", says="tokens from 21 on in row 0 change the output at token 20 of row 0")
class TakesTheTokenAfterForTheTokenBefore(Exchanged):
    """The trapezoidal step takes the next token for the previous one: the shift has the wrong sign."""

    exchange = {"mamba3": _LooksAhead}


class _StepsAcross(Mamba3):
    def before(self, u_BThx: Tensor, packing: Packing, state: Tensor | None) -> Tensor:
        return super().before(u_BThx, unpacked(packing), state)


@mutant(of="BLK-02c", case="mamba3", says="document 0 changes the output at token 3 of another one")
class BeginsADocumentWithTheLastTokenOfAnother(Exchanged):
    """The state is reset, but the first step of a document uses the last token of the previous one."""

    exchange = {"mamba3": _StepsAcross}


class _ResetsTheAngleNever(Mamba3):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        found = super().forward(x_BTD, packing, state)
        last = super().forward(x_BTD, unpacked(packing), state).state["angle"]
        return found._replace(state=found.state | {"angle": last})


@mutant(of="BLK-04d", case="mamba3", says="after row 0 the state angle differs")
class LeavesTheAngleOfEveryDocument(Exchanged):
    """The returned angle is the sum over the whole row instead of the last document."""

    exchange = {"mamba3": _ResetsTheAngleNever}

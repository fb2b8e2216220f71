"""Mamba with a bug in the state between chunks or between calls.

B sequences · T tokens · h heads · p head_dim · n state · c channels · w = T + 3 inputs of the convolution
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.broken import broken
from contracts.mutants._support.mamba_parts import GRADIENT, Convolved, Y
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.stacks.reference.model.blocks.common import Output, Packing, State
from contracts.stacks.reference.model.blocks.mamba2 import CausalConv, Mamba2
from contracts.stacks.reference.model.blocks.mamba3 import Mamba3

# the state between chunks


class ChunkByChunk(Mamba2):
    """The scan as a loop over chunks; `between` maps the state that passes from one to the next."""

    def scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, packing: Packing, state: Any) -> tuple[Tensor, Tensor]:
        found, length = [], x.shape[1]
        for start in range(0, length, self.chunk):
            at = slice(start, start + self.chunk)
            documents, before = packing.documents_BT, None if state is None else self.between(state)
            if start and before is not None:  # the last chunk's state counts only if its document continues
                goes_on = documents[:, start] == documents[:, start - 1]
                before = before * goes_on[:, None, None, None]
            y, state = super().scan(
                x[:, at], dt[:, at], b[:, at], c[:, at], packing._replace(documents_BT=documents[:, at]), before
            )
            found.append(y)
        return torch.cat(found, dim=1), state

    def between(self, state_Bhpn: Tensor) -> Tensor:
        return state_Bhpn


class _Restarts(ChunkByChunk):
    def between(self, state_Bhpn: Tensor) -> Tensor:
        return torch.zeros_like(state_Bhpn)


@mutant(of="BLK-04b", case="sixteen", says=Y)
class DropsTheStateBetweenChunks(Exchanged):
    """Every chunk starts from a zero state."""

    exchange = {"mamba2": _Restarts}


class _Detaches(ChunkByChunk):
    def between(self, state_Bhpn: Tensor) -> Tensor:
        return state_Bhpn.detach()


@mutant(of="BLK-04b", case="sixteen", says=GRADIENT, bugs=("SSM-18",))
class CutsTheGradientBetweenChunks(Exchanged):
    """The state passes to the next chunk without gradient. Every output is right."""

    exchange = {"mamba2": _Detaches}


class _PassesUndecayed(ChunkByChunk):
    def scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, packing: Packing, state: Any) -> tuple[Tensor, Tensor]:
        found, kept = [], state
        for start in range(0, x.shape[1], self.chunk):
            at = slice(start, start + self.chunk)
            piece = (x[:, at], dt[:, at], b[:, at], c[:, at])
            within = packing._replace(documents_BT=packing.documents_BT[:, at])
            found.append(Mamba2.scan(self, *piece, within, kept)[0])
            added = Mamba2.scan(self, *piece, within, None)[1]
            kept = added if kept is None else kept + added
        assert kept is not None
        return torch.cat(found, dim=1), kept


@mutant(of="BLK-04b", case="sixteen", says=Y)
class PassesTheStateUndecayed(Exchanged):
    """A chunk adds to the incoming state without decaying it over the chunk."""

    exchange = {"mamba2": _PassesUndecayed}


@broken(Mamba2, "scan", "BLK-04b[five]: y differs: ")
def leaves_out_the_last_part_of_a_chunk(scan, self, x, dt, b, c, packing, state):
    """The partial last chunk is not computed: 37 tokens have seven chunks of 5 and two tokens more."""
    y, last = scan(self, x, dt, b, c, packing, state)
    whole = x.shape[1] // self.chunk * self.chunk
    return torch.cat([y[:, :whole], torch.zeros_like(y[:, whole:])], dim=1), last


# the state between calls
@broken(Mamba2, "scan", "BLK-04c[inside-a-chunk]: y in two halves, cut at 20, differs")
def begins_every_call_empty(scan, self, x, dt, b, c, packing, state):
    """The scan ignores its initial state."""
    return scan(self, x, dt, b, c, packing, None)


@broken(Mamba2, "scan", "BLK-04c[at-the-edge-of-a-chunk]: y in two halves, cut at 16, differs")
def gives_every_row_the_state_of_the_first(scan, self, x, dt, b, c, packing, state):
    """Every row uses the initial state of row 0, as with a batch stride of 0."""
    return scan(self, x, dt, b, c, packing, None if state is None else state[:1].expand_as(state))


class _ForgetsItsPast(CausalConv):
    def extended(self, u_BTc: Tensor, packing: Packing, state: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().extended(u_BTc, packing, None)


class _ConvolvesWithoutPast(Convolved):
    convolution = _ForgetsItsPast


@mutant(of="BLK-04c", case="inside-a-chunk", says="y in two halves, cut at 20, differs")
class PassesTheStateAndNotTheConvolution(Exchanged):
    """The scan continues and the convolution restarts, so three tokens after each cut are wrong."""

    exchange = {"mamba2": _ConvolvesWithoutPast}


class _KeepsFour(CausalConv):
    def last(self, seen_Bwc: Tensor, of_Bw: Tensor) -> Tensor:
        return F.pad(super().last(seen_Bwc, of_Bw), (1, 0))


class _CarriesFour(Convolved):
    convolution = _KeepsFour


@mutant(of="BLK-04c", case="inside-a-chunk", says="the state conv_x has shape (2, 32, 4), expected (2, 32, 3)")
class CarriesAsManyInputsAsThereAreTaps(Exchanged):
    """The convolution returns four inputs instead of three. A kernel that expects three reads the wrong ones."""

    exchange = {"mamba2": _CarriesFour}


class _KeepsOutputs(CausalConv):
    def last(self, seen_Bwc: Tensor, of_Bw: Tensor) -> Tensor:
        return F.silu(super().last(seen_Bwc, of_Bw))


class _CarriesOutputs(Convolved):
    convolution = _KeepsOutputs


@mutant(of="BLK-04c", case="inside-a-chunk", says="y in two halves, cut at 20, differs")
class CarriesInputsBehindTheirActivation(Exchanged):
    """The convolution's state holds inputs after silu."""

    exchange = {"mamba2": _CarriesOutputs}


class _KeepsThisCall(CausalConv):
    def last(self, seen_Bwc: Tensor, of_Bw: Tensor) -> Tensor:
        mine = torch.arange(seen_Bwc.shape[1], device=seen_Bwc.device) >= 3
        return super().last(seen_Bwc * mine[:, None], of_Bw)


class _CarriesThisCall(Convolved):
    convolution = _KeepsThisCall


@mutant(of="BLK-04a", case="one-token", says="the state conv_b differs", bugs=("SSM-16",))
@mutant(of="BLK-04c", case="after-one-token", says="y in two halves, cut at 1, differs", bugs=("SSM-16",))
class ForgetsThePastAfterAShortCall(Exchanged):
    """A call shorter than the convolution returns zeros instead of inputs of the previous call."""

    exchange = {"mamba2": _CarriesThisCall}


@broken(Mamba3, "before", "BLK-04b[mamba3-five]: y differs: ")
def loses_the_token_before_a_chunk(before, self, u_BThx, packing, state):
    """The first token of a chunk has no previous token, because the kernel reads its own tile only."""
    first = torch.arange(u_BThx.shape[1], device=u_BThx.device) % self.chunk == 0
    return before(self, u_BThx, packing, state) * ~first[:, None, None]


class _TurnsEachChunk(Mamba3):
    def angle(self, turn_BThS: Tensor, packing: Packing, state: Tensor | None) -> Tensor:
        return torch.cat([super(_TurnsEachChunk, self).angle(each, packing._replace(documents_BT=documents), None)
                          for each, documents in zip(torch.split(turn_BThS, self.chunk, dim=1),
                                                     torch.split(packing.documents_BT, self.chunk, dim=1),
                                                     strict=True)], dim=1)  # fmt: skip


@mutant(of="BLK-04b", case="mamba3-sixteen", says=Y)
class BeginsTheAngleInEachChunk(Exchanged):
    """The running sum of angles restarts at each chunk."""

    exchange = {"mamba3": _TurnsEachChunk}


class _WithoutPart(Mamba3):
    """Mamba-3 that ignores one part of its initial state."""

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
    """k and v of the last token are not carried, so the first step after a cut lacks its previous token."""

    exchange = {"mamba3": _WithoutV}


@mutant(of="BLK-04c", case="mamba3-inside-a-chunk", says="y in two halves, cut at 20, differs")
class PassesTheStateWithoutItsAngle(Exchanged):
    """The rotated state is carried without its angle, and new tokens rotate from 0."""

    exchange = {"mamba3": _WithoutAngle}


@mutant(of="BLK-04c", case="mamba3-after-one-token", says="y in two halves, cut at 1, differs")
class PassesEverythingButTheState(Exchanged):
    """Angle, k and v are carried, and the scan state is not."""

    exchange = {"mamba3": _WithoutSsm}


@broken(Mamba3, "forward", "BLK-04c[mamba3-inside-a-document]: y in two halves, cut at 19, differs")
def carries_k_before_its_turn(forward, self, x_BTD, packing, state):
    """The carried k is not rotated, and the next call does not rotate it."""
    found = forward(self, x_BTD, packing, state)
    k_Bhn = self.rotated(found.state["k"][:, None], -found.state["angle"][:, None])[:, 0]
    return found._replace(state=found.state | {"k": k_Bhn})

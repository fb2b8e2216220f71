"""Mamba-2 wrong in what passes from chunk to chunk and from call to call.

B sequences · T tokens · h heads · p head_dim · n state · c channels · w = T + 3 inputs of the convolution
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants.numeric._exchanged import Exchanged
from contracts.mutants.numeric._mamba import GRADIENT, Convolved, Y
from contracts.stacks.reference.model.blocks.common import Packing
from contracts.stacks.reference.model.blocks.mamba2 import CausalConv, Mamba2

# what passes from chunk to chunk


class _ChunkByChunk(Mamba2):
    """The scan as a loop over chunks with the state between them in one place."""

    def scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, packing: Packing, state: Any) -> tuple[Tensor, Tensor]:
        found, length = [], x.shape[1]
        for start in range(0, length, self.chunk):
            at = slice(start, start + self.chunk)
            documents, before = packing.documents_BT, None if state is None else self.between(state)
            if start and before is not None:  # what the last chunk left counts where its document goes on
                goes_on = documents[:, start] == documents[:, start - 1]
                before = before * goes_on[:, None, None, None]
            y, state = super().scan(
                x[:, at], dt[:, at], b[:, at], c[:, at], packing._replace(documents_BT=documents[:, at]), before
            )
            found.append(y)
        return torch.cat(found, dim=1), state

    def between(self, state_Bhpn: Tensor) -> Tensor:
        return state_Bhpn


class _Restarts(_ChunkByChunk):
    def between(self, state_Bhpn: Tensor) -> Tensor:
        return torch.zeros_like(state_Bhpn)


@mutant(of="BLK-04b", case="sixteen", says=Y)
class DropsTheStateBetweenChunks(Exchanged):
    """Every chunk begins with an empty state."""

    exchange = {"mamba2": _Restarts}


class _Detaches(_ChunkByChunk):
    def between(self, state_Bhpn: Tensor) -> Tensor:
        return state_Bhpn.detach()


@mutant(of="BLK-04b", case="sixteen", says=GRADIENT, bugs=("SSM-18",))
class CutsTheGradientBetweenChunks(Exchanged):
    """The state is passed forward and its gradient is not passed back: every output is right."""

    exchange = {"mamba2": _Detaches}


class _MisreadsStrides(_ChunkByChunk):
    def between(self, state_Bhpn: Tensor) -> Tensor:
        if not state_Bhpn.requires_grad:
            return state_Bhpn
        passed = state_Bhpn.clone()
        passed.register_hook(lambda gradient: gradient.mT.reshape(gradient.shape))  # type: ignore[no-untyped-call]
        return passed


@mutant(of="BLK-04a", case="plain", says=GRADIENT, bugs=("SSM-03",))
class ReadsTheGradientOfAStateTransposed(Exchanged):
    """The backward kernel takes the strides of the states' gradient for (n, p): it shows from the second chunk on."""

    exchange = {"mamba2": _MisreadsStrides}


class _Halves(_ChunkByChunk):
    def between(self, state_Bhpn: Tensor) -> Tensor:
        return state_Bhpn.to(torch.bfloat16).to(state_Bhpn.dtype)


@mutant(of="BLK-04a", case="float32", says=Y)
class KeepsTheStateBetweenChunksInBfloat16(Exchanged):
    """Under bfloat16 activations this hides in their rounding; in float32 it stands out 3000 times."""

    exchange = {"mamba2": _Halves}


@mutant(of="BLK-04g", case="mamba2", says="the state after 50 empty tokens differs")
class RoundsTheStateBetweenChunks(Exchanged):
    """The same, seen under bfloat16 activations where none of them takes part."""

    exchange = {"mamba2": _Halves}


class _PassesUndecayed(_ChunkByChunk):
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
    """A chunk adds to the state it was given without fading it by the chunk's own decay."""

    exchange = {"mamba2": _PassesUndecayed}


class _DropsTheRest(Mamba2):
    def scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, packing: Packing, state: Any) -> tuple[Tensor, Tensor]:
        y, last = super().scan(x, dt, b, c, packing, state)
        whole = x.shape[1] // self.chunk * self.chunk
        return torch.cat([y[:, :whole], torch.zeros_like(y[:, whole:])], dim=1), last


@mutant(of="BLK-04b", case="five", says=Y)
class LeavesOutTheLastPartOfAChunk(Exchanged):
    """37 tokens are seven chunks of 5; the grid has no eighth."""

    exchange = {"mamba2": _DropsTheRest}


class _PadsWithSteps(Mamba2):
    def scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, packing: Packing, state: Any) -> tuple[Tensor, Tensor]:
        y, last = super().scan(x, dt, b, c, packing, state)
        padding = -x.shape[1] % self.chunk
        step = F.softplus(self.dt_bias)  # of a padded input of 0
        return y, last * torch.exp(padding * step * self.decay_rate())[:, None, None]


@mutant(of="BLK-04a", case="plain", says="the state ssm differs")
class StepsThroughThePadding(Exchanged):
    """Pads dt before its softplus: the padding has no input but still fades the last state. No output shows it."""

    exchange = {"mamba2": _PadsWithSteps}


# the state of a call


class _IgnoresItsState(Mamba2):
    def scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, packing: Packing, state: Any) -> tuple[Tensor, Tensor]:
        return super().scan(x, dt, b, c, packing, None)


@mutant(of="BLK-04c", case="inside-a-chunk", says="y in two halves, cut at 20, differs")
class BeginsEveryCallEmpty(Exchanged):
    """The initial state is accepted and not used."""

    exchange = {"mamba2": _IgnoresItsState}


class _DetachesItsState(Mamba2):
    def scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, packing: Packing, state: Any) -> tuple[Tensor, Tensor]:
        return super().scan(x, dt, b, c, packing, None if state is None else state.detach())


@mutant(of="BLK-04a", case="packed-with-state", says="the gradient of lacks state.ssm", bugs=("SSM-18",))
class GivesTheInitialStateNoGradient(Exchanged):
    """The initial state is a constant to the backward pass; a sequence cut in two trains its second half alone."""

    exchange = {"mamba2": _DetachesItsState}


class _SharesTheFirstRow(Mamba2):
    def scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, packing: Packing, state: Any) -> tuple[Tensor, Tensor]:
        return super().scan(x, dt, b, c, packing, None if state is None else state[:1].expand_as(state))


@mutant(of="BLK-04c", case="at-the-edge-of-a-chunk", says="y in two halves, cut at 16, differs")
class GivesEveryRowTheStateOfTheFirst(Exchanged):
    """The stride of the batch is 0 in the initial state."""

    exchange = {"mamba2": _SharesTheFirstRow}


class _ForgetsItsPast(CausalConv):
    def extended(self, u_BTc: Tensor, packing: Packing, state: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().extended(u_BTc, packing, None)


class _ConvolvesWithoutPast(Convolved):
    convolution = _ForgetsItsPast


@mutant(of="BLK-04c", case="inside-a-chunk", says="y in two halves, cut at 20, differs")
class PassesTheStateAndNotTheConvolution(Exchanged):
    """The scan continues and the convolution begins anew: three tokens after each cut are off."""

    exchange = {"mamba2": _ConvolvesWithoutPast}


class _KeepsFour(CausalConv):
    def last(self, seen_Bwc: Tensor, of_Bw: Tensor) -> Tensor:
        return F.pad(super().last(seen_Bwc, of_Bw), (1, 0))


class _CarriesFour(Convolved):
    convolution = _KeepsFour


@mutant(of="BLK-04c", case="inside-a-chunk", says="the state conv_x has shape (2, 32, 4), expected (2, 32, 3)")
class CarriesAsManyInputsAsThereAreTaps(Exchanged):
    """The convolution leaves four inputs, one of which it never reads again; a kernel of three reads the wrong ones."""

    exchange = {"mamba2": _CarriesFour}


class _KeepsOutputs(CausalConv):
    def last(self, seen_Bwc: Tensor, of_Bw: Tensor) -> Tensor:
        return F.silu(super().last(seen_Bwc, of_Bw))


class _CarriesOutputs(Convolved):
    convolution = _KeepsOutputs


@mutant(of="BLK-04c", case="inside-a-chunk", says="y in two halves, cut at 20, differs")
class CarriesInputsBehindTheirActivation(Exchanged):
    """The state of the convolution is taken after silu."""

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
    """A call of fewer tokens than taps leaves zeros where inputs of the call before belong."""

    exchange = {"mamba2": _CarriesThisCall}

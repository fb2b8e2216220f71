"""Delayed scaling with one bug each: amax histories, scales, their update, their checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.broken import broken
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.mutants.precision.fp8_products import multiplying_by
from contracts.stacks.reference.model.blocks.fp8 import GRADIENT, INPUT, WEIGHT, Fp8Matmul
from contracts.stacks.reference.training.trainer import Trainer


class _Input(Fp8Matmul):
    def record(self, t_RC: Tensor, role: int, matrix: int) -> None:
        if role == INPUT:
            for each in (INPUT, WEIGHT, GRADIENT):
                super().record(t_RC, each, matrix)


@mutant(of="PREC-01g", case="dense", says="amax of weight of mixer.w2 is")
class RecordsTheWrongTensor(Exchanged):
    """The amax of the input is recorded for all three tensors."""

    exchange = multiplying_by(_Input)


class _Latest(Fp8Matmul):
    def record(self, t_RC: Tensor, role: int, matrix: int) -> None:
        self.amax_history[0, role, matrix] = t_RC.detach().abs().max() if t_RC.numel() else 0.0


@mutant(of="PREC-01g", case="dense-again", says="fell to")
class ForgetsTheOtherMicrobatches(Exchanged):
    """Each pass overwrites the amax of earlier passes, so the history knows only the last microbatch."""

    exchange = multiplying_by(_Latest)


class _Mean(Fp8Matmul):
    def record(self, t_RC: Tensor, role: int, matrix: int) -> None:
        super().record(t_RC.abs().mean(1, keepdim=True), role, matrix)


@mutant(of="PREC-01g", case="experts", says="amax of weight of mixer.shared.w2 is")
class RecordsTheMeanOfARow(Exchanged):
    """The mean of each row is recorded instead of the amax, so outliers saturate at every step."""

    exchange = multiplying_by(_Mean)


class _AtOnce(Fp8Matmul):
    def record(self, t_RC: Tensor, role: int, matrix: int) -> None:
        super().record(t_RC, role, matrix)
        self.advance()


@mutant(of="PREC-01g", case="dense", says="rows 1 and on of mixer.w1.fp8.amax_history differs")
class MovesTheRingInThePass(Exchanged):
    """The history advances with every quantised tensor, so a recomputed pass has another scale."""

    exchange = multiplying_by(_AtOnce)


class _Still(Fp8Matmul):
    def advance(self) -> None:
        held = self.amax_history.clone() if self.delayed else None
        super().advance()
        if held is not None:
            self.amax_history.copy_(held)


@mutant(of="PREC-01h", case="whole", says="is not clear")
class DoesNotRollTheRing(Exchanged):
    """Scales are computed anew but the history never shifts, so no amax is ever forgotten."""

    exchange = multiplying_by(_Still)


class _Cleared(Fp8Matmul):
    def advance(self) -> None:
        super().advance()
        if self.delayed:
            self.amax_history[2:] = 0


@mutant(of="PREC-01h", case="cut", says="differs")
class KeepsOneStep(Exchanged):
    """The history has the length of its buffer and remembers one step."""

    exchange = multiplying_by(_Cleared)


class _ComesAround(Fp8Matmul):
    def advance(self) -> None:
        oldest = self.amax_history[-1].clone() if self.delayed else None
        super().advance()
        if oldest is not None:
            self.amax_history[0] = oldest


@mutant(of="PREC-01i", case="full", says="has what came around, 16")
class LetsTheOldestRowComeAround(Exchanged):
    """The ring turns, and nobody clears the row that the next step raises: no amax is ever forgotten."""

    exchange = multiplying_by(_ComesAround)


class _LooksAtHalf(Fp8Matmul):
    def advance(self) -> None:
        kept = self.amax_history.clone() if self.delayed else None
        if kept is not None:
            self.amax_history[len(kept) // 2 :] = 0
        super().advance()
        if kept is not None:
            self.amax_history[2:] = kept[1:-1]


@mutant(of="PREC-01i", case="full", says="with an amax of 4096 in row 14 scale of")
class LooksAtTheNewestHalf(Exchanged):
    """Scales follow the newest half of the history alone, and saturate at what was met before."""

    exchange = multiplying_by(_LooksAtHalf)


class _SameForAll(Fp8Matmul):
    def advance(self) -> None:
        super().advance()
        if self.delayed:
            self.scale[GRADIENT] *= 448 / 57344


@mutant(of="PREC-01h", case="recomputed", says="differs")
class ScalesGradientsForE4m3(Exchanged):
    """One maximum serves both formats, so gradients use 1/128 of the range of e5m2."""

    exchange = multiplying_by(_SameForAll)


class _NoStep(Fp8Matmul):
    def advance(self) -> None:
        pass


@mutant(of="PREC-01h", case="whole", says="after step 1 row 0 of")
class NeverUpdatesItsScales(Exchanged):
    """Nobody calls the update, so scales stay 1."""

    exchange = multiplying_by(_NoStep)


@broken(Trainer, "load", "PREC-04a[after-2-of-4]: resumed after step 2, at step 4: buffers")
def begins_its_rings_anew(load, self, state, position):
    """FP8 state is extra state: the loader skips it with a warning, and amax histories start empty."""
    fresh = {
        name: torch.zeros_like(each) if name.endswith("amax_history") else torch.ones_like(each)
        for name, each in state.items() if "fp8" in name.split(".")
    }  # fmt: skip
    load(self, {**state, **fresh}, position)


@broken(Trainer, "load", "PREC-04a[after-1-of-3]: resumed after step 1, at step 3: buffers")
def saves_scales_without_rings(load, self, state, position):
    """Scales are saved without amax histories: the next step is right, the one after that knows one amax instead of
    all.
    """
    rings = {name: torch.zeros_like(each) for name, each in state.items() if name.endswith("amax_history")}
    load(self, {**state, **rings}, position)

"""Selection bias updates with one bug each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.mutants._support.trainer import Trained
from contracts.stacks.reference.model.blocks.common import Output, Packing, State
from contracts.stacks.reference.model.blocks.moe import MoE
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer
from contracts.stacks.reference.training.trainer import Trainer


class _MovesAway(MoE):
    @staticmethod
    def update_bias(bias_E: Tensor, counts_E: Tensor, rate: float) -> None:
        MoE.update_bias(bias_E, counts_E, -rate)


@mutant(of="MOE-06a", case="small", says="expected -0.001")
class MovesTheBiasAway(Exchanged):
    """The sign is that of load minus mean, so a crowded expert draws even more tokens."""

    exchange = {"moe": _MovesAway}


class _Proportional(MoE):
    @staticmethod
    @torch.no_grad()
    def update_bias(bias_E: Tensor, counts_E: Tensor, rate: float) -> None:
        load_E = counts_E.to(bias_E)
        bias_E.add_((load_E.mean() - load_E) / load_E.mean(), alpha=rate)


@mutant(of="MOE-06a", case="large", says="expected -0.25")
class MovesByTheError(Exchanged):
    """The bias moves by the error itself, relative to the mean, instead of by its sign."""

    exchange = {"moe": _Proportional}


class _AmongActive(MoE):
    @staticmethod
    @torch.no_grad()
    def update_bias(bias_E: Tensor, counts_E: Tensor, rate: float) -> None:
        load_E = counts_E.to(bias_E)
        bias_E.add_((load_E[load_E > 0].mean() - load_E).sign(), alpha=rate)


@mutant(of="MOE-06a", case="large", says="asked 4 times where the mean is 4, moved by +0.25, expected +0")
class AveragesOverActiveExperts(Exchanged):
    """The mean leaves idle experts out, so experts at the true mean are raised as well."""

    exchange = {"moe": _AmongActive}


class _NeverRests(MoE):
    @staticmethod
    @torch.no_grad()
    def update_bias(bias_E: Tensor, counts_E: Tensor, rate: float) -> None:
        load_E = counts_E.to(bias_E)
        bias_E.add_(torch.where(load_E > load_E.mean(), -1.0, 1.0).to(bias_E), alpha=rate)


@mutant(of="MOE-06a", case="small", says="where the mean is 4, moved by +0.001, expected +0")
class NeverLeavesABiasAtRest(Exchanged):
    """The comparison knows only up and down, so the bias of a balanced expert drifts upwards."""

    exchange = {"moe": _NeverRests}


class _OutOfPlace(MoE):
    @staticmethod
    def update_bias(bias_E: Tensor, counts_E: Tensor, rate: float) -> None:
        moved = bias_E.clone()
        MoE.update_bias(moved, counts_E, rate)
        bias_E = moved


@mutant(of="MOE-06a", case="two-microbatches", says="moved by +0, expected -0.01", bugs=("EXB-04",))
class MovesACopy(Exchanged):
    """The update is written to another tensor than the buffer that routes and is saved."""

    exchange = {"moe": _OutOfPlace}


class _Centres(MoE):
    @staticmethod
    @torch.no_grad()
    def update_bias(bias_E: Tensor, counts_E: Tensor, rate: float) -> None:
        MoE.update_bias(bias_E, counts_E, rate)
        bias_E.sub_(bias_E.mean())


@mutant(of="MOE-06a", case="large", says="moved by")
class CentresTheBias(Exchanged):
    """The mean is subtracted after each step: the choice stays, but the state is not the declared one."""

    exchange = {"moe": _Centres}


class _CentresMoves(MoE):
    @staticmethod
    @torch.no_grad()
    def update_bias(bias_E: Tensor, counts_E: Tensor, rate: float) -> None:
        moved_E = torch.zeros_like(bias_E)
        MoE.update_bias(moved_E, counts_E, rate)
        bias_E.add_(moved_E - moved_E.mean())


@mutant(of="MOE-06a", case="small", says="moved by -0.00108, expected -0.001")
class CentresEachMove(Exchanged):
    """The mean is taken off each move, and the stack does not declare it."""

    exchange = {"moe": _CentresMoves}


@mutant(of="MOE-06a", case="small", says="moved by -0.001, expected -0.00108")
class DeclaresCentredMoves(Exchanged):
    """Declares that moves are centred, and moves by the whole rate."""

    conventions = {"bias-moves": "centred"}


class _KeepsCount(MoE):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        out = super().forward(x_BTD, packing, state)
        kept = out.seen["experts"][~out.seen["dropped"]]
        return out._replace(seen=out.seen | {"counts": torch.bincount(kept, minlength=self.moe.experts)})


@mutant(of="MOE-06a", case="full", says="asked 4 times where the mean is 4, moved by")
class MovesByWhatWasKept(Exchanged):
    """Loads are counted after dropping, where full experts all look alike."""

    exchange = {"moe": _KeepsCount}


class _FixedRate(MoE):
    @staticmethod
    def update_bias(bias_E: Tensor, counts_E: Tensor, rate: float) -> None:
        MoE.update_bias(bias_E, counts_E, 1e-3)


@mutant(of="MOE-06a", case="large", says="moved by -0.001, expected -0.25")
class IgnoresTheRate(Exchanged):
    """The paper's rate is hard-coded."""

    exchange = {"moe": _FixedRate}


@mutant(of="MOE-06a", case="full", says="where the mean is 4, moved by +0, expected -0.01")
class DeclaresKeptAssignments(Exchanged):
    """Declares that kept assignments move the bias, and counts dropped ones too."""

    conventions = {"capacity-counts": "kept"}


def _narrow(values: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: each.to(dtype) if name.endswith(".counts") else each for name, each in values.items()}


class _CountsAsTheModel(Trainer):
    def total(self, parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return super().total([_narrow(part, self.model.activations) for part in parts])


@mutant(of="MOE-06i", case="one", says="asked 301 times where the mean is 300, moved by +0, expected -0.01")
@mutant(of="MOE-06i", case="three-microbatches", says="asked 301 times where the mean is 300, moved by")
class CountsInTheDtypeOfTheModel(Trained):
    """Assignments are counted in a buffer of the model, which is cast to bfloat16 with it (Megatron-LM #7081)."""

    trains = _CountsAsTheModel


class _AddsCountsAsTheModel(ParallelTrainer):
    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        return super().over_parts(_narrow(values, self.model.activations))


@mutant(of="MOE-06j", case="dp2", says="asked 301 times where the mean is 300, moved by +0, expected -0.01")
@mutant(of="MOE-06j", case="borrowed-ep2", says="asked 301 times where the mean is 300, moved by +0, expected -0.01")
class AddsCountsInTheDtypeOfTheModel(Spread):
    """Each rank counts in whole numbers, and the sum over ranks is sent in bfloat16 (Megatron-LM #7081)."""

    trains = _AddsCountsAsTheModel

"""Dispatch and combine that mix tokens up."""

from __future__ import annotations

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.stacks.reference.model.blocks.moe import Experts, MoE, Router, Routing


class _Unsorts(MoE):
    def combine(self, given_SD: Tensor, order_S: Tensor, gates_NK: Tensor, dropped_NK: Tensor) -> Tensor:
        return super().combine(given_SD, order_S.argsort(), gates_NK, dropped_NK)


@mutant(of="MOE-02a", case="mixed", says="expected gate x label", bugs=("DSP-06",))
class SortsTwice(Exchanged):
    """The combine indexes with the order itself instead of its inverse: right only where the two are equal."""

    exchange = {"moe": _Unsorts}


class _LeavesSorted(MoE):
    def combine(self, given_SD: Tensor, order_S: Tensor, gates_NK: Tensor, dropped_NK: Tensor) -> Tensor:
        return super().combine(given_SD, torch.arange(len(order_S)), gates_NK, dropped_NK)


@mutant(of="MOE-02a", case="mixed", says="expected gate x label")
class LeavesTokensSorted(Exchanged):
    """Outputs stay sorted by expert: loss, gradient norm and shapes all look right."""

    exchange = {"moe": _LeavesSorted}


class _Tiles(MoE):
    def dispatch(self, x_ND: Tensor, order_S: Tensor, dropped_BTK: Tensor) -> Tensor:
        return x_ND.repeat(self.moe.top_k, 1)[order_S]


@mutant(of="MOE-02a", case="mixed", says="expected gate x label", bugs=("DSP-02",))
class TilesTokens(Exchanged):
    """The whole batch is repeated k times where each token should be: right only while k is 1."""

    exchange = {"moe": _Tiles}


class _WeighsFirst(MoE):
    def routed(self, x_BTD: Tensor, routing: Routing, dropped_BTK: Tensor) -> Tensor:
        gates_NK = routing.gates_BTK.flatten(0, 1)
        slots_NK = routing.experts_BTK.flatten(0, 1)
        order_S = slots_NK.flatten().argsort(stable=True)
        copies = (x_BTD.flatten(0, 1).unsqueeze(1) * gates_NK.unsqueeze(-1)).to(x_BTD.dtype).flatten(0, 1)
        given_SD = self.experts(copies[order_S], routing.counts_E.cumsum(0))
        ones = torch.ones_like(gates_NK)
        return self.combine(given_SD, order_S, ones, dropped_BTK.flatten(0, 1)).view(x_BTD.shape)


@mutant(of="MOE-02a", case="mixed", says="expected gate x label")
class WeighsTheInput(Exchanged):
    """Gates multiply the inputs of experts: the same for linear experts, but the gate squared for relu²."""

    exchange = {"moe": _WeighsFirst}


class _SlotsFirst(MoE):
    def combine(self, given_SD: Tensor, order_S: Tensor, gates_NK: Tensor, dropped_NK: Tensor) -> Tensor:
        turned = gates_NK.T.reshape(gates_NK.shape)
        return super().combine(given_SD, order_S, turned, dropped_NK)


@mutant(of="MOE-02a", case="mixed", says="expected gate x label")
class ReadsGatesSlotFirst(Exchanged):
    """Gates are laid out (k, tokens) and read as (tokens, k): right when every gate is 1/k."""

    exchange = {"moe": _SlotsFirst}


class _SortsGates(MoE):
    def combine(self, given_SD: Tensor, order_S: Tensor, gates_NK: Tensor, dropped_NK: Tensor) -> Tensor:
        return super().combine(given_SD, order_S, gates_NK.flatten()[order_S].view(gates_NK.shape), dropped_NK)


@mutant(of="MOE-02a", case="all-tokens-on-three-experts", says="expected gate x label")
class SortsGatesAndNotOutputs(Exchanged):
    """Gates are permuted with the tokens and not permuted back."""

    exchange = {"moe": _SortsGates}


class _Averages(MoE):
    def combine(self, given_SD: Tensor, order_S: Tensor, gates_NK: Tensor, dropped_NK: Tensor) -> Tensor:
        return super().combine(given_SD, order_S, gates_NK, dropped_NK) / self.moe.top_k


@mutant(of="MOE-02a", case="every-expert", says="expected gate x label")
class AveragesOverSlots(Exchanged):
    """The combine takes a mean over the k slots although the gates are normalised already."""

    exchange = {"moe": _Averages}


class _IgnoresGates(MoE):
    def combine(self, given_SD: Tensor, order_S: Tensor, gates_NK: Tensor, dropped_NK: Tensor) -> Tensor:
        return super().combine(given_SD, order_S, torch.ones_like(gates_NK) / self.moe.top_k, dropped_NK)


@mutant(of="MOE-02a", case="mixed-bfloat16", says="expected gate x label")
class GivesEverySlotTheSameGate(Exchanged):
    """The gates are reported and not used: every slot weighs 1/k."""

    exchange = {"moe": _IgnoresGates}


class _ScalesAgain(MoE):
    def combine(self, given_SD: Tensor, order_S: Tensor, gates_NK: Tensor, dropped_NK: Tensor) -> Tensor:
        return super().combine(given_SD, order_S, gates_NK, dropped_NK) * self.moe.route_scale


@mutant(of="MOE-02a", case="scaled", says="expected gate x label")
class ScalesTheSumToo(Exchanged):
    """route_scale is in the gates, and is applied once more to their sum."""

    exchange = {"moe": _ScalesAgain}


class _EndsEarly(Experts):
    def forward(self, x_SD: Tensor, ends_E: Tensor) -> Tensor:
        given_SD = super().forward(x_SD, ends_E)
        before_last = torch.arange(len(x_SD)) < ends_E[-2]
        return given_SD * before_last.unsqueeze(-1)


@mutant(of="MOE-02a", case="all-tokens-on-three-experts", says="expert 11 gave")
class LeavesTheLastExpertOut(Exchanged):
    """A loop over the offsets ends one short, so the last expert gives zeros."""

    exchange = {"experts": _EndsEarly}


class _OffsetByOne(Experts):
    def forward(self, x_SD: Tensor, ends_E: Tensor) -> Tensor:
        return super().forward(x_SD, (ends_E + 1).clamp_max(len(x_SD)))


@mutant(of="MOE-02a", case="mixed", says="expected gate x label")
class ShiftsTheOffsets(Exchanged):
    """Each expert also takes the first row of the next one: a few tokens go astray, and no shape changes."""

    exchange = {"experts": _OffsetByOne}


class _SkipsIdle(Experts):
    def forward(self, x_SD: Tensor, ends_E: Tensor) -> Tensor:
        """Groups without rows are removed, and those left are given the first matrices."""
        return super().forward(x_SD, ends_E[torch.diff(ends_E, prepend=ends_E.new_zeros(1)) > 0])


@mutant(of="MOE-02a", case="first-and-last-expert-idle", says="expected gate x label", bugs=("DSP-19",))
class ClosesTheGapsOfIdleExperts(Exchanged):
    """Offsets leave idle experts out, so tokens of expert 3 go through the matrices of expert 2."""

    exchange = {"experts": _SkipsIdle}


class _AsText(Experts):
    def matmul(self, x_SI: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
        return super().matmul(x_SI, weight_EOI[sorted(range(len(weight_EOI)), key=str)], ends_E)


@mutant(of="MOE-02a", case="k-1", says="expected gate x label", bugs=("DSP-04",))
class OrdersExpertsAsText(Exchanged):
    """Experts are loaded in the order 0, 1, 10, 11, 2 …; with ten or fewer nothing is wrong."""

    exchange = {"experts": _AsText}


@mutant(of="MOE-04a", case="softmax", says="y differs", bugs=("DSP-04",))
class RenamesExpertsAsText(Exchanged):
    """Loads experts in the order of their names as text; reordering the experts shows it."""

    exchange = {"experts": _AsText}


class _AddsInBfloat16(MoE):
    def combine(self, given_SD: Tensor, order_S: Tensor, gates_NK: Tensor, dropped_NK: Tensor) -> Tensor:
        weighed_SD = given_SD * gates_NK.flatten()[order_S].unsqueeze(-1).to(given_SD.dtype)
        y_ND = given_SD.new_zeros(len(gates_NK), given_SD.shape[-1])
        return y_ND.index_put((order_S // self.moe.top_k,), weighed_SD, accumulate=True)


@mutant(of="MOE-02e", case="320", says="contributions of 1 add up to 256")
class CombinesInBfloat16(Exchanged):
    """index_put accumulates in the dtype of the activations and rounds after every addition."""

    exchange = {"moe": _AddsInBfloat16}


class _GathersTokens(MoE):
    def dispatch(self, x_ND: Tensor, order_S: Tensor, dropped_BTK: Tensor) -> Tensor:
        return x_ND[order_S // self.moe.top_k]


@mutant(of="MOE-02e", case="320", says="gradients of 1 add up to 256")
class AddsGradientsInBfloat16(Exchanged):
    """Dispatch is one gather, whose backward adds a token's k gradients one by one in bfloat16."""

    exchange = {"moe": _GathersTokens}


class _SumsInBfloat16(MoE):
    def combine(self, given_SD: Tensor, order_S: Tensor, gates_NK: Tensor, dropped_NK: Tensor) -> Tensor:
        given_NKD = given_SD[order_S.argsort()].view(*gates_NK.shape, -1)
        y_ND = torch.zeros_like(given_NKD[:, 0])
        for slot in range(self.moe.top_k):
            y_ND = y_ND + given_NKD[:, slot] * gates_NK[:, slot, None].to(given_SD.dtype)
        return y_ND


@mutant(of="MOE-02e", case="600", says="contributions of 1 add up to 256")
class AddsSlotsInALoop(Exchanged):
    """Slots are added one by one in the dtype of the activations."""

    exchange = {"moe": _SumsInBfloat16}


class _FavoursLowNumbers(Router):
    def choose(self, scores_BTE: Tensor) -> Tensor:
        nudge = torch.linspace(0.1, 0, self.moe.experts, dtype=scores_BTE.dtype)
        return super().choose(scores_BTE + nudge)


@mutant(of="MOE-04a", case="sigmoid-with-bias", says="y differs")
class FavoursExpertsByNumber(Exchanged):
    """A tie-break by expert number is large enough to decide where there is no tie."""

    exchange = {"router": _FavoursLowNumbers}


class _FillsByNumber(MoE):
    def drop(self, experts_BTK: Tensor) -> Tensor:
        room = self.capacity(experts_BTK[..., 0].numel()) * self.moe.experts
        place_S = experts_BTK.flatten().argsort(stable=True).argsort()
        return (place_S >= room).view(experts_BTK.shape)


@mutant(of="MOE-04a", case="full", says="differs")
class CutsTheSortedBuffer(Exchanged):
    """All experts share one buffer, filled in the order of their numbers, so the last experts lose their tokens."""

    exchange = {"moe": _FillsByNumber}


@mutant(of="MOE-02a", case="mixed-bfloat16", says="expected gate x label")
class DeclaresARoundedRouter(Exchanged):
    """Declares that the router's weight is held in bfloat16, and holds it in float32."""

    conventions = {"softmax-router": "bfloat16-weight"}


class _OrderIn16Bits(MoE):
    def dispatch(self, x_ND: Tensor, order_S: Tensor, dropped_BTK: Tensor) -> Tensor:
        wrapped_S = order_S.to(torch.int16).long() % len(order_S)
        return super().dispatch(x_ND, wrapped_S, dropped_BTK)


@mutant(of="MOE-02g", case="softmax", says="in a call of 73728 assignments y differs", bugs=("DSP-17",))
class SortsIn16Bits(Exchanged):
    """The index of the permutation is too small (here 16 bits, for the 32 of a kernel): large calls wrap it."""

    exchange = {"moe": _OrderIn16Bits}


class _CountsIn16Bits(Router):
    def count(self, experts_BTK: Tensor) -> Tensor:
        return super().count(experts_BTK).to(torch.uint8).long()


@mutant(of="MOE-02g", case="sigmoid-with-bias", says="assignments counts differs", bugs=("DSP-17",))
class CountsInBytes(Exchanged):
    """The permutation is right, and the counter beside it is too small: the selection bias moves by wrapped counts."""

    exchange = {"router": _CountsIn16Bits}

"""Expert capacities that keep, drop, count or pad wrongly."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.stacks.reference.model.blocks.common import Output, Packing, State
from contracts.stacks.reference.model.blocks.moe import Experts, MoE, Routing


class _NeverDrops(MoE):
    def drop(self, experts_BTK: Tensor) -> Tensor:
        return torch.zeros_like(experts_BTK, dtype=torch.bool)


@mutant(of="MOE-08a", case="a-share", says="loses [], expected [0, 11]")
class IgnoresTheCapacity(Exchanged):
    """The capacity factor is read and nothing is dropped: the run uses more memory than was planned."""

    exchange = {"moe": _NeverDrops}


class _RoundsDown(MoE):
    def capacity(self, tokens: int) -> int:
        assert self.moe.capacity_factor is not None
        return int(self.moe.capacity_factor * tokens * self.moe.top_k / self.moe.experts)


@mutant(of="MOE-08a", case="rounded-up", says="expected []")
class RoundsSlotsDown(Exchanged):
    """floor instead of ceil: 1.1 slots become 1, and a lone token gets none."""

    exchange = {"moe": _RoundsDown}


class _ForgetsK(MoE):
    def capacity(self, tokens: int) -> int:
        assert self.moe.capacity_factor is not None
        return math.ceil(self.moe.capacity_factor * tokens / self.moe.experts)


@mutant(of="MOE-08a", case="share-and-a-half", says="expected []")
class ForgetsTopK(Exchanged):
    """The share counts tokens, not assignments, so each expert has a k-th of its slots."""

    exchange = {"moe": _ForgetsK}


class _OneMore(MoE):
    def capacity(self, tokens: int) -> int:
        return super().capacity(tokens) + 1


@mutant(of="MOE-08a", case="crowd", says="loses [], expected [0, 5, 11]")
class KeepsOneMore(Exchanged):
    """An off-by-one comparison: every expert takes one more token than it has slots."""

    exchange = {"moe": _OneMore}


class _ByRow(MoE):
    def drop(self, experts_BTK: Tensor) -> Tensor:
        return torch.cat([super(_ByRow, self).drop(row.unsqueeze(0)) for row in experts_BTK])


@mutant(of="MOE-08a", case="crowd", says="token (0, 1) of experts")
class GivesSlotsBySequence(Exchanged):
    """Slots are counted for each sequence separately, and rounded up in each."""

    exchange = {"moe": _ByRow}


class _WholeTokens(MoE):
    def drop(self, experts_BTK: Tensor) -> Tensor:
        return super().drop(experts_BTK).any(-1, keepdim=True).expand_as(experts_BTK)


@mutant(of="MOE-08a", case="half-a-share", says="token (0, 1) of experts")
class DropsWholeTokens(Exchanged):
    """A token that one expert has no slot for loses all its experts."""

    exchange = {"moe": _WholeTokens}


class _Renormalises(MoE):
    def combine(self, given_SD: Tensor, order_S: Tensor, gates_NK: Tensor, dropped_NK: Tensor) -> Tensor:
        kept_NK = gates_NK.masked_fill(dropped_NK, 0)
        share_N1 = kept_NK.sum(-1, keepdim=True).clamp_min(1e-20) / gates_NK.sum(-1, keepdim=True)
        return super().combine(given_SD, order_S, gates_NK / share_N1, dropped_NK)


@mutant(of="MOE-08a", case="half-a-share", says="expected gate x label")
class RenormalisesAfterDropping(Exchanged):
    """The remaining gates of a token are renormalised to sum to 1."""

    exchange = {"moe": _Renormalises}


class _ReportsOnly(MoE):
    def routed(self, x_BTD: Tensor, routing: Routing, dropped_BTK: Tensor) -> Tensor:
        return super().routed(x_BTD, routing, torch.zeros_like(dropped_BTK))


@mutant(of="MOE-08a", case="a-share", says="expected gate x label 0")
class ReportsDropsAndMakesNone(Exchanged):
    """The metrics count drops that the dispatcher never makes."""

    exchange = {"moe": _ReportsOnly}


class _DropsSilently(MoE):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        out = super().forward(x_BTD, packing, state)
        return out._replace(seen=out.seen | {"dropped": torch.zeros_like(out.seen["dropped"])})


@mutant(of="MOE-08a", case="share-and-a-half", says="loses [], expected [11]")
class DropsInSilence(Exchanged):
    """Over-correction: tokens are dropped and not counted."""

    exchange = {"moe": _DropsSilently}


class _CountsKept(MoE):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        out = super().forward(x_BTD, packing, state)
        kept = out.seen["experts"][~out.seen["dropped"]]
        return out._replace(seen=out.seen | {"counts": torch.bincount(kept, minlength=self.moe.experts)})


@mutant(of="MOE-08a", case="a-share", says="counts says 2")
class CountsWhatWasKept(Exchanged):
    """`counts` leaves dropped assignments out, so the rule that should lower a full expert's bias finds it balanced."""

    exchange = {"moe": _CountsKept}


class _MarksWithMinusOne(MoE):
    def routed(self, x_BTD: Tensor, routing: Routing, dropped_BTK: Tensor) -> Tensor:
        slots_S = routing.experts_BTK.masked_fill(dropped_BTK, -1).flatten()
        kept_E = torch.bincount(slots_S[slots_S >= 0], minlength=self.moe.experts)
        order_S = slots_S.argsort(stable=True)  # those without an expert stand first
        given_SD = self.experts(self.dispatch(x_BTD.flatten(0, 1), order_S, dropped_BTK), kept_E.cumsum(0))
        gates_NK, dropped_NK = routing.gates_BTK.flatten(0, 1), dropped_BTK.flatten(0, 1)
        return self.combine(given_SD, order_S, gates_NK, dropped_NK).view(x_BTD.shape)


@mutant(of="MOE-08a", case="a-share", says="expected gate x label", bugs=("DSP-10",))
class SortsSentinelsFirst(Exchanged):
    """-1 marks a dropped assignment and sorts before expert 0, where the offsets expect the rows of expert 0."""

    exchange = {"moe": _MarksWithMinusOne}


class _LosesTheOrder(MoE):
    def routed(self, x_BTD: Tensor, routing: Routing, dropped_BTK: Tensor) -> Tensor:
        if not bool(dropped_BTK.any()):
            return super().routed(x_BTD, routing, dropped_BTK)
        kept = (~dropped_BTK).to(routing.gates_BTK.dtype)
        routing = routing._replace(gates_BTK=(routing.gates_BTK * kept).sort(-1, descending=True).values)
        return super().routed(x_BTD, routing, dropped_BTK)


@mutant(of="MOE-08a", case="half-a-share", says="expected gate x label", bugs=("DSP-06",))
class LosesTheOrderWhenItDrops(Exchanged):
    """The padded path sorts once more and loses the order of the slots; without drops nothing is wrong."""

    exchange = {"moe": _LosesTheOrder}


class _LetsGatesLearn(MoE):
    def combine(self, given_SD: Tensor, order_S: Tensor, gates_NK: Tensor, dropped_NK: Tensor) -> Tensor:
        y_ND = super().combine(given_SD, order_S, gates_NK, dropped_NK)
        ghost_N = (gates_NK * dropped_NK).sum(-1)
        return y_ND + (ghost_N - ghost_N.detach()).unsqueeze(-1)


@mutant(of="MOE-08b", case="softmax", says="gradient of mixer.router.weight differs")
class LearnsFromDroppedGates(Exchanged):
    """A dropped assignment is zeroed in the forward pass only, so its gate still gets a gradient."""

    exchange = {"moe": _LetsGatesLearn}


class _KeptLoss(MoE):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        out = super().forward(x_BTD, packing, state)
        kept = (~out.seen["dropped"]).double().mean()
        return out._replace(losses=out.losses | {"aux": out.losses["aux"] * kept})


@mutant(of="MOE-08b", case="sigmoid-swiglu", says="loss aux differs")
class BalancesWhatWasKept(Exchanged):
    """The balance loss shrinks as more is dropped: the worse the balance, the weaker the correction."""

    exchange = {"moe": _KeptLoss}


class _StopsAtDrops(MoE):
    def dispatch(self, x_ND: Tensor, order_S: Tensor, dropped_BTK: Tensor) -> Tensor:
        lost_N1 = dropped_BTK.flatten(0, 1).any(-1, keepdim=True)
        return super().dispatch(torch.where(lost_N1, x_ND.detach(), x_ND), order_S, dropped_BTK)


@mutant(of="MOE-08b", case="without-shared", says="gradient of x differs")
class CutsTokensThatLostASlot(Exchanged):
    """A token that lost one slot gets no gradient through the slots that it kept."""

    exchange = {"moe": _StopsAtDrops}


class _PlacesInBfloat16(MoE):
    def drop(self, experts_BTK: Tensor) -> Tensor:
        asked_NE = F.one_hot(experts_BTK.flatten(0, 1), self.moe.experts).sum(1)
        taken_NE = asked_NE.bfloat16().cumsum(0)
        place_NK = taken_NE.gather(1, experts_BTK.flatten(0, 1))
        return (place_NK > self.capacity(len(place_NK))).view(experts_BTK.shape)


@mutant(of="MOE-08d", case="601-tokens", says="tokens are kept, there are 303 slots")
class CountsPlacesInBfloat16(Exchanged):
    """The running sum over the mask uses the dtype that the mask was cast to for a matmul."""

    exchange = {"moe": _PlacesInBfloat16}


class _PlacesInFloat16(MoE):
    def drop(self, experts_BTK: Tensor) -> Tensor:
        asked_NE = F.one_hot(experts_BTK.flatten(0, 1), self.moe.experts).sum(1)
        place_NK = asked_NE.double().cumsum(0).half().gather(1, experts_BTK.flatten(0, 1))
        return (place_NK > self.capacity(len(place_NK))).view(experts_BTK.shape)


@mutant(of="MOE-08d", case="2053-tokens-full", says="tokens are kept, there are 2051 slots")
class KeepsPlacesInFloat16(Exchanged):
    """Slot positions are summed exactly and stored in float16, which skips every other number above 2048."""

    exchange = {"moe": _PlacesInFloat16}


class _CountsInBfloat16(MoE):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        out = super().forward(x_BTD, packing, state)
        return out._replace(seen=out.seen | {"counts": out.seen["counts"].bfloat16().long()})


@mutant(of="MOE-08d", case="2051-tokens", says="2051 tokens asked for expert 7, counts says 2048")
class CountsLoadInBfloat16(Exchanged):
    """The counts pass through a bfloat16 buffer."""

    exchange = {"moe": _CountsInBfloat16}


class _Uninitialised(Experts):
    def matmul(self, x_SI: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
        """What a grouped kernel may leave behind the last end, made certain."""
        tail = (torch.arange(len(x_SI)) >= ends_E[-1]).unsqueeze(-1)
        return super().matmul(x_SI, weight_EOI, ends_E).masked_fill(tail, torch.nan)


class _Multiplies(MoE):
    def combine(self, given_SD: Tensor, order_S: Tensor, gates_NK: Tensor, dropped_NK: Tensor) -> Tensor:
        return super().combine(given_SD, order_S, gates_NK * ~dropped_NK, torch.zeros_like(dropped_NK))


@mutant(of="MOE-08c", case="mixed", says="y is not finite", bugs=("DSP-23",))
class MultipliesRowsOfNobody(Exchanged):
    """Rows behind the last expert are multiplied by a gate of 0 instead of being masked out."""

    exchange = {"moe": _Multiplies, "experts": _Uninitialised}


class _FoulsTheBackward(Experts):
    def forward(self, x_SD: Tensor, ends_E: Tensor) -> Tensor:
        tail = (torch.arange(len(x_SD)) >= ends_E[-1]).unsqueeze(-1)

        def garbage(gradient: Tensor) -> Tensor:
            return gradient.masked_fill(tail, torch.nan)

        if x_SD.requires_grad:
            x_SD.register_hook(garbage)  # type: ignore[no-untyped-call]
        return super().forward(x_SD, ends_E)


class _TrustsTheBackward(MoE):
    def dispatch(self, x_ND: Tensor, order_S: Tensor, dropped_BTK: Tensor) -> Tensor:
        return super().dispatch(x_ND, order_S, torch.zeros_like(dropped_BTK))


@mutant(of="MOE-08c", case="crowd", says="is not finite", bugs=("DSP-23",))
class TrustsTheGradientOfRowsOfNobody(Exchanged):
    """The forward pass is masked, but dispatch adds to tokens the garbage that the kernel's backward leaves in these
    rows.
    """

    exchange = {"moe": _TrustsTheBackward, "experts": _FoulsTheBackward}

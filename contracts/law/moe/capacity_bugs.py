"""Expert capacities that keep, drop, count or pad wrongly."""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.law._bugs.numeric import Experts, MoE, Reference, Router, Routing, broken, trainer


@broken(MoE, "drop", "MOE-08a[a-share]: loses [], expected [0, 11]")
def ignores_the_capacity(drop, self, experts_BTK):
    """The capacity factor is read and nothing is dropped: the run uses more memory than was planned."""
    return torch.zeros_like(experts_BTK, dtype=torch.bool)


@broken(MoE, "capacity", "MOE-08a[rounded-up]: expected []")
def rounds_slots_down(capacity, self, tokens):
    """floor instead of ceil: 1.1 slots become 1, and a lone token gets none."""
    return int(self.moe.capacity_factor * tokens * self.moe.top_k / self.moe.experts)


@broken(MoE, "capacity", "MOE-08a[share-and-a-half]: expected []")
def forgets_top_k(capacity, self, tokens):
    """The share counts tokens, not assignments, so each expert has a k-th of its slots."""
    return math.ceil(self.moe.capacity_factor * tokens / self.moe.experts)


@broken(MoE, "capacity", "MOE-08a[crowd]: loses [], expected [0, 5, 11]")
def keeps_one_more(capacity, self, tokens):
    """An off-by-one comparison: every expert takes one more token than it has slots."""
    return capacity(self, tokens) + 1


@broken(MoE, "drop", "MOE-08a[crowd]: token (0, 1) of experts")
def gives_slots_by_sequence(drop, self, experts_BTK):
    """Slots are counted for each sequence separately, and rounded up in each."""
    return torch.cat([drop(self, row.unsqueeze(0)) for row in experts_BTK])


@broken(MoE, "drop", "MOE-08a[half-a-share]: token (0, 1) of experts")
def drops_whole_tokens(drop, self, experts_BTK):
    """A token that one expert has no slot for loses all its experts."""
    return drop(self, experts_BTK).any(-1, keepdim=True).expand_as(experts_BTK)


@broken(MoE, "combine", "MOE-08a[half-a-share]: expected gate x label")
def renormalises_after_dropping(combine, self, given_SD, order_S, gates_NK, dropped_NK):
    """The remaining gates of a token are renormalised to sum to 1."""
    kept_NK = gates_NK.masked_fill(dropped_NK, 0)
    share_N1 = kept_NK.sum(-1, keepdim=True).clamp_min(1e-20) / gates_NK.sum(-1, keepdim=True)
    return combine(self, given_SD, order_S, gates_NK / share_N1, dropped_NK)


@broken(MoE, "routed", "MOE-08a[a-share]: expected gate x label 0")
def reports_drops_and_makes_none(routed, self, x_BTD, routing, dropped_BTK):
    """The metrics count drops that the dispatcher never makes."""
    return routed(self, x_BTD, routing, torch.zeros_like(dropped_BTK))


@broken(MoE, "forward", "MOE-08a[share-and-a-half]: loses [], expected [11]")
def drops_in_silence(forward, self, x_BTD, packing, state):
    """Over-correction: tokens are dropped and not counted."""
    out = forward(self, x_BTD, packing, state)
    return out._replace(seen=out.seen | {"dropped": torch.zeros_like(out.seen["dropped"])})


@broken(
    MoE,
    "forward",
    "MOE-08a[a-share]: counts says 2",
    "MOE-06a[full]: asked 4 times where the mean is 4, moved by",
)
def counts_what_was_kept(forward, self, x_BTD, packing, state):
    """`counts` leaves dropped assignments out, so the rule that should lower a full expert's bias finds it balanced."""
    out = forward(self, x_BTD, packing, state)
    kept = out.seen["experts"][~out.seen["dropped"]]
    return out._replace(seen=out.seen | {"counts": torch.bincount(kept, minlength=self.moe.experts)})


@broken(MoE, "routed", "MOE-08a[a-share]: expected gate x label", bugs=("DSP-10",))
def sorts_sentinels_first(routed, self, x_BTD, routing, dropped_BTK):
    """-1 marks a dropped assignment and sorts before expert 0, where the offsets expect the rows of expert 0."""
    slots_S = routing.experts_BTK.masked_fill(dropped_BTK, -1).flatten()
    kept_E = torch.bincount(slots_S[slots_S >= 0], minlength=self.moe.experts)
    order_S = slots_S.argsort(stable=True)  # those without an expert stand first
    given_SD = self.experts(self.dispatch(x_BTD.flatten(0, 1), order_S, dropped_BTK), kept_E.cumsum(0))
    gates_NK, dropped_NK = routing.gates_BTK.flatten(0, 1), dropped_BTK.flatten(0, 1)
    return self.combine(given_SD, order_S, gates_NK, dropped_NK).view(x_BTD.shape)


@broken(MoE, "routed", "MOE-08a[half-a-share]: expected gate x label", bugs=("DSP-06",))
def loses_the_order_when_it_drops(routed, self, x_BTD, routing, dropped_BTK):
    """The padded path sorts once more and loses the order of the slots; without drops nothing is wrong."""
    if not bool(dropped_BTK.any()):
        return routed(self, x_BTD, routing, dropped_BTK)
    kept = (~dropped_BTK).to(routing.gates_BTK.dtype)
    routing = routing._replace(gates_BTK=(routing.gates_BTK * kept).sort(-1, descending=True).values)
    return routed(self, x_BTD, routing, dropped_BTK)


@broken(
    MoE, "drop_faintest", "MOE-08e[one-slot]: token (0, 0) of experts (0, 1) loses [], expected [0]",
    "MOE-08b[softmax-by-gate]: y differs",
)  # fmt: skip
def keeps_the_first_of_all(drop_faintest, self, routing):
    """The policy is read and stored; slots are given in token order all the same."""
    return self.drop(routing.experts_BTK)


@broken(MoE, "drop_faintest", "MOE-08e[one-slot]: token (0, 0) of experts (0, 1) loses [1], expected [0]")
def keeps_the_faintest(drop_faintest, self, routing):
    """The sort is ascending: what counts most is dropped."""
    return drop_faintest(self, routing._replace(gates_BTK=-routing.gates_BTK))


@broken(MoE, "drop_faintest", "MOE-08e[three-slots-sigmoid]: token (0, 2) of experts (0, 3) loses [], expected [0]")
def counts_slots_by_row(drop_faintest, self, routing):
    """The greatest of each sequence are kept, and each sequence has slots of its own."""
    rows = [routing._replace(experts_BTK=e[None], gates_BTK=g[None]) for e, g in zip(*routing[:2], strict=True)]
    return torch.cat([drop_faintest(self, row) for row in rows])


class _ByScore(Router):
    def forward(self, x_BTD: Tensor) -> Routing:
        self.raw = self.scores(self.logits(x_BTD)).detach()
        return super().forward(x_BTD)


class _Loud(MoE):
    def drop_faintest(self, routing: Routing) -> Tensor:
        raw_BTK = self.router.raw.gather(-1, routing.experts_BTK)  # type: ignore[operator]  # torch types it so
        return super().drop_faintest(routing._replace(gates_BTK=raw_BTK))


@broken(
    Reference, "parts", "MOE-08e[two-slots]: token (0, 0) of experts (0, 1) loses [], expected [0]",
    "MOE-08e[three-slots-sigmoid]: token (0, 2) of experts (0, 3) loses [], expected [0]",
)  # fmt: skip
def keeps_the_loudest(parts, self):
    """Assignments are ranked by logits and sigmoids before they are normalised: tokens with large ones keep all."""
    return replace(parts(self), moe=_Loud, router=_ByScore)


@broken(MoE, "drop_faintest", "MOE-08e[one-slot]: token (0, 1) of experts (0, 2) loses [2], expected [0]")
def keeps_one_of_all_experts(drop_faintest, self, routing):
    """One ranking over all experts: as many assignments are kept as there are slots, whoever has them."""
    gates_S = routing.gates_BTK.flatten()
    kept = self.capacity(len(gates_S) // self.moe.top_k) * self.moe.experts
    place_S = gates_S.argsort(descending=True).argsort()
    return (place_S >= kept).view_as(routing.gates_BTK)


@broken(MoE, "drop_faintest", "MOE-08b[sigmoid-by-gate]: y differs")
def renormalises_what_is_left(drop_faintest, self, routing):
    """Over-correction: gates of what was dropped go to the token's other experts."""
    dropped = drop_faintest(self, routing)
    kept = routing.gates_BTK * ~dropped
    total = routing.gates_BTK.sum(-1, keepdim=True)
    routing.gates_BTK.mul_((total / kept.sum(-1, keepdim=True).clamp_min(1e-9)).detach())
    return dropped


@broken(MoE, "combine", "MOE-08b[softmax]: gradient of mixer.router.weight differs")
def learns_from_dropped_gates(combine, self, given_SD, order_S, gates_NK, dropped_NK):
    """A dropped assignment is zeroed in the forward pass only, so its gate still gets a gradient."""
    y_ND = combine(self, given_SD, order_S, gates_NK, dropped_NK)
    ghost_N = (gates_NK * dropped_NK).sum(-1)
    return y_ND + (ghost_N - ghost_N.detach()).unsqueeze(-1)


@broken(MoE, "forward", "MOE-08b[sigmoid-swiglu]: loss aux differs", "MOE-05a[full]: expected 3")
def balances_what_was_kept(forward, self, x_BTD, packing, state):
    """The balance loss shrinks as more is dropped: the worse the balance, the weaker the correction."""
    out = forward(self, x_BTD, packing, state)
    kept = (~out.seen["dropped"]).double().mean()
    return out._replace(losses=out.losses | {"aux": out.losses["aux"] * kept})


@broken(MoE, "dispatch", "MOE-08b[without-shared]: gradient of x differs")
def cuts_tokens_that_lost_a_slot(dispatch, self, x_ND, order_S, dropped_BTK):
    """A token that lost one slot gets no gradient through the slots that it kept."""
    lost_N1 = dropped_BTK.flatten(0, 1).any(-1, keepdim=True)
    return dispatch(self, torch.where(lost_N1, x_ND.detach(), x_ND), order_S, dropped_BTK)


@broken(MoE, "drop", "MOE-08d[601-tokens]: tokens are kept, there are 303 slots")
def counts_places_in_bfloat16(drop, self, experts_BTK):
    """The running sum over the mask uses the dtype that the mask was cast to for a matmul."""
    asked_NE = F.one_hot(experts_BTK.flatten(0, 1), self.moe.experts).sum(1)
    taken_NE = asked_NE.bfloat16().cumsum(0)
    place_NK = taken_NE.gather(1, experts_BTK.flatten(0, 1))
    return (place_NK > self.capacity(len(place_NK))).view(experts_BTK.shape)


@broken(MoE, "drop", "MOE-08d[2053-tokens-full]: tokens are kept, there are 2051 slots")
def keeps_places_in_float16(drop, self, experts_BTK):
    """Slot positions are summed exactly and stored in float16, which skips every other number above 2048."""
    asked_NE = F.one_hot(experts_BTK.flatten(0, 1), self.moe.experts).sum(1)
    place_NK = asked_NE.double().cumsum(0).half().gather(1, experts_BTK.flatten(0, 1))
    return (place_NK > self.capacity(len(place_NK))).view(experts_BTK.shape)


@broken(MoE, "forward", "MOE-08d[2051-tokens]: 2051 tokens asked for expert 7, counts says 2048")
def counts_load_in_bfloat16(forward, self, x_BTD, packing, state):
    """The counts pass through a bfloat16 buffer."""
    out = forward(self, x_BTD, packing, state)
    return out._replace(seen=out.seen | {"counts": out.seen["counts"].bfloat16().long()})


class _Uninitialised(Experts):
    def matmul(self, x_SI: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
        """What a grouped kernel may leave behind the last end, made certain."""
        tail = (torch.arange(len(x_SI)) >= ends_E[-1]).unsqueeze(-1)
        return super().matmul(x_SI, weight_EOI, ends_E).masked_fill(tail, torch.nan)


class _Multiplies(MoE):
    def combine(self, given_SD: Tensor, order_S: Tensor, gates_NK: Tensor, dropped_NK: Tensor) -> Tensor:
        return super().combine(given_SD, order_S, gates_NK * ~dropped_NK, torch.zeros_like(dropped_NK))


@broken(Reference, "parts", "MOE-08c[mixed]: y is not finite", bugs=("DSP-23",))
def multiplies_rows_of_nobody(parts, self):
    """Rows after the last expert are multiplied by a gate of 0 instead of being masked out."""
    return replace(parts(self), moe=_Multiplies, experts=_Uninitialised)


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


@broken(Reference, "parts", "MOE-08c[crowd]: is not finite", bugs=("DSP-23",))
def trusts_the_gradient_of_rows_of_nobody(parts, self):
    """The forward pass is masked, but dispatch adds to tokens the garbage that the kernel's backward leaves in these
    rows.
    """
    return replace(parts(self), moe=_TrustsTheBackward, experts=_FoulsTheBackward)


@broken(trainer, "_counters", "MOE-08f[one-microbatch]: step 1 reports ", "MOE-08f[five-recomputed]: step 1 reports ")
def counts_the_drops_of_the_last_layer(counters, seen):
    """Each layer writes what it dropped under one name."""
    dropped = [name for name in seen if name.endswith(".dropped")]
    return counters({name: each for name, each in seen.items() if name not in dropped[:-1]})

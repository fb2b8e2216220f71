"""Dispatch and combine that mix tokens up."""

import torch

from contracts.law._bugs.numeric import Experts, MoE, Router, broken, with_attributes


@broken(MoE, "combine", "MOE-02a[mixed]: expected gate x label", bugs=("DSP-06",))
def sorts_twice(combine, self, given_SD, order_S, gates_NK, dropped_NK):
    """The combine indexes with the order itself instead of its inverse: right only where the two are equal."""
    return combine(self, given_SD, order_S.argsort(), gates_NK, dropped_NK)


@broken(MoE, "combine", "MOE-02a[mixed]: expected gate x label")
def leaves_tokens_sorted(combine, self, given_SD, order_S, gates_NK, dropped_NK):
    """Outputs stay sorted by expert: loss, gradient norm and shapes all look right."""
    return combine(self, given_SD, torch.arange(len(order_S)), gates_NK, dropped_NK)


@broken(MoE, "dispatch", "MOE-02a[mixed]: expected gate x label", bugs=("DSP-02",))
def tiles_tokens(dispatch, self, x_ND, order_S, dropped_BTK):
    """The whole batch is repeated k times where each token should be: right only while k is 1."""
    return x_ND.repeat(self.moe.top_k, 1)[order_S]


@broken(MoE, "routed", "MOE-02a[mixed]: expected gate x label")
def weighs_the_input(routed, self, x_BTD, routing, dropped_BTK):
    """Gates multiply the inputs of experts: the same for linear experts, but the gate squared for relu²."""
    gates_NK = routing.gates_BTK.flatten(0, 1)
    slots_NK = routing.experts_BTK.flatten(0, 1)
    order_S = slots_NK.flatten().argsort(stable=True)
    copies = (x_BTD.flatten(0, 1).unsqueeze(1) * gates_NK.unsqueeze(-1)).to(x_BTD.dtype).flatten(0, 1)
    given_SD = self.experts(copies[order_S], routing.counts_E.cumsum(0))
    ones = torch.ones_like(gates_NK)
    return self.combine(given_SD, order_S, ones, dropped_BTK.flatten(0, 1)).view(x_BTD.shape)


@broken(MoE, "combine", "MOE-02a[mixed]: expected gate x label")
def reads_gates_slot_first(combine, self, given_SD, order_S, gates_NK, dropped_NK):
    """Gates are laid out (k, tokens) and read as (tokens, k): right when every gate is 1/k."""
    turned = gates_NK.T.reshape(gates_NK.shape)
    return combine(self, given_SD, order_S, turned, dropped_NK)


@broken(MoE, "combine", "MOE-02a[all-tokens-on-three-experts]: expected gate x label")
def sorts_gates_and_not_outputs(combine, self, given_SD, order_S, gates_NK, dropped_NK):
    """Gates are permuted with the tokens and not permuted back."""
    return combine(self, given_SD, order_S, gates_NK.flatten()[order_S].view(gates_NK.shape), dropped_NK)


@broken(MoE, "combine", "MOE-02a[every-expert]: expected gate x label")
def averages_over_slots(combine, self, given_SD, order_S, gates_NK, dropped_NK):
    """The combine takes a mean over the k slots although the gates are normalised already."""
    return combine(self, given_SD, order_S, gates_NK, dropped_NK) / self.moe.top_k


@broken(MoE, "combine", "MOE-02a[mixed-bfloat16]: expected gate x label")
def gives_every_slot_the_same_gate(combine, self, given_SD, order_S, gates_NK, dropped_NK):
    """The gates are reported and not used: every slot weighs 1/k."""
    return combine(self, given_SD, order_S, torch.ones_like(gates_NK) / self.moe.top_k, dropped_NK)


@broken(MoE, "combine", "MOE-02a[scaled]: expected gate x label")
def scales_the_sum_too(combine, self, given_SD, order_S, gates_NK, dropped_NK):
    """route_scale is in the gates, and is applied once more to their sum."""
    return combine(self, given_SD, order_S, gates_NK, dropped_NK) * self.moe.route_scale


@broken(Experts, "forward", "MOE-02a[all-tokens-on-three-experts]: expert 11 gave")
def leaves_the_last_expert_out(forward, self, x_SD, ends_E):
    """A loop over the offsets ends one short, so the last expert gives zeros."""
    given_SD = forward(self, x_SD, ends_E)
    before_last = torch.arange(len(x_SD)) < ends_E[-2]
    return given_SD * before_last.unsqueeze(-1)


@broken(Experts, "forward", "MOE-02a[mixed]: expected gate x label")
def shifts_the_offsets(forward, self, x_SD, ends_E):
    """Each expert also takes the first row of the next one: a few tokens go astray, and no shape changes."""
    return forward(self, x_SD, (ends_E + 1).clamp_max(len(x_SD)))


@broken(Experts, "forward", "MOE-02a[first-and-last-expert-idle]: expected gate x label", bugs=("DSP-19",))
def closes_the_gaps_of_idle_experts(forward, self, x_SD, ends_E):
    """Offsets leave idle experts out, so tokens of expert 3 go through the matrices of expert 2."""
    return forward(self, x_SD, ends_E[torch.diff(ends_E, prepend=ends_E.new_zeros(1)) > 0])


@broken(Experts, "matmul", "MOE-02a[k-1]: expected gate x label", "MOE-04a[softmax]: y differs", bugs=("DSP-04",))
def orders_experts_as_text(matmul, self, x_SI, weight_EOI, ends_E):
    """Experts are loaded in the order 0, 1, 10, 11, 2 …; with ten or fewer nothing is wrong."""
    return matmul(self, x_SI, weight_EOI[sorted(range(len(weight_EOI)), key=str)], ends_E)


@broken(MoE, "combine", "MOE-02e[320]: contributions of 1 add up to 256")
def combines_in_bfloat16(combine, self, given_SD, order_S, gates_NK, dropped_NK):
    """index_put accumulates in the dtype of the activations and rounds after every addition."""
    weighed_SD = given_SD * gates_NK.flatten()[order_S].unsqueeze(-1).to(given_SD.dtype)
    y_ND = given_SD.new_zeros(len(gates_NK), given_SD.shape[-1])
    return y_ND.index_put((order_S // self.moe.top_k,), weighed_SD, accumulate=True)


@broken(MoE, "dispatch", "MOE-02e[320]: gradients of 1 add up to 256")
def adds_gradients_in_bfloat16(dispatch, self, x_ND, order_S, dropped_BTK):
    """Dispatch is one gather, whose backward adds a token's k gradients one by one in bfloat16."""
    return x_ND[order_S // self.moe.top_k]


@broken(MoE, "combine", "MOE-02e[600]: contributions of 1 add up to 256")
def adds_slots_in_a_loop(combine, self, given_SD, order_S, gates_NK, dropped_NK):
    """Slots are added one by one in the dtype of the activations."""
    given_NKD = given_SD[order_S.argsort()].view(*gates_NK.shape, -1)
    y_ND = torch.zeros_like(given_NKD[:, 0])
    for slot in range(self.moe.top_k):
        y_ND = y_ND + given_NKD[:, slot] * gates_NK[:, slot, None].to(given_SD.dtype)
    return y_ND


@broken(Router, "choose", "MOE-04a[sigmoid-with-bias]: y differs")
def favours_experts_by_number(choose, self, scores_BTE):
    """A tie-break by expert number is large enough to decide where there is no tie."""
    nudge = torch.linspace(0.1, 0, self.moe.experts, dtype=scores_BTE.dtype)
    return choose(self, scores_BTE + nudge)


@broken(MoE, "drop", "MOE-04a[full]: differs")
def cuts_the_sorted_buffer(drop, self, experts_BTK):
    """All experts share one buffer, filled in the order of their numbers, so the last experts lose their tokens."""
    room = self.capacity(experts_BTK[..., 0].numel()) * self.moe.experts
    place_S = experts_BTK.flatten().argsort(stable=True).argsort()
    return (place_S >= room).view(experts_BTK.shape)


with_attributes(
    "DeclaresARoundedRouter",
    "Declares that the router's weight is held in bfloat16, and holds it in float32.",
    "MOE-02a[mixed-bfloat16]: expected gate x label",
    conventions={"softmax-router": "bfloat16-weight"},
)


@broken(MoE, "dispatch", "MOE-02g[softmax]: in a call of 73728 assignments y differs", bugs=("DSP-17",))
def sorts_in16_bits(dispatch, self, x_ND, order_S, dropped_BTK):
    """The index of the permutation is too small (here 16 bits, for the 32 of a kernel): large calls wrap it."""
    wrapped_S = order_S.to(torch.int16).long() % len(order_S)
    return x_ND.repeat_interleave(self.moe.top_k, 0)[wrapped_S]


@broken(Router, "count", "MOE-02g[sigmoid-with-bias]: assignments counts differs", bugs=("DSP-17",))
def counts_in_bytes(count, self, experts_BTK):
    """The permutation is right, and the counter beside it is too small: the selection bias moves by wrapped counts."""
    return count(self, experts_BTK).to(torch.uint8).long()

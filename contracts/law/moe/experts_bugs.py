"""Experts and shared experts with one bug each."""

import torch
import torch.nn.functional as F

from contracts.law._bugs import written_out
from contracts.law._bugs.numeric import Experts, MoE, Packing, Router, broken


@broken(
    Experts, "matmul", "MOE-02b[softmax-relu2]: gradient of lacks mixer.experts.w1",
    "OPT-01b[adamw]: no gradient reaches layers.1.mixer.experts.w1", bugs=("OPT-26",),
)  # fmt: skip
def never_trains_experts(matmul, self, x_SI, weight_EOI, ends_E):
    """A grouped matmul has no backward for its weights: the forward is right, and the experts never learn."""
    return matmul(self, x_SI, weight_EOI.detach(), ends_E)


@broken(MoE, "dispatch", "MOE-02b[without-shared]: gradient of x differs")
def cuts_the_tokens_gradient(dispatch, self, x_ND, order_S, dropped_BTK):
    """Dispatch goes through a copy without a gradient: experts train, the layers below them do not."""
    return dispatch(self, x_ND.detach(), order_S, dropped_BTK)


@broken(
    Experts,
    "forward",
    "MOE-02b[sigmoid-swiglu]: gradient of mixer.experts.w1 differs",
    "MOE-02d[in-the-middle]: expert 6 has no token",
)
def averages_gradients_by_load(forward, self, x_SD, ends_E):
    """An expert's gradient is the mean over its tokens, so a token counts less in a busy expert."""
    counts = torch.diff(ends_E, prepend=ends_E.new_zeros(1))

    def mean(gradient):
        return gradient / counts.view(-1, 1, 1)

    given_SD = forward(self, x_SD, ends_E)
    if self.w1.requires_grad:
        self.w1.register_hook(mean)
    return given_SD


@broken(Experts, "forward", "MOE-02b[softmax-relu2]: y differs", "MOE-02b[groups-relu2-without-losses]: y differs")
def forgets_the_square(forward, self, x_SD, ends_E):
    """Experts use relu where the dense block uses relu²."""
    return self.matmul(self.matmul(x_SD, self.w1, ends_E).relu(), self.w2, ends_E)


@broken(Experts, "forward", "MOE-02b[17-experts]: y differs")
def crosses_gate_and_up(forward, self, x_SD, ends_E):
    """silu is applied to w3 instead of w1: training works as well, but a checkpoint from elsewhere is useless."""
    gate_SF = F.silu(self.matmul(x_SD, self.w3, ends_E))
    return self.matmul(gate_SF * self.matmul(x_SD, self.w1, ends_E), self.w2, ends_E)


@broken(Experts, "matmul", "MOE-02b[float32]: y differs")
def runs_experts_in_bfloat16(matmul, self, x_SI, weight_EOI, ends_E):
    """The grouped kernel takes bfloat16 only, so everything is cast for it, in a float32 run too."""
    return matmul(self, x_SI.bfloat16(), weight_EOI.bfloat16(), ends_E).to(x_SI.dtype)


@broken(Router, "z_loss", "MOE-02c[softmax]: loss z")
def averages_no_tokens(z_loss, self, logits_BTE):
    """The mean over no tokens is NaN, and so is every gradient of the step."""
    return logits_BTE.logsumexp(-1).square().mean()


@broken(MoE, "routed", "MOE-02c[sigmoid]: gradient of lacks mixer.experts", bugs=("DSP-22",))
def skips_experts_without_tokens(routed, self, x_BTD, routing, dropped_BTK):
    """A call without tokens returns early: its weights get no gradient, and a reduction over ranks waits for one."""
    return routed(self, x_BTD, routing, dropped_BTK) if x_BTD.numel() else x_BTD


@broken(Experts, "forward", "MOE-02d[at-the-ends-bfloat16]: expert 0 has no token", bugs=("DSP-09",))
def leaves_idle_gradients_uninitialised(forward, self, x_SD, ends_E):
    """A grouped backward writes nothing for a group without rows, into a buffer that was not zeroed."""
    idle = torch.diff(ends_E, prepend=ends_E.new_zeros(1)) == 0

    def garbage(gradient):
        return gradient.masked_fill(idle.view(-1, 1, 1), torch.nan)

    if self.w2.requires_grad:
        self.w2.register_hook(garbage)
    return forward(self, x_SD, ends_E)


@broken(Experts, "forward", "MOE-02d[nearly-all]: has no token, and the gradient of its mixer.experts.w1 is")
def touches_idle_experts(forward, self, x_SD, ends_E):
    """Over-correction: the sum of every expert's weights is added to the output as a zero, to give each a gradient."""
    touched = sum((each.sum() for each in (self.w1, self.w2)), torch.zeros((), dtype=self.w1.dtype))
    return forward(self, x_SD, ends_E) + (touched - touched.detach()).to(x_SD.dtype)


@broken(MoE, "forward", "MOE-03a[softmax]: expected its label")
def serves_once_for_each_slot(forward, self, x_BTD, packing, state):
    """The shared expert is inside the loop over slots: right only while k is 1."""
    out = forward(self, x_BTD, packing, state)
    again = self.shared(x_BTD, packing, state).y_BTD
    return out._replace(y_BTD=out.y_BTD + (self.moe.top_k - 1) * again)


@broken(MoE, "routed", "MOE-03a[k-1]: expected its label", bugs=("DSP-16",))
def adds_the_shared_expert_twice(routed, self, x_BTD, routing, dropped_BTK):
    """The shared expert is added before the combine and again after it."""
    y_BTD = routed(self, x_BTD, routing, dropped_BTK)
    if self.shared is None:
        return y_BTD
    packed = Packing(documents_BT=dropped_BTK[..., 0].long(), positions_BT=dropped_BTK[..., 0].long())
    shared = self.shared(x_BTD, packed, {}).y_BTD
    return y_BTD + shared


@broken(MoE, "forward", "MOE-03a[scaled]: expected its label")
def scales_the_shared_expert(forward, self, x_BTD, packing, state):
    """route_scale multiplies the whole block, shared expert included."""
    out = forward(self, x_BTD, packing, state)
    again = self.shared(x_BTD, packing, state).y_BTD
    return out._replace(y_BTD=out.y_BTD + (self.moe.route_scale - 1) * again)


@broken(MoE, "forward", "MOE-03a[all-slots-taken]: expected its label")
def forgets_tokens_without_a_slot(forward, self, x_BTD, packing, state):
    """Tokens that lost every slot leave the block, and miss the shared expert too."""
    out = forward(self, x_BTD, packing, state)
    lost = out.seen["dropped"].all(-1, keepdim=True)
    return out._replace(y_BTD=out.y_BTD.masked_fill(lost, 0))


@broken(Experts, "forward", "MOE-02b[saturated]: y is not finite")
def writes_silu_out_in_experts(forward, self, x_SD, ends_E):
    """The activation between the grouped products computes x · exp(x) / (1 + exp(x)): NaN where exp overflows."""
    gate_SF, up_SF = (self.matmul(x_SD, weight, ends_E) for weight in (self.w1, self.w3))
    return self.matmul(written_out.silu(gate_SF) * up_SF, self.w2, ends_E)


@broken(Experts, "biased", "MOE-02b[biased]: y differs")
def gives_rows_the_bias_of_their_neighbour(biased, self, out_SO, bias_EO, ends_E, share=1.0):
    """The first row of each expert gets the bias of the one before it: its end is counted as its own."""
    if bias_EO is None:
        return out_SO
    expert_S = torch.searchsorted(ends_E, torch.arange(len(out_SO)))
    return out_SO + F.embedding(expert_S, F.pad(bias_EO * share, (0, 0, 0, 1))).to(out_SO.dtype)


@broken(Router, "gates", "MOE-02b[biased-router]: y differs")
def weighs_without_the_bias_of_the_logits(gates, self, scores_BTE, experts_BTK):
    """The bias of a router's logits only chooses, as a selection bias does."""
    return gates(self, scores_BTE if self.logit_bias is None else scores_BTE - self.logit_bias, experts_BTK)

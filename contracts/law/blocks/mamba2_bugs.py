"""Mamba-2 with one bug in its recurrence: time steps, decays, convolution, groups, norm.

B sequences · T tokens · h heads · p head_dim · g groups · n state · c channels · I = h·p inner
"""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.law._bugs import written_out
from contracts.law._bugs.numeric import (
    CausalConv,
    GatedNorm,
    Mamba2,
    Packing,
    Reference,
    RMSNorm,
    broken,
    wide,
    with_attributes,
)
from contracts.law.blocks.mamba_scan_bugs import ChunkByChunk


@broken(Mamba2, "decay_rate", "BLK-04a[plain]: y differs: ")
def turns_the_sign_of_a(decay_rate, self):
    """A is exp(A_log) instead of -exp(A_log), so the state grows."""
    return torch.exp(self.A_log)


@broken(Mamba2, "decay_rate", "BLK-04a[plain]: y differs: ")
def takes_the_logarithm_for_a(decay_rate, self):
    """A is -A_log instead of -exp(A_log)."""
    return -self.A_log


@broken(Mamba2, "decay_rate", "BLK-04a[plain]: y differs: ")
def exponentiates_a_twice(decay_rate, self):
    """A_log is exponentiated at loading and again in the forward pass."""
    return -torch.exp(torch.exp(self.A_log))


@broken(Mamba2, "decay_rate", "BLK-04e[memoryless]: each token should see only itself")
def clamps_the_decay(decay_rate, self):
    """A is clamped to at least -16, the bound of its initial values, so a faster decay is ignored."""
    return decay_rate(self).clamp(min=-16)


@broken(Mamba2, "decay_rate", "BLK-04e[everything-kept]: nothing should be forgotten")
def always_forgets_a_little(decay_rate, self):
    """A is clamped to at most -1e-4, which is Mamba-3's rule."""
    return decay_rate(self).clamp(max=-1e-4)


@broken(Mamba2, "time_step", "BLK-04a[plain]: y differs: ")
def leaves_out_the_bias_of_the_step(time_step, self, dt_BTh):
    """dt is the softplus of its projection, without dt_bias."""
    return F.softplus(wide(dt_BTh)) + 0 * self.dt_bias


@broken(Mamba2, "time_step", "BLK-04a[one-token]: y differs: ")
def adds_the_bias_behind_softplus(time_step, self, dt_BTh):
    """dt is softplus(projection) + bias, which may be below 0."""
    return F.softplus(wide(dt_BTh)) + self.dt_bias


@broken(Mamba2, "time_step", "BLK-04a[one-token]: y differs: ")
def leaves_out_softplus(time_step, self, dt_BTh):
    """dt is its projection plus bias, without softplus."""
    return wide(dt_BTh) + self.dt_bias


@broken(Mamba2, "time_step", "BLK-04a[plain]: y differs: ")
def takes_softplus_twice(time_step, self, dt_BTh):
    """The block applies softplus to dt, and so does the kernel."""
    return F.softplus(time_step(self, dt_BTh))


@broken(Mamba2, "time_step", "BLK-04h[long-and-short]: y is not finite", bugs=("SSM-01",))
def takes_softplus_literally(time_step, self, dt_BTh):
    """log(1 + exp(x)) overflows float32 at 89."""
    return torch.log(1 + torch.exp(wide(dt_BTh) + self.dt_bias))


@broken(Mamba2, "time_step", "BLK-04h[long-and-short]: the gradient of ", bugs=("SSM-01",))
def switches_after_the_overflow(time_step, self, dt_BTh):
    """The forward pass avoids the overflow; the gradient is still 0 times infinity."""
    dt_BTh = wide(dt_BTh) + self.dt_bias
    return torch.where(dt_BTh > 20, dt_BTh, torch.log1p(torch.exp(dt_BTh)))


@broken(Mamba2, "time_step", "BLK-04h[below-the-switch]: y differs: ")
def steps_straight_from_six_on(time_step, self, dt_BTh):
    """The softplus is its input from 6 on, where it still differs from it by a quarter of a thousandth."""
    return F.softplus(wide(dt_BTh) + self.dt_bias, threshold=6)


@broken(Mamba2, "time_step", "BLK-04a[plain]: y differs: ")
def takes_the_step_of_the_token_before(time_step, self, dt_BTh):
    """Each token uses the dt of the token before."""
    return time_step(self, dt_BTh).roll(1, dims=1)


class _ScansOtherwise(Mamba2):
    """Mamba-2 whose scan gets changed inputs: `others` maps x, dt, B and C."""

    def scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, packing: Packing, state: Any) -> tuple[Tensor, Tensor]:
        return super().scan(*self.others(x, dt, b, c), packing, state)

    def others(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return x, dt, b, c


@broken(_ScansOtherwise, "others", "BLK-04a[plain]: y differs: ")
def adds_inputs_without_their_step(others, self, x, dt, b, c):
    """The state adds x Bᵀ instead of dt x Bᵀ."""
    return x / dt[..., None], dt, b, c


@broken(_ScansOtherwise, "others", "BLK-04a[plain]: y differs: ")
def decays_a_token_by_its_own_step(others, self, x, dt, b, c):
    """A token's input is decayed by its own step, because the segment sum is off by one."""
    return x * torch.exp(dt * self.decay_rate())[..., None], dt, b, c


@broken(_ScansOtherwise, "others", "BLK-04a[plain]: y differs: ")
def swaps_b_and_c(others, self, x, dt, b, c):
    """B and C are swapped: the packed projection is split in the wrong order."""
    return x, dt, c, b


@broken(_ScansOtherwise, "scan", "BLK-04a[packed-with-state]: the gradient of ", bugs=("SSM-04",))
def leaves_the_decay_out_of_a_packed_gradient(scan, self, x, dt, b, c, packing, state):
    """The backward pass for packed rows omits the gradient of dt through the decay."""
    if packing.boundless:
        return scan(self, x, dt, b, c, packing, state)
    held = dt.detach()
    return scan(self, x * (dt / held)[..., None], held, b, c, packing, state)


@broken(Mamba2, "scan", "BLK-04a[plain]: y differs: ")
def leaves_out_d(scan, self, x, dt, b, c, packing, state):
    """D x is not added."""
    y, last = scan(self, x, dt, b, c, packing, state)
    return y - self.D[:, None] * x, last


@broken(CausalConv, "mixed", "BLK-04a[plain]: y differs: ")
def reads_the_taps_backwards(mixed, self, seen_Bwc, of_Bw):
    """The taps are applied in reverse order: a convolution in place of a correlation."""
    taps = [seen_Bwc[:, i : seen_Bwc.shape[1] - 3 + i] * self.weight[:, 3 - i] for i in range(4)]
    return torch.stack(taps).sum(0) + self.bias


@broken(CausalConv, "forward", "BLK-04a[plain]: y differs: ")
def activates_before_the_convolution(forward, self, u_BTc, packing, state):
    """silu precedes the convolution instead of following it."""
    seen_Bwc, of_Bw = self.extended(F.silu(u_BTc), packing, state)
    return self.mixed(seen_Bwc, of_Bw).to(u_BTc.dtype), self.last(seen_Bwc, of_Bw)


@broken(CausalConv, "mixed", "BLK-04a[plain]: y differs: ")
def leaves_out_the_bias_of_the_convolution(mixed, self, seen_Bwc, of_Bw):
    """The convolution's bias is in the checkpoint and not applied."""
    return mixed(self, seen_Bwc, of_Bw) - self.bias


# groups, gate, norm
@broken(
    Mamba2,
    "per_head",
    "BLK-04i[last-of-the-first-group]: head 1 reaches parts [0, 1] of wb.weight",
    "BLK-04a[three-groups-of-two]: y differs: ",
)
def tiles_the_groups(per_head, self, grouped_BTc):
    """Head i reads group i mod g: repeat in place of repeat_interleave."""
    neighbouring = per_head(self, grouped_BTc)[:, :, :: self.heads // self.groups]
    return neighbouring.repeat(1, 1, self.heads // self.groups, 1)


@broken(Mamba2, "per_head", "BLK-04i[last]: head 5 reaches parts [0] of wb.weight, expected [2]")
def reads_the_first_group_in_every_head(per_head, self, grouped_BTc):
    """Every head reads group 0, as with the default of ngroups = 1."""
    return per_head(self, grouped_BTc)[:, :, :1].expand(-1, -1, self.heads, -1)


@broken(GatedNorm, "normed", "BLK-04i[last]: head 5 reaches parts [0, 1, 2] of wb.weight, expected [2]")
def norms_across_groups(normed, self, y_BTI):
    """One norm covers the whole inner width. Under TP it would need a reduction that nobody makes."""
    return RMSNorm.forward(self, y_BTI)


@broken(GatedNorm, "normed", "BLK-04a[plain]: the gradient of ", bugs=("SSM-02",))
def norms_across_groups_backward(normed, self, y_BTI):
    """The forward pass norms each group; the backward pass treats the inner width as one group."""
    wrong_BTI = RMSNorm.forward(self, y_BTI)
    return wrong_BTI + (normed(self, y_BTI) - wrong_BTI).detach()


@broken(GatedNorm, "normed", "BLK-04a[plain]: y differs: ")
def norms_each_head(normed, self, y_BTI):
    """Each head is normed by itself, where the two heads of a group share one norm."""
    heads = y_BTI.shape[-1] // 8
    held, self.groups = self.groups, heads
    try:
        return normed(self, y_BTI)
    finally:
        self.groups = held


@broken(GatedNorm, "forward", "BLK-04a[plain]: y differs: ")
def gates_behind_the_norm(forward, self, y_BTI, gate_BTI):
    """The gate follows the norm, as with norm_before_gate."""
    return self.normed(wide(y_BTI)) * F.silu(wide(gate_BTI))


@broken(GatedNorm, "normed", "BLK-04a[a-large-epsilon]: y differs: ", bugs=("MXP-08",))
def ignores_the_epsilon_of_the_recipe(normed, self, y_BTI):
    """The gated norm uses its default eps of 1e-5 instead of the recipe's."""
    self.eps = 1e-5
    return normed(self, y_BTI)


@broken(Reference, "parts", "BLK-04a[a-large-epsilon-of-the-first-norm]: y differs: ", bugs=("MXP-08",))
def builds_its_first_norm_without_the_epsilon(parts, self):
    """The norm before the mixer has its class's default epsilon (Megatron-LM#5750); the gated norm has the recipe's."""
    return replace(parts(self), norm=lambda width, _: RMSNorm(width, 1e-5))


@broken(ChunkByChunk, "between", "BLK-04a[plain]: the gradient of ", bugs=("SSM-03",))
def reads_the_gradient_of_a_state_transposed(between, self, state_Bhpn):
    """The backward kernel reads the state gradient with strides of (n, p), which shows from the second chunk on."""
    if not state_Bhpn.requires_grad:
        return state_Bhpn
    passed = state_Bhpn.clone()
    passed.register_hook(lambda gradient: gradient.mT.reshape(gradient.shape))
    return passed


class Halves(ChunkByChunk):
    def between(self, state_Bhpn: Tensor) -> Tensor:
        return state_Bhpn.to(torch.bfloat16).to(state_Bhpn.dtype)


with_attributes(
    "KeepsTheStateBetweenChunksInBfloat16",
    "The state between chunks is in bfloat16. bfloat16 activations hide it; in float32 it is 3000 times the bound.",
    "BLK-04a[float32]: y differs: ",
    owner=Halves,
)


@broken(Mamba2, "scan", "BLK-04a[plain]: the state ssm differs")
def steps_through_the_padding(scan, self, x, dt, b, c, packing, state):
    """dt is padded before softplus, so padding decays the last state. No output shows it."""
    y, last = scan(self, x, dt, b, c, packing, state)
    padding = -x.shape[1] % self.chunk
    step = F.softplus(self.dt_bias)  # of a padded input of 0
    return y, last * torch.exp(padding * step * self.decay_rate())[:, None, None]


@broken(Mamba2, "scan", "BLK-04a[packed-with-state]: the gradient of lacks state.ssm", bugs=("SSM-18",))
def gives_the_initial_state_no_gradient(scan, self, x, dt, b, c, packing, state):
    """The initial state gets no gradient, so a sequence cut in two trains only its second half."""
    return scan(self, x, dt, b, c, packing, None if state is None else state.detach())


@broken(GatedNorm, "forward", "BLK-04a[saturated]: y is not finite")
def writes_the_gate_out(forward, self, y_BTI, gate_BTI):
    """The gated norm computes x · exp(x) / (1 + exp(x)), which is NaN where exp overflows."""
    return self.normed(wide(y_BTI) * written_out.silu(wide(gate_BTI)))


@broken(CausalConv, "forward", "BLK-04a[saturated]: y is not finite")
def writes_the_convolution_out(forward, self, u_BTc, packing, state):
    """The kernel of the convolution computes its silu as x · exp(x) / (1 + exp(x))."""
    seen_Bwc, of_Bw = self.extended(u_BTc, packing, state)
    return written_out.silu(self.mixed(seen_Bwc, of_Bw)).to(u_BTc.dtype), self.last(seen_Bwc, of_Bw)

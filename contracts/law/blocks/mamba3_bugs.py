"""Mamba-3 with one bug in its step, its rotation, or its B and C.

B sequences · T tokens · h heads · p head_dim · g groups · n state · S angles
"""

from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.law._bugs import written_out
from contracts.law._bugs.numeric import Mamba3, Output, Packing, State, broken, derived, local, wide
from contracts.stacks.reference.model.blocks.mamba2 import split
from contracts.stacks.reference.model.blocks.mamba3 import SLOWEST


@broken(Mamba3, "mix", "BLK-04m[plain]: y differs: ")
def steps_as_mamba2(mix, self, trap_BTh):
    """The step is Mamba-2's: the previous token adds nothing."""
    return torch.ones_like(mix(self, trap_BTh)) + 0 * wide(trap_BTh)


@broken(
    Mamba3, "mix", "BLK-04m[plain]: y differs: ", "BLK-04n[all-at-the-end]: y with the initial k and v set to 0 differs"
)
def swaps_the_ends_of_a_step(mix, self, trap_BTh):
    """λ and 1 - λ are swapped."""
    return 1 - mix(self, trap_BTh)


@broken(Mamba3, "mix", "BLK-04n[all-at-the-beginning]: a first token gives ")
def takes_trap_for_a_share(mix, self, trap_BTh):
    """Trap is used without its sigmoid, as the kernel's documentation suggests."""
    return wide(trap_BTh)


@broken(Mamba3, "mix", "BLK-04n[all-at-the-beginning]: a first token gives ")
def takes_the_sigmoid_twice(mix, self, trap_BTh):
    """The block applies the sigmoid to trap, and so does the kernel."""
    return torch.sigmoid(mix(self, trap_BTh))


@broken(Mamba3, "ends", "BLK-04m[plain]: y differs: ")
def adds_the_beginning_undecayed(ends, self, dt_BTh, log_decay_BTh, mix_BTh):
    """The previous token's contribution is not decayed over the step."""
    return mix_BTh * dt_BTh, (1 - mix_BTh) * dt_BTh


@broken(Mamba3, "decay_rate", "BLK-04m[plain]: y differs: ")
def decays_by_a_heavy_tail(decay_rate, self, a_BTh):
    """A is -(1 + x) or -1 / (1 - x), as in a later mamba-ssm with the same version string: another model."""
    a_BTh = wide(a_BTh)
    return -torch.where(a_BTh >= 0, 1 + a_BTh, 1 / (1 + a_BTh.abs())).clamp(min=SLOWEST)


@broken(Mamba3, "decay_rate", "BLK-04m[slowest-decay]: y differs: ")
def decays_as_slowly_as_it_likes(decay_rate, self, a_BTh):
    """The kernel's floor under the decay is left out: a head that is driven far enough never forgets."""
    return -F.softplus(wide(a_BTh))


@broken(Mamba3, "turn", "BLK-04m[plain]: y differs: ")
def turns_by_the_token_and_not_by_the_step(turn, self, angle_BTS, dt_BTh):
    """The angle is not multiplied by dt."""
    return turn(self, angle_BTS, torch.ones_like(dt_BTh))


@broken(Mamba3, "turn", "BLK-04m[plain]: y differs: ")
def turns_without_bound(turn, self, angle_BTS, dt_BTh):
    """The angle is summed without π tanh, as the kernel's documentation suggests."""
    return wide(angle_BTS)[:, :, None] * dt_BTh[..., None]


@broken(Mamba3, "rotated", "BLK-04m[packed-with-state]: y differs: ")
def pairs_the_halves(rotated, self, u_BThn, angle_BThS):
    """Rotation pairs elements i and i + S, as in the kernel for several inputs, instead of 2i and 2i + 1."""
    turned = 2 * angle_BThS.shape[-1]
    one, two = u_BThn[..., :turned].chunk(2, dim=-1)
    cos, sin = torch.cos(angle_BThS), torch.sin(angle_BThS)
    return torch.cat([one * cos - two * sin, one * sin + two * cos, u_BThn[..., turned:]], dim=-1)


@broken(Mamba3, "rotated", "BLK-04o[three-turns]: added to the initial angle differs")
def turns_by_half_the_angle(rotated, self, u_BThn, angle_BThS):
    """The rotation uses half the angle, and the carried angle still wraps at 2π."""
    return rotated(self, u_BThn, angle_BThS / 2)


@derived("BLK-04o[any-angle-before-an-empty-state]: added to the initial angle differs")
class TurnsBAndNotC(Mamba3):
    """k is rotated and q is not."""

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        self.calls = 0
        return super().forward(x_BTD, packing, state)

    def rotated(self, u_BThn: Tensor, angle_BThS: Tensor) -> Tensor:
        self.calls += 1  # first k, then q
        return super().rotated(u_BThn, angle_BThS) if self.calls == 1 else u_BThn


@broken(Mamba3, "per_head", "BLK-04m[plain]: y differs: ")
def biases_before_the_norm(per_head, self, norm, grouped_BTc):
    """The biases of B and C are added before their norms."""
    bias_hn = self.b_bias if norm is self.b_norm else self.c_bias
    grouped_BTgn = wide(split(grouped_BTc, self.groups))
    heads = grouped_BTgn.repeat_interleave(self.heads // self.groups, dim=2)
    normed = norm(heads + bias_hn)
    return normed - bias_hn


@broken(Mamba3, "per_head", "BLK-04m[three-groups-of-two]: y differs: ")
def norms_neither_b_nor_c(per_head, self, norm, grouped_BTc):
    """B and C are not normed."""
    grouped_BTgn = wide(split(grouped_BTc, self.groups)) * self.b_norm.weight
    return grouped_BTgn.repeat_interleave(self.heads // self.groups, dim=2)


@broken(Mamba3, "__init__", "BLK-04m[a-large-epsilon]: y differs: ", bugs=("MXP-08",))
def norms_b_and_c_by_its_own_epsilon(init, self, recipe, parts):
    """The norms of B and C use a default eps of 1e-5 instead of the recipe's."""
    init(self, recipe, parts)
    self.b_norm.eps = self.c_norm.eps = 1e-5


@broken(Mamba3, "per_head", "BLK-04q[last-of-the-first-group]: head 1 reaches parts [1] of wb.weight, expected [0]")
def tiles_the_groups_of_b_and_c(per_head, self, norm, grouped_BTc):
    """Head i reads group i mod g."""
    grouped_BTgn = wide(norm(split(grouped_BTc, self.groups)))
    return grouped_BTgn.repeat(1, 1, self.heads // self.groups, 1)


@broken(
    Mamba3,
    "per_head",
    "BLK-04q[first-of-the-second-group]: head 2 reaches parts [2] of wb.weight, expected [1]",
    "BLK-04m[plain]: the gradient of ",
    bugs=("SSM-11",),
)
def sums_group_gradients_over_other_heads(per_head, self, norm, grouped_BTc):
    """Outputs are right, but the backward pass sums heads into the wrong groups. g = 1 and g = h hide it."""
    grouped_BTgn = wide(norm(split(grouped_BTc, self.groups)))
    tiled = grouped_BTgn.repeat(1, 1, self.heads // self.groups, 1)
    return tiled + (per_head(self, norm, grouped_BTc) - tiled).detach()


@broken(Mamba3, "scan", "BLK-04m[float32]: y differs: ")
def leaves_out_the_way_past_the_scan(
    scan,
    self,
    v,
    k,
    q,
    dt,
    log_decay,
    mix,
    packing,
    state,
):
    """D v is not added."""
    y, ssm = scan(self, v, k, q, dt, log_decay, mix, packing, state)
    return y - self.D[:, None] * v, ssm


@broken(Mamba3, "__init__", "BLK-04p[float32]: mixer.b_norm.weight is (32,), expected (16,)")
def norms_b_and_c_across_groups(init, self, recipe, parts):
    """One norm of B, and one of C, covers all groups."""
    init(self, recipe, parts)
    self.b_norm, self.c_norm = (parts.norm(recipe.mamba.groups * recipe.mamba.state, recipe.norm_eps) for _ in "bc")


@broken(Mamba3, "__init__", "BLK-04p[bf16-three-groups]: dt_bias is held in bfloat16 under bf16, expected float32")
def holds_the_bias_of_the_step_in_bfloat16(init, self, recipe, parts):
    """dt_bias is cast to bfloat16 with the rest of the block."""
    init(self, recipe, parts)
    if recipe.dtype == "bf16":
        self.dt_bias = nn.Parameter(self.dt_bias.to(torch.bfloat16))


@broken(Mamba3, "time_step", "BLK-04u[long-and-short]: y is not finite")
def writes_softplus_out(time_step, self, dt_BTh):
    """The time step is log(1 + exp(x)), which is infinite where exp overflows."""
    return written_out.softplus(wide(dt_BTh) + local(self.dt_bias))


@broken(Mamba3, "time_step", "BLK-04u[below-the-switch]: y differs")
def steps_mamba3_straight_from_six_on(time_step, self, dt_BTh):
    """The softplus is its input from 6 on."""
    return F.softplus(wide(dt_BTh) + local(self.dt_bias), threshold=6)


@broken(Mamba3, "forward", "BLK-04m[saturated]: y is not finite")
def writes_the_gate_of_mamba3_out(forward, self, x_BTD, packing, state):
    """The gate after the scan is x · exp(x) / (1 + exp(x)), which is NaN where exp overflows."""
    with mock.patch.object(F, "silu", written_out.silu):
        return forward(self, x_BTD, packing, state)


@broken(Mamba3, "mix", "BLK-04m[saturated]: y is not finite")
def writes_the_sigmoid_of_trap_out(mix, self, trap_BTh):
    """The share of the current token is exp(x) / (1 + exp(x)), which is NaN where exp overflows."""
    return written_out.sigmoid(wide(trap_BTh))

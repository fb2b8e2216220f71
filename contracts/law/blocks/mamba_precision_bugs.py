"""Mamba that holds or computes in bfloat16 what should be float32, or lacks a tensor.

B sequences · T tokens · h heads
"""

import torch
import torch.nn.functional as F
from torch import nn

from contracts.law._bugs.numeric import Mamba2, Mamba3, broken, wide, with_attributes
from contracts.law.blocks.mamba2_bugs import Halves


@broken(Mamba2, "__init__", "BLK-04f[bf16]: A_log is held in bfloat16 under bf16, expected float32")
def casts_the_whole_block(init, self, recipe, parts):
    """model.to(bfloat16) also casts A_log, D and dt_bias."""
    init(self, recipe, parts)
    if recipe.dtype == "bf16":
        self.to(torch.bfloat16)


@broken(Mamba2, "__init__", "BLK-04f[bf16-three-groups]: dt_bias is held in bfloat16 under bf16, expected float32")
def casts_the_bias_of_the_step(init, self, recipe, parts):
    """A_log and D are on the list of float32 parameters; dt_bias is not."""
    init(self, recipe, parts)
    if recipe.dtype == "bf16":
        self.dt_bias = nn.Parameter(self.dt_bias.to(torch.bfloat16))


@broken(Mamba2, "__init__", "BLK-04f[float32]: mixer.conv_b.bias is None, expected (32,)")
def convolves_b_and_c_without_bias(init, self, recipe, parts):
    """Only the convolution of x has a bias after the packed convolution was split."""
    init(self, recipe, parts)
    self.conv_b.bias = self.conv_c.bias = None


@broken(Mamba2, "time_step", "BLK-04g[mamba2]: the state after 50 empty tokens differs")
def adds_the_bias_of_the_step_in_bfloat16(time_step, self, dt_BTh):
    """dt_bias is cast to the dtype of the projection before it is added."""
    return F.softplus(wide(dt_BTh + self.dt_bias.to(dt_BTh.dtype)))


@broken(Mamba2, "decay_rate", "BLK-04g[mamba2]: the state after 50 empty tokens differs")
def takes_a_in_bfloat16(decay_rate, self):
    """A is computed from A_log in bfloat16, as autocast does."""
    return -torch.exp(self.A_log.to(torch.bfloat16)).float()


@broken(Mamba2, "scan", "BLK-04g[mamba2]: the state is bfloat16 under bfloat16 activations, expected float32")
def leaves_a_bfloat16_state(scan, self, x, dt, b, c, packing, state):
    """The state returned to the next call has the dtype of the activations."""
    y, last = scan(self, x, dt, b, c, packing, state)
    return y, last.to(torch.bfloat16)


@broken(Mamba3, "time_step", "BLK-04g[mamba3]: the state after 50 empty tokens differs")
def steps_in_bfloat16(time_step, self, dt_BTh):
    """Mamba-3 adds dt_bias in the dtype of the activations."""
    return F.softplus(wide(dt_BTh + self.dt_bias.to(dt_BTh.dtype)))


with_attributes(
    "RoundsTheStateBetweenChunks",
    "The state between chunks is in bfloat16. With zero inputs no activation rounding hides it.",
    "BLK-04g[mamba2]: the state after 50 empty tokens differs",
    owner=Halves,
)

"""Dense MLPs with one bug: in activation, gate, derivative or independence of tokens."""

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.law._bugs import written_out
from contracts.law._bugs.numeric import Linear, Mlp, broken, derived


@broken(
    Mlp,
    "activate",
    "BLK-06j[relu2-w1]: mixer.w1.weight times 3, against 9 times the output: y differs",
    "BLK-06h[relu2]: y differs",
)
def forgets_the_square(activate, self, x_BTF):
    """relu in place of relu². It trains nearly as well."""
    return F.relu(x_BTF)


@broken(Mlp, "activate", "BLK-06i[relu2]: relu2 of -3 is 9, expected 0")
def squares_both_signs(activate, self, x_BTF):
    """x² without the relu. It scales as relu² does."""
    return x_BTF.square()


@broken(Mlp, "activate", "BLK-06i[relu2]: relu2 of 3 is 2.99595031, expected 9")
def keeps_the_default_activation(activate, self, x_BTF):
    """The builder ignores the recipe's activation and uses its default, gelu."""
    return F.gelu(x_BTF)


@broken(Mlp, "activate", "BLK-06h[relu2-narrow]: gradient mixer.w1.weight differs")
def derivative_loses_its_factor(activate, self, x_BTF):
    """The fused backward kernel of relu² multiplies by x instead of 2x. Adam hides the factor."""
    positive = F.relu(x_BTF)
    return positive * positive.detach()


@broken(Mlp, "activate", "BLK-06k[relu2]: mixer.w1.weight is zero, and the gradient of norm.weight is not finite")
def squares_through_logarithms(activate, self, x_BTF):
    """The square is exp(2 log x) after a `where`, so its derivative at 0 is 0 · infinity."""
    return torch.where(x_BTF > 0, (2 * x_BTF.abs().log()).exp(), torch.zeros_like(x_BTF))


@broken(Mlp, "activate", "BLK-06k[relu2]: mixer.w1.weight is zero, and the output is not")
def floors_the_activation(activate, self, x_BTF):
    """A floor keeps the logarithm finite, and keeps every unit active."""
    return x_BTF.clamp_min(1e-3).square()


@broken(
    Mlp,
    "gate",
    "BLK-06j[swiglu-w3]: mixer.w3.weight times -3, against -3 times the output: y differs",
    "BLK-06i[swiglu]: swiglu of 1 is 1.76159416, expected 1.46211716",
    "BLK-06h[swiglu]: y differs",
)
def gates_by_the_wrong_matrix(gate, self, gate_BTF, up_BTF):
    """w1 and w3 are swapped, so silu applies to w3 x."""
    return gate(self, up_BTF, gate_BTF)


@broken(
    Mlp, "gate", "BLK-06k[swiglu]: mixer.w1.weight is zero, and the output is not", "BLK-06h[swiglu-narrow]: y differs"
)
def gates_by_sigmoid(gate, self, gate_BTF, up_BTF):
    """The gate is sigmoid instead of silu: GLU in place of SwiGLU."""
    return gate_BTF.sigmoid() * up_BTF


@broken(Mlp, "apply_to", "BLK-06h[swiglu]: y differs", bugs=("RSM-61",))
def reads_a_sharded_gate_and_up_as_whole(apply_to, self, x_BTD):
    """A fused [gate | up] saved from two TP ranks is read as if it were unsharded."""
    if not self.gated:
        return apply_to(self, x_BTD)
    (first, second), (third, fourth) = (each.weight.chunk(2) for each in (self.w1, self.w3))
    sharded = torch.cat((first, third, second, fourth)).to(x_BTD.dtype)  # [gate | up] of rank 0, then of rank 1
    gate_BTF, up_BTF = F.linear(x_BTD, sharded).chunk(2, dim=-1)
    return self.w2(self.gate(gate_BTF, up_BTF))


@derived(
    "BLK-06l[swiglu]: token 7 of row 1 was replaced, and y of the others differs",
    "BLK-06l[relu2]: token 3 of row 1 was replaced, and y of the others differs",
)
class CentresOverTokens(Mlp):
    """The inner values are centred over the sequence, so each token depends on all others."""

    def activate(self, x_BTF: Tensor) -> Tensor:
        return super().activate(x_BTF - x_BTF.mean(1, keepdim=True))

    def gate(self, gate_BTF: Tensor, up_BTF: Tensor) -> Tensor:
        return super().gate(gate_BTF, up_BTF - up_BTF.mean((0, 1), keepdim=True))


@broken(Mlp, "gate", "BLK-06h[swiglu-saturated]: y is not finite")
def writes_silu_out(gate, self, gate_BTF, up_BTF):
    """A fused gate computes x · exp(x) / (1 + exp(x)), which is NaN where exp overflows."""
    return written_out.silu(gate_BTF) * up_BTF


@broken(Mlp, "gate", "BLK-06h[swiglu-saturated]: y differs")
def clamps_before_silu(gate, self, gate_BTF, up_BTF):
    """Against the overflow the input of a gate is clamped, with it the output, and its gradient ends there."""
    return written_out.silu(gate_BTF.clamp(-80, 80)) * up_BTF


@broken(Linear, "biased", "BLK-06h[swiglu-biased]: y differs", "BLK-03a[biased]: y differs")
def leaves_biases_out(biased, self, product, bias):
    """Biases are made, saved and counted, and not added."""
    return product


@broken(Mlp, "gate", "BLK-06h[swiglu-biased]: y differs")
def adds_the_bias_of_the_gate_last(gate, self, gate_BTF, up_BTF):
    """The gate's bias is added after silu."""
    bias_F = 0 if self.w1.bias is None else self.w1.bias
    return gate(self, gate_BTF - bias_F, up_BTF) + bias_F * up_BTF

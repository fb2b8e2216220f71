"""The dense MLP of E without experts, and its two activations.

    B sequences · T tokens · D hidden · F inner width

relu²: arXiv 2109.08668 (Primer); SwiGLU: 2002.05202.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from contracts.spec import Recipe
from contracts.stacks.reference.model.blocks.common import Linear, Output, Packing, State


class Mlp(nn.Module):
    """w2 relu(w1 x)², or w2 (silu(w1 x) · w3 x) with swiglu."""

    def __init__(self, recipe: Recipe, inner: int) -> None:
        super().__init__()
        bias = "mlp" in recipe.biases
        self.gated = recipe.activation == "swiglu"
        self.w1 = Linear(recipe.hidden, inner, bias=bias)
        self.w2 = Linear(inner, recipe.hidden, bias=bias)
        if self.gated:
            self.w3 = Linear(recipe.hidden, inner, bias=bias)

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        return Output(y_BTD=self.apply_to(x_BTD))

    def apply_to(self, x_BTD: Tensor) -> Tensor:
        inner_BTF = self.gate(self.w1(x_BTD), self.w3(x_BTD)) if self.gated else self.activate(self.w1(x_BTD))
        y_BTD: Tensor = self.w2(inner_BTF)
        return y_BTD

    def activate(self, x_BTF: Tensor) -> Tensor:
        return F.relu(x_BTF).square()

    def gate(self, gate_BTF: Tensor, up_BTF: Tensor) -> Tensor:
        return F.silu(gate_BTF) * up_BTF

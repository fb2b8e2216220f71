"""The dense MLP, one token at a time. relu²: arXiv 2109.08668; SwiGLU: 2002.05202."""

from collections.abc import Mapping

import torch
from torch import Tensor

from contracts.instruments.oracles.attention import linear
from contracts.spec import Recipe


def dense(recipe: Recipe, weights: Mapping[str, Tensor], x_TD: Tensor) -> Tensor:
    """Tokens through the norm and the MLP of an E block without experts: (T, D). Takes float64; differentiable."""
    rows = []
    for x in x_TD:
        h = x / torch.sqrt((x * x).mean() + recipe.norm_eps) * weights["norm.weight"]
        one = linear(weights, "mixer.w1", h)
        if recipe.activation == "relu2":
            inner = torch.where(one > 0, one * one, torch.zeros_like(one))
        else:
            inner = one * torch.sigmoid(one) * linear(weights, "mixer.w3", h)
        rows.append(linear(weights, "mixer.w2", inner))
    return torch.stack(rows)

"""Activations computed as their formulas are written, which overflow where they should saturate."""

from torch import Tensor


def silu(x: Tensor) -> Tensor:
    e = x.exp()
    return x * e / (1 + e)


def softplus(x: Tensor) -> Tensor:
    return (1 + x.exp()).log()


def sigmoid(x: Tensor) -> Tensor:
    e = x.exp()
    return e / (1 + e)


def softmax(x: Tensor) -> Tensor:
    e = x.exp()
    return e / e.sum(-1, keepdim=True)

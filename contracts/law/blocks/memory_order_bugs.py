"""Blocks that take a pointer and a length, and read what lies in another order as if it lay row by row."""

from typing import Any

import torch
from torch import Tensor

from contracts.law._bugs.numeric import Attention, Mamba2, MoE, Output, broken


def _by_pointer(t: Tensor) -> Tensor:
    """The elements in the order of the memory, in the shape of the tensor."""
    return t.as_strided(t.shape, torch.empty(t.shape, device="meta").stride())


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _by_pointer(grad)


@broken(Attention, "forward", "BLK-09a[attention]: with its first axis fastest in memory: gradient")
def reads_the_upstream_gradient_by_its_pointer(forward, self, x_BTD, packing, state):
    """The backward kernel gets the pointer of its upstream gradient and no strides."""
    out = forward(self, x_BTD, packing, state)
    return Output(_Backward.apply(out.y_BTD), *out[1:])


@broken(MoE, "forward", "BLK-09a[experts]: with its first axis fastest in memory: y")
def reads_the_input_by_its_pointer(forward, self, x_BTD, packing, state):
    """The dispatch kernel gets the pointer of its input and no strides."""
    return forward(self, _by_pointer(x_BTD), packing, state)


@broken(Mamba2, "forward", "BLK-09a[mamba2]: with its first axis fastest in memory: y")
def makes_it_contiguous_the_wrong_way(forward, self, x_BTD, packing, state):
    """Over-correction: what is not contiguous is taken for a transposed tensor, and turned back by a reshape."""
    flat = x_BTD if x_BTD.is_contiguous() else x_BTD.mT.reshape(x_BTD.shape)
    return forward(self, flat, packing, state)

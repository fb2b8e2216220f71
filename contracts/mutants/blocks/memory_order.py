"""Blocks that take a pointer and a length, and read what lies in another order as if it lay row by row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.stacks.reference.model.blocks.attention import Attention
from contracts.stacks.reference.model.blocks.common import Output, Packing, State
from contracts.stacks.reference.model.blocks.mamba2 import Mamba2
from contracts.stacks.reference.model.blocks.moe import MoE


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


class _AttentionByHand(Attention):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        out = super().forward(x_BTD, packing, state)
        return Output(_Backward.apply(out.y_BTD), *out[1:])  # type: ignore[no-untyped-call]  # torch's


@mutant(of="BLK-09a", case="attention", says="with its first axis fastest in memory: gradient")
class ReadsTheUpstreamGradientByItsPointer(Exchanged):
    """The backward kernel gets the pointer of its upstream gradient and no strides."""

    exchange = {"attention": _AttentionByHand}


class _DispatchByHand(MoE):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        return super().forward(_by_pointer(x_BTD), packing, state)


@mutant(of="BLK-09a", case="experts", says="with its first axis fastest in memory: y")
class ReadsTheInputByItsPointer(Exchanged):
    """The dispatch kernel gets the pointer of its input and no strides."""

    exchange = {"moe": _DispatchByHand}


class _TurnsBack(Mamba2):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        flat = x_BTD if x_BTD.is_contiguous() else x_BTD.mT.reshape(x_BTD.shape)
        return super().forward(flat, packing, state)


@mutant(of="BLK-09a", case="mamba2", says="with its first axis fastest in memory: y")
class MakesItContiguousTheWrongWay(Exchanged):
    """Over-correction: what is not contiguous is taken for a transposed tensor, and turned back by a reshape."""

    exchange = {"mamba2": _TurnsBack}

"""Kernels that leak a little, or return too coarse a state."""

from __future__ import annotations

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.stacks.reference.model.blocks.attention import Attention
from contracts.stacks.reference.model.blocks.common import Output, Packing, State
from contracts.stacks.reference.model.blocks.m2rnn import M2RNN
from contracts.stacks.reference.model.blocks.mamba2 import Mamba2
from contracts.stacks.reference.model.blocks.moe import MoE


class _NegativeMask(Attention):
    def probabilities(self, scores_BHTS: Tensor, visible_BTS: Tensor) -> Tensor:
        return (scores_BHTS - 20.0 * ~visible_BTS[:, None]).softmax(dim=-1)


@mutant(of="BLK-01f", case="attention-bfloat16", says="reads a token behind it")
@mutant(of="BLK-01g", case="attention-bfloat16", says="reads a token behind it")
class MasksByALargeNumber(Exchanged):
    """Masked keys lose 20 from their scores, so e^-20 of each remains, below the rounding of every output."""

    exchange = {"attention": _NegativeMask}


class _FusedAlone(Attention):
    def attend(self, q_BTHd: Tensor, k_BSHd: Tensor, v_BSHv: Tensor, visible_BTS: Tensor | None) -> Tensor:
        out_BTHd = super().attend(q_BTHd, k_BSHd, v_BSHv, visible_BTS)
        return out_BTHd + 1e-3 * out_BTHd.roll(-1, 1) if visible_BTS is None else out_BTHd


@mutant(of="BLK-01f", case="attention-whole", says="reads a token behind it")
@mutant(of="BLK-01g", case="attention-whole", says="reads a token behind it")
class ReadsATileTooFar(Exchanged):
    """The fused kernel adds a little of the next token; the written-out form is right."""

    exchange = {"attention": _FusedAlone}


class _OneRowOff(MoE):
    def combine(self, given_SD: Tensor, order_S: Tensor, gates_NK: Tensor, dropped_NK: Tensor) -> Tensor:
        y_ND = super().combine(given_SD, order_S, gates_NK, dropped_NK)
        return torch.cat([y_ND[1:], y_ND[-1:]])


@mutant(of="BLK-01f", case="experts-float32", says="reads a token behind it")
@mutant(of="BLK-01g", case="experts-float32", says="reads a token behind it")
class CombinesOneRowOff(Exchanged):
    """The scatter is off by one row: each token gets the next token's expert output."""

    exchange = {"moe": _OneRowOff}


class _NeverBegins(M2RNN):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        return super().forward(x_BTD, packing._replace(positions_BT=packing.positions_BT + 1), state)


@mutant(of="BLK-01f", case="recurrent-float32", says="reads another document")
@mutant(of="BLK-01g", case="recurrent-float32", says="reads another document")
class RecursThroughTheBatch(Exchanged):
    """Document numbers do not reach the kernel of R, so its state is never reset."""

    exchange = {"recurrent": _NeverBegins}


class _HandsOnHalf(Mamba2):
    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        out = super().forward(x_BTD, packing, state)
        return out._replace(state={**out.state, "ssm": out.state["ssm"].bfloat16().float()})


@mutant(of="BLK-04r", case="mamba2", says="y of the second half differs")
@mutant(of="BLK-04s", case="mamba2", says="y of the second half differs")
class HandsOnABfloat16State(Exchanged):
    """The state between calls is stored in bfloat16, which bfloat16 outputs do not show."""

    exchange = {"mamba2": _HandsOnHalf}

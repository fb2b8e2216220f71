"""Stacks that compute more coarsely than bfloat16, or lose a row. Each exceeds its bound threefold."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.stacks.reference.model.blocks.attention import Attention
from contracts.stacks.reference.model.blocks.common import Packing
from contracts.stacks.reference.model.blocks.m2rnn import M2RNN
from contracts.stacks.reference.model.blocks.mamba2 import Mamba2
from contracts.stacks.reference.model.blocks.mamba3 import Mamba3
from contracts.stacks.reference.model.blocks.mlp import Mlp
from contracts.stacks.reference.model.blocks.moe import Experts

THREEFOLD = "over 3 times the bound"


def _float8(x: Tensor) -> Tensor:
    """Rounded to E5M2 without a scale; the gradient passes unchanged."""
    return x + (x.detach().clamp(-57344, 57344).to(torch.float8_e5m2).to(x.dtype) - x.detach())


class _Float8Cache(Attention):
    def attend(self, q_BTHd: Tensor, k_BSHd: Tensor, v_BSHv: Tensor, visible_BTS: Tensor | None) -> Tensor:
        return super().attend(q_BTHd, _float8(k_BSHd), _float8(v_BSHv), visible_BTS)


@mutant(of="BLK-08c", case="attention", says=THREEFOLD)
@mutant(of="BLK-08g", case="attention", says=THREEFOLD)
class KeepsKeysInFloat8(Exchanged):
    """Keys and values are stored in 8 bits although no recipe asks for it."""

    exchange = {"attention": _Float8Cache}


class _Float8Mlp(Mlp):
    def activate(self, x_BTF: Tensor) -> Tensor:
        return _float8(super().activate(x_BTF))


@mutant(of="BLK-08c", case="mlp", says=THREEFOLD)
@mutant(of="BLK-08g", case="mlp", says=THREEFOLD)
class ActivatesInFloat8(Exchanged):
    """The second matmul of an MLP takes its input in 8 bits."""

    exchange = {"mlp": _Float8Mlp}


class _Float8Experts(Experts):
    def matmul(self, x_SI: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
        return super().matmul(_float8(x_SI), weight_EOI, ends_E)


@mutant(of="BLK-08c", case="experts", says=THREEFOLD)
@mutant(of="BLK-08g", case="experts", says=THREEFOLD)
class MultipliesExpertsInFloat8(Exchanged):
    """The grouped kernel quantizes its rows to 8 bits, whatever the recipe says."""

    exchange = {"experts": _Float8Experts}


class _WholeTiles(Experts):
    def matmul(self, x_SI: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
        out_SO = super().matmul(x_SI, weight_EOI, ends_E)
        last_S = torch.zeros(len(out_SO), dtype=torch.bool, device=out_SO.device)
        last_S[ends_E[ends_E > 0] - 1] = True
        return out_SO.masked_fill(last_S[:, None], 0)


@mutant(of="BLK-08c", case="experts-swiglu", says=THREEFOLD)
@mutant(of="BLK-08g", case="experts-swiglu", says=THREEFOLD)
class LosesTheLastRowOfAnExpert(Exchanged):
    """The partial tile at the end of each expert is not written, so one row of each expert is zero."""

    exchange = {"experts": _WholeTiles}


class _LosesTheEdge(Mamba2):
    def scan(
        self, x_BThp: Tensor, dt_BTh: Tensor, b_BThn: Tensor, c_BThn: Tensor, packing: Packing, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        inside_T = (torch.arange(1, dt_BTh.shape[1] + 1, device=dt_BTh.device) % self.chunk) != 0
        return super().scan(x_BThp * inside_T[:, None, None], dt_BTh, b_BThn, c_BThn, packing, state)


@mutant(of="BLK-08c", case="mamba2", says=THREEFOLD)
@mutant(of="BLK-08g", case="mamba2", says=THREEFOLD)
class LosesTheTokenAtAnEdge(Exchanged):
    """The last token of each chunk adds nothing to the state. The 95th percentile of errors does not show it."""

    exchange = {"mamba2": _LosesTheEdge}


class _Float8Values(Mamba3):
    def scan(self, v_BThp: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        return super().scan(_float8(v_BThp), *rest)


@mutant(of="BLK-08c", case="mamba3", says=THREEFOLD)
@mutant(of="BLK-08g", case="mamba3", says=THREEFOLD)
class ScansFloat8Values(Exchanged):
    """The scan gets its values in 8 bits."""

    exchange = {"mamba3": _Float8Values}


class _CoarseTanh(M2RNN):
    def step(self, h_Bhnp: Tensor, k_Bhn: Tensor, v_Bhp: Tensor, f_Bh11: Tensor) -> Tensor:
        given_Bhnp = h_Bhnp @ self.W + k_Bhn[..., :, None] * v_Bhp[..., None, :]
        return f_Bh11 * h_Bhnp + (1 - f_Bh11) * given_Bhnp.clamp(-1, 1)


@mutant(of="BLK-08c", case="recurrent", says=THREEFOLD)
@mutant(of="BLK-08g", case="recurrent", says=THREEFOLD)
class BendsTanhToALine(Exchanged):
    """The kernel approximates tanh by a line clamped to -1 and 1."""

    exchange = {"recurrent": _CoarseTanh}

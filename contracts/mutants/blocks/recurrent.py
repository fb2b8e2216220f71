"""R with one bug in its recurrence, its causality, its state or its precision.

B sequences · T tokens · h heads · p head_dim · n state
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants._support import written_out
from contracts.mutants._support.mamba_parts import GRADIENT, Y, become, shifted, unpacked
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.spec.blocks import BlockCall, BlockRun
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.model.blocks.common import Packing, RMSNorm, local, packing
from contracts.stacks.reference.model.blocks.m2rnn import M2RNN
from contracts.stacks.reference.model.blocks.mamba2 import GatedNorm, wide


class _Complement(M2RNN):
    def forget(self, f_BTh: Tensor) -> Tensor:
        return 1 - super().forget(f_BTh)


@mutant(of="BLK-05a", case="plain", says=Y)
class KeepsWhatItShouldForget(Exchanged):
    """f and 1 - f are swapped."""

    exchange = {"recurrent": _Complement}


@mutant(of="BLK-05e", case="keeps-everything", says="it should be frozen")
class FreezesAtTheOtherEnd(Exchanged):
    """f and 1 - f are swapped, at the limit f = 1."""

    exchange = {"recurrent": _Complement}


class _Unbiased(M2RNN):
    def forget(self, f_BTh: Tensor) -> Tensor:
        return torch.exp(-torch.exp(self.A_log) * F.softplus(wide(f_BTh))) + 0 * self.dt_bias


@mutant(of="BLK-05a", case="plain", says=Y)
class ForgetsWithoutBias(Exchanged):
    """The forget gate lacks dt_bias."""

    exchange = {"recurrent": _Unbiased}


class _Sigmoid(M2RNN):
    def forget(self, f_BTh: Tensor) -> Tensor:
        return torch.sigmoid(wide(f_BTh) + self.dt_bias) + 0 * self.A_log


@mutant(of="BLK-05a", case="one-token", says=Y)
class ForgetsByASigmoid(Exchanged):
    """The forget gate is an LSTM's sigmoid."""

    exchange = {"recurrent": _Sigmoid}


class _Clamped(M2RNN):
    def forget(self, f_BTh: Tensor) -> Tensor:
        return super().forget(f_BTh).clamp(min=1e-3)


@mutant(of="BLK-05e", case="keeps-nothing", says="each token should see itself alone")
class AlwaysKeepsALittle(Exchanged):
    """The forget gate is clamped to at least 0.001."""

    exchange = {"recurrent": _Clamped}


class _Stepped(M2RNN):
    """R with another candidate state: `proposed` computes it from h and k vᵀ of one token."""

    def step(self, h_Bhnp: Tensor, k_Bhn: Tensor, v_Bhp: Tensor, f_Bh11: Tensor) -> Tensor:
        return f_Bh11 * h_Bhnp + (1 - f_Bh11) * self.proposed(h_Bhnp, k_Bhn[..., :, None] * v_Bhp[..., None, :])

    def proposed(self, h_Bhnp: Tensor, kv_Bhnp: Tensor) -> Tensor:
        return torch.tanh(h_Bhnp @ self.W + kv_Bhnp)


class _Transposed(_Stepped):
    def proposed(self, h_Bhnp: Tensor, kv_Bhnp: Tensor) -> Tensor:
        return torch.tanh(h_Bhnp @ self.W.mT + kv_Bhnp)


@mutant(of="BLK-05a", case="plain", says=Y)
class TransposesW(Exchanged):
    """W is applied transposed, h Wᵀ, as nn.Linear applies its weight."""

    exchange = {"recurrent": _Transposed}


class _Linear(_Stepped):
    def proposed(self, h_Bhnp: Tensor, kv_Bhnp: Tensor) -> Tensor:
        return h_Bhnp @ self.W + kv_Bhnp


@mutant(of="BLK-05d", case="large-inputs", says="larger than 1.000")
class LeavesOutTanh(Exchanged):
    """tanh is missing, so the state grows."""

    exchange = {"recurrent": _Linear}


class _HalfLinear(_Stepped):
    def proposed(self, h_Bhnp: Tensor, kv_Bhnp: Tensor) -> Tensor:
        return torch.tanh(h_Bhnp @ self.W) + kv_Bhnp


@mutant(of="BLK-05a", case="packed-with-state", says=Y)
class AddsTheInputBehindTanh(Exchanged):
    """k vᵀ is added after tanh instead of inside it."""

    exchange = {"recurrent": _HalfLinear}


class _Even(_Stepped):
    def proposed(self, h_Bhnp: Tensor, kv_Bhnp: Tensor) -> Tensor:
        return torch.sigmoid(h_Bhnp @ self.W + kv_Bhnp)


@mutant(of="BLK-05f", case="packed", says="y with -k differs")
class ProposesByASigmoid(Exchanged):
    """sigmoid in place of tanh: bounded too, but not odd."""

    exchange = {"recurrent": _Even}


class _OuterTransposed(_Stepped):
    def step(self, h_Bhnp: Tensor, k_Bhn: Tensor, v_Bhp: Tensor, f_Bh11: Tensor) -> Tensor:
        outer_Bhpn = v_Bhp[..., :, None] * k_Bhn[..., None, :]
        return f_Bh11 * h_Bhnp + (1 - f_Bh11) * self.proposed(h_Bhnp, outer_Bhpn.reshape(h_Bhnp.shape))


@mutant(of="BLK-05a", case="plain", says=Y)
class WritesTheOuterProductTransposed(Exchanged):
    """The outer product is v kᵀ, read with the strides of k vᵀ."""

    exchange = {"recurrent": _OuterTransposed}


class _Accumulates(_Stepped):
    def step(self, h_Bhnp: Tensor, k_Bhn: Tensor, v_Bhp: Tensor, f_Bh11: Tensor) -> Tensor:
        return f_Bh11 * h_Bhnp + self.proposed(h_Bhnp, k_Bhn[..., :, None] * v_Bhp[..., None, :])


@mutant(of="BLK-05d", case="large-inputs", says="larger than 1.000")
@mutant(of="BLK-05a", case="plain", says=Y)
class AddsTheProposalWhole(Exchanged):
    """The candidate is not multiplied by 1 - f, so the update is no convex mean."""

    exchange = {"recurrent": _Accumulates}


class _Truncates(M2RNN):
    def step(self, h_Bhnp: Tensor, k_Bhn: Tensor, v_Bhp: Tensor, f_Bh11: Tensor) -> Tensor:
        proposed_Bhnp = torch.tanh(h_Bhnp.detach() @ self.W + k_Bhn[..., :, None] * v_Bhp[..., None, :])
        return f_Bh11 * h_Bhnp + (1 - f_Bh11) * proposed_Bhnp


@mutant(of="BLK-05a", case="plain", says=GRADIENT)
class CutsTheGradientThroughTanh(Exchanged):
    """The gradient through W is cut after one token. Every output is right."""

    exchange = {"recurrent": _Truncates}


class _ReadsTheStateBefore(M2RNN):
    def read(self, q_BThn: Tensor, h_BThnp: Tensor) -> Tensor:
        return super().read(q_BThn, torch.cat([torch.zeros_like(h_BThnp[:, :1]), h_BThnp[:, :-1]], dim=1))


@mutant(of="BLK-05a", case="plain", says=Y)
class ReadsTheStateBeforeTheToken(Exchanged):
    """y_t reads h_{t-1} instead of h_t."""

    exchange = {"recurrent": _ReadsTheStateBefore}


class _LeavesOutD(M2RNN):
    def forward(self, x_BTD: Tensor, packing: Packing, state: Any) -> Any:
        passed = self.D.data
        self.D.data = torch.zeros_like(passed)
        try:
            return super().forward(x_BTD, packing, state)
        finally:
            self.D.data = passed


@mutant(of="BLK-05a", case="plain", says=Y)
class AddsNoValuePastTheState(Exchanged):
    """D v is not added."""

    exchange = {"recurrent": _LeavesOutD}


class _Whole(GatedNorm):
    def normed(self, y_BTI: Tensor) -> Tensor:
        return RMSNorm.forward(self, y_BTI)


class _NormsTheWhole(M2RNN):
    def __init__(self, recipe: Recipe, parts: Any) -> None:
        super().__init__(recipe, parts)
        become(self, GatedNorm, _Whole)


@mutant(of="BLK-05a", case="three-groups-of-two", says=Y)
class NormsAllHeadsOfRTogether(Exchanged):
    """One norm covers the whole inner width instead of each group."""

    exchange = {"recurrent": _NormsTheWhole}


class _FixedEpsilon(M2RNN):
    def __init__(self, recipe: Recipe, parts: Any) -> None:
        super().__init__(recipe, parts)
        self.out_norm.eps = 1e-6


@mutant(of="BLK-05a", case="a-large-epsilon", says=Y, bugs=("MXP-08",))
class NormsRByItsOwnEpsilon(Exchanged):
    """The gated norm uses a default eps of 1e-6 instead of the recipe's."""

    exchange = {"recurrent": _FixedEpsilon}


@mutant(of="BLK-05i", case="packed-with-state", says="y in author_dp differs")
class BuildsAnotherRInAuthorMode(Exchanged):
    """author_dp mode builds an old copy of the block, which a later fix did not reach."""

    def run_block(self, call: BlockCall) -> BlockRun:
        if call.mode == "author_dp":
            return _OldR().run_block(replace(call, mode="nemo_native"))
        return super().run_block(call)


class _OldR(Exchanged):
    exchange = {"recurrent": _Transposed}


# causality and documents


class _ReadsAhead(M2RNN):
    def read(self, q_BThn: Tensor, h_BThnp: Tensor) -> Tensor:
        return super().read(q_BThn, torch.cat([h_BThnp[:, 1:], h_BThnp[:, -1:]], dim=1))


@mutant(of="BLK-01d", case="plain", says="tokens from 21 on in row 0 change the output at token 20 of row 0")
class ReadsTheStateOfTheNextToken(Exchanged):
    """Each token reads the state of the next token."""

    exchange = {"recurrent": _ReadsAhead}


class _RecursUnpacked(M2RNN):
    def recur(self, k: Tensor, v: Tensor, f: Tensor, packing: Packing, state: Tensor | None) -> Tensor:
        whole = unpacked(packing)
        return super().recur(k, v, f, _positions(whole.documents_BT), state)


def _positions(documents_BT: Tensor) -> Packing:
    return packing(documents_BT, documents_BT)


@mutant(of="BLK-02d", case="packed", says="document 0 changes the output at token 3 of another one")
class RecursThroughDocuments(Exchanged):
    """The recurrence ignores documents."""

    exchange = {"recurrent": _RecursUnpacked}


class _ResetsLate(M2RNN):
    def recur(self, k: Tensor, v: Tensor, f: Tensor, packing: Packing, state: Tensor | None) -> Tensor:
        return super().recur(k, v, f, _positions(shifted(packing, 1).documents_BT), state)


@mutant(of="BLK-02d", case="packed", says="document 0 changes the output at token 3 of another one")
class ResetsBehindTheFirstToken(Exchanged):
    """The state is reset one token late: a document's first token continues the previous document's state."""

    exchange = {"recurrent": _ResetsLate}


class _ResetsEarly(M2RNN):
    def recur(self, k: Tensor, v: Tensor, f: Tensor, packing: Packing, state: Tensor | None) -> Tensor:
        return super().recur(k, v, f, _positions(shifted(packing, -1).documents_BT), state)


@mutant(of="BLK-05c", case="packed", says="y of document 0 of row 0 differs")
class ResetsBeforeTheLastToken(Exchanged):
    """The state is reset one token early: a document's last token has lost it."""

    exchange = {"recurrent": _ResetsEarly}


# state and precision


class _IgnoresItsState(M2RNN):
    def recur(self, k: Tensor, v: Tensor, f: Tensor, packing: Packing, state: Tensor | None) -> Tensor:
        return super().recur(k, v, f, packing, None)


@mutant(of="BLK-05b", case="in-the-middle", says="y in two halves, cut at 20, differs")
class BeginsEveryRecurrenceEmpty(Exchanged):
    """The recurrence ignores its initial state."""

    exchange = {"recurrent": _IgnoresItsState}


class _DetachesItsState(M2RNN):
    def recur(self, k: Tensor, v: Tensor, f: Tensor, packing: Packing, state: Tensor | None) -> Tensor:
        return super().recur(k, v, f, packing, None if state is None else state.detach())


@mutant(of="BLK-05a", case="packed-with-state", says="the gradient of lacks state.h", bugs=("SSM-18",))
class GivesTheStateOfRNoGradient(Exchanged):
    """The initial state gets no gradient."""

    exchange = {"recurrent": _DetachesItsState}


class _InBfloat16(M2RNN):
    def step(self, h_Bhnp: Tensor, k_Bhn: Tensor, v_Bhp: Tensor, f_Bh11: Tensor) -> Tensor:
        return super().step(h_Bhnp.to(torch.bfloat16).to(h_Bhnp.dtype), k_Bhn, v_Bhp, f_Bh11)


@mutant(of="BLK-05g", case="fifty-tokens", says="the state after 50 empty tokens differs")
@mutant(of="BLK-05a", case="float32", says=Y)
class RecursInBfloat16(Exchanged):
    """The state is rounded to bfloat16 between tokens."""

    exchange = {"recurrent": _InBfloat16}


class _LeavesBfloat16(M2RNN):
    def forward(self, x_BTD: Tensor, packing: Packing, state: Any) -> Any:
        found = super().forward(x_BTD, packing, state)
        return found._replace(state={"h": found.state["h"].to(x_BTD.dtype)})


@mutant(of="BLK-05g", case="fifty-tokens", says="the state is bfloat16 under bfloat16 activations, expected float32")
class LeavesTheStateOfRInBfloat16(Exchanged):
    """The returned state has the dtype of the activations."""

    exchange = {"recurrent": _LeavesBfloat16}


class _GatesInBfloat16(M2RNN):
    def forget(self, f_BTh: Tensor) -> Tensor:
        step_BTh = F.softplus(f_BTh + self.dt_bias.to(f_BTh.dtype))
        return wide(torch.exp(-torch.exp(self.A_log) * wide(step_BTh)))


@mutant(of="BLK-05g", case="fifty-tokens", says="the state after 50 empty tokens differs")
class ForgetsInBfloat16(Exchanged):
    """The forget gate's bias and softplus are computed in the dtype of the projection."""

    exchange = {"recurrent": _GatesInBfloat16}


class _HoldsBfloat16(M2RNN):
    def __init__(self, recipe: Recipe, parts: Any) -> None:
        super().__init__(recipe, parts)
        if recipe.dtype == "bf16":
            self.A_log = nn.Parameter(self.A_log.to(torch.bfloat16))


@mutant(of="BLK-05h", case="bf16-three-groups", says="A_log is held in bfloat16 under bf16, expected float32")
class HoldsTheDecayOfRInBfloat16(Exchanged):
    """A_log of R is held in bfloat16, because the list of float32 parameters covers M only."""

    exchange = {"recurrent": _HoldsBfloat16}


class _SharesW(M2RNN):
    def __init__(self, recipe: Recipe, parts: Any) -> None:
        super().__init__(recipe, parts)
        self.W = nn.Parameter(torch.eye(recipe.mamba.head_dim))


@mutant(of="BLK-05h", case="float32", says="mixer.W is (8, 8), expected (4, 8, 8)")
class SharesWAmongHeads(Exchanged):
    """All heads share one W."""

    exchange = {"recurrent": _SharesW}


class _OverflowingForgetting(M2RNN):
    def forget(self, f_BTh: Tensor) -> Tensor:
        step_BTh = written_out.softplus(wide(f_BTh) + local(self.dt_bias))
        return torch.exp(-torch.exp(local(self.A_log)) * step_BTh)


@mutant(of="BLK-05a", case="saturated", says="the gradient of")
class WritesSoftplusOutInR(Exchanged):
    """The forget gate computes log(1 + exp(x)): exp(-inf) is the 0 that it should be, and its gradient is NaN."""

    exchange = {"recurrent": _OverflowingForgetting}

"""R wrong in one place around its recurrence: what a token sees of others, what is carried, what is rounded.

B sequences · T tokens · h heads · p head_dim · n state
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants.numeric._exchanged import Exchanged
from contracts.mutants.numeric._mamba import Y, shifted, unpacked
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.model.blocks.common import Packing, packing
from contracts.stacks.reference.model.blocks.m2rnn import M2RNN
from contracts.stacks.reference.model.blocks.mamba2 import wide

# what a token sees


class _ReadsAhead(M2RNN):
    def read(self, q_BThn: Tensor, h_BThnp: Tensor) -> Tensor:
        return super().read(q_BThn, torch.cat([h_BThnp[:, 1:], h_BThnp[:, -1:]], dim=1))


@mutant(of="BLK-01d", case="plain", says="tokens from 21 on in row 0 change the output at token 20 of row 0")
class ReadsTheStateOfTheNextToken(Exchanged):
    """The states are stored behind their token and read one on."""

    exchange = {"recurrent": _ReadsAhead}


class _RecursUnpacked(M2RNN):
    def recur(self, k: Tensor, v: Tensor, f: Tensor, packing: Packing, state: Tensor | None) -> Tensor:
        whole = unpacked(packing)
        return super().recur(k, v, f, _positions(whole.documents_BT), state)


def _positions(documents_BT: Tensor) -> Packing:
    return packing(documents_BT, documents_BT)


@mutant(of="BLK-02d", case="packed", says="document 0 changes the output at token 3 of another one")
class RecursThroughDocuments(Exchanged):
    """The recurrence is not told of documents."""

    exchange = {"recurrent": _RecursUnpacked}


class _ResetsLate(M2RNN):
    def recur(self, k: Tensor, v: Tensor, f: Tensor, packing: Packing, state: Tensor | None) -> Tensor:
        return super().recur(k, v, f, _positions(shifted(packing, 1).documents_BT), state)


@mutant(of="BLK-02d", case="packed", says="document 0 changes the output at token 3 of another one")
class ResetsBehindTheFirstToken(Exchanged):
    """The first token of a document continues the state of the one before."""

    exchange = {"recurrent": _ResetsLate}


class _ResetsEarly(M2RNN):
    def recur(self, k: Tensor, v: Tensor, f: Tensor, packing: Packing, state: Tensor | None) -> Tensor:
        return super().recur(k, v, f, _positions(shifted(packing, -1).documents_BT), state)


@mutant(of="BLK-05c", case="packed", says="y of document 0 of row 0 differs")
class ResetsBeforeTheLastToken(Exchanged):
    """Over-correction: the last token of a document has lost the document."""

    exchange = {"recurrent": _ResetsEarly}


# what it carries, and what is rounded


class _IgnoresItsState(M2RNN):
    def recur(self, k: Tensor, v: Tensor, f: Tensor, packing: Packing, state: Tensor | None) -> Tensor:
        return super().recur(k, v, f, packing, None)


@mutant(of="BLK-05b", case="in-the-middle", says="y in two halves, cut at 20, differs")
class BeginsEveryRecurrenceEmpty(Exchanged):
    """The initial state is accepted and not used."""

    exchange = {"recurrent": _IgnoresItsState}


class _DetachesItsState(M2RNN):
    def recur(self, k: Tensor, v: Tensor, f: Tensor, packing: Packing, state: Tensor | None) -> Tensor:
        return super().recur(k, v, f, packing, None if state is None else state.detach())


@mutant(of="BLK-05a", case="packed-with-state", says="the gradient of lacks state.h", bugs=("SSM-18",))
class GivesTheStateOfRNoGradient(Exchanged):
    """The initial state is a constant to the backward pass."""

    exchange = {"recurrent": _DetachesItsState}


class _InBfloat16(M2RNN):
    def step(self, h_Bhnp: Tensor, k_Bhn: Tensor, v_Bhp: Tensor, f_Bh11: Tensor) -> Tensor:
        return super().step(h_Bhnp.to(torch.bfloat16).to(h_Bhnp.dtype), k_Bhn, v_Bhp, f_Bh11)


@mutant(of="BLK-05g", case="fifty-tokens", says="the state after 50 empty tokens differs")
@mutant(of="BLK-05a", case="float32", says=Y)
class RecursInBfloat16(Exchanged):
    """The state is stored in bfloat16 between two tokens."""

    exchange = {"recurrent": _InBfloat16}


class _LeavesBfloat16(M2RNN):
    def forward(self, x_BTD: Tensor, packing: Packing, state: Any) -> Any:
        found = super().forward(x_BTD, packing, state)
        return found._replace(state={"h": found.state["h"].to(x_BTD.dtype)})


@mutant(of="BLK-05g", case="fifty-tokens", says="the state is bfloat16 under bfloat16 activations, expected float32")
class LeavesTheStateOfRInBfloat16(Exchanged):
    """The state that is left has the dtype of the activations."""

    exchange = {"recurrent": _LeavesBfloat16}


class _GatesInBfloat16(M2RNN):
    def forget(self, f_BTh: Tensor) -> Tensor:
        step_BTh = F.softplus(f_BTh + self.dt_bias.to(f_BTh.dtype))
        return wide(torch.exp(-torch.exp(self.A_log) * wide(step_BTh)))


@mutant(of="BLK-05g", case="fifty-tokens", says="the state after 50 empty tokens differs")
class ForgetsInBfloat16(Exchanged):
    """The gate's input and its softplus have the dtype of the projection."""

    exchange = {"recurrent": _GatesInBfloat16}


class _HoldsBfloat16(M2RNN):
    def __init__(self, recipe: Recipe, parts: Any) -> None:
        super().__init__(recipe, parts)
        if recipe.dtype == "bf16":
            self.A_log = nn.Parameter(self.A_log.to(torch.bfloat16))


@mutant(of="BLK-05h", case="bf16-three-groups", says="A_log is held in bfloat16 under bf16, expected float32")
class HoldsTheDecayOfRInBfloat16(Exchanged):
    """The list of float32 parameters is kept for M alone."""

    exchange = {"recurrent": _HoldsBfloat16}


class _SharesW(M2RNN):
    def __init__(self, recipe: Recipe, parts: Any) -> None:
        super().__init__(recipe, parts)
        self.W = nn.Parameter(torch.eye(recipe.mamba.head_dim))


@mutant(of="BLK-05h", case="float32", says="mixer.W is (8, 8), expected (4, 8, 8)")
class SharesWAmongHeads(Exchanged):
    """One W for all heads."""

    exchange = {"recurrent": _SharesW}

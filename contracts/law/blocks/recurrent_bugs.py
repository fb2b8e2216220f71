"""R with one bug in its recurrence, its causality, its state or its precision.

B sequences · T tokens · h heads · p head_dim · n state
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.law._bugs import written_out
from contracts.law._bugs.mamba_parts import become, shifted, unpacked
from contracts.law._bugs.numeric import (
    M2RNN,
    GatedNorm,
    Packing,
    Reference,
    RMSNorm,
    broken,
    derived,
    local,
    packing,
    wide,
)


@broken(M2RNN, "forget", "BLK-05a[plain]: y differs: ", "BLK-05e[keeps-everything]: it should be frozen")
def keeps_what_it_should_forget(forget, self, f_BTh):
    """f and 1 - f are swapped."""
    return 1 - forget(self, f_BTh)


@broken(M2RNN, "forget", "BLK-05a[plain]: y differs: ")
def forgets_without_bias(forget, self, f_BTh):
    """The forget gate lacks dt_bias."""
    return torch.exp(-torch.exp(self.A_log) * F.softplus(wide(f_BTh))) + 0 * self.dt_bias


@broken(M2RNN, "forget", "BLK-05a[one-token]: y differs: ")
def forgets_by_a_sigmoid(forget, self, f_BTh):
    """The forget gate is an LSTM's sigmoid."""
    return torch.sigmoid(wide(f_BTh) + self.dt_bias) + 0 * self.A_log


@broken(M2RNN, "forget", "BLK-05e[keeps-nothing]: each token should see only itself")
def always_keeps_a_little(forget, self, f_BTh):
    """The forget gate is clamped to at least 0.001."""
    return forget(self, f_BTh).clamp(min=1e-3)


class _Stepped(M2RNN):
    """R with another candidate state: `proposed` computes it from h and k vᵀ of one token."""

    def step(self, h_Bhnp: Tensor, k_Bhn: Tensor, v_Bhp: Tensor, f_Bh11: Tensor) -> Tensor:
        return f_Bh11 * h_Bhnp + (1 - f_Bh11) * self.proposed(h_Bhnp, k_Bhn[..., :, None] * v_Bhp[..., None, :])

    def proposed(self, h_Bhnp: Tensor, kv_Bhnp: Tensor) -> Tensor:
        return torch.tanh(h_Bhnp @ self.W + kv_Bhnp)


class _Transposed(_Stepped):
    def proposed(self, h_Bhnp: Tensor, kv_Bhnp: Tensor) -> Tensor:
        return torch.tanh(h_Bhnp @ self.W.mT + kv_Bhnp)


@derived("BLK-05a[plain]: y differs: ")
class TransposesW(_Transposed):
    """W is applied transposed, h Wᵀ, as nn.Linear applies its weight."""


@broken(_Stepped, "proposed", "BLK-05d[large-inputs]: larger than 1.000")
def leaves_out_tanh(proposed, self, h_Bhnp, kv_Bhnp):
    """tanh is missing, so the state grows."""
    return h_Bhnp @ self.W + kv_Bhnp


@broken(_Stepped, "proposed", "BLK-05a[packed-with-state]: y differs: ")
def adds_the_input_behind_tanh(proposed, self, h_Bhnp, kv_Bhnp):
    """k vᵀ is added after tanh instead of inside it."""
    return torch.tanh(h_Bhnp @ self.W) + kv_Bhnp


@broken(_Stepped, "proposed", "BLK-05f[packed]: y with -k differs")
def proposes_by_a_sigmoid(proposed, self, h_Bhnp, kv_Bhnp):
    """sigmoid in place of tanh: bounded too, but not odd."""
    return torch.sigmoid(h_Bhnp @ self.W + kv_Bhnp)


@broken(_Stepped, "step", "BLK-05a[plain]: y differs: ")
def writes_the_outer_product_transposed(step, self, h_Bhnp, k_Bhn, v_Bhp, f_Bh11):
    """The outer product is v kᵀ, read with the strides of k vᵀ."""
    outer_Bhpn = v_Bhp[..., :, None] * k_Bhn[..., None, :]
    return f_Bh11 * h_Bhnp + (1 - f_Bh11) * self.proposed(h_Bhnp, outer_Bhpn.reshape(h_Bhnp.shape))


@broken(_Stepped, "step", "BLK-05a[plain]: y differs: ", "BLK-05d[large-inputs]: larger than 1.000")
def adds_the_proposal_whole(step, self, h_Bhnp, k_Bhn, v_Bhp, f_Bh11):
    """The candidate is not multiplied by 1 - f, so the update is no convex mean."""
    return f_Bh11 * h_Bhnp + self.proposed(h_Bhnp, k_Bhn[..., :, None] * v_Bhp[..., None, :])


@broken(M2RNN, "step", "BLK-05a[plain]: the gradient of ")
def cuts_the_gradient_through_tanh(step, self, h_Bhnp, k_Bhn, v_Bhp, f_Bh11):
    """The gradient through W is cut after one token. Every output is right."""
    proposed_Bhnp = torch.tanh(h_Bhnp.detach() @ self.W + k_Bhn[..., :, None] * v_Bhp[..., None, :])
    return f_Bh11 * h_Bhnp + (1 - f_Bh11) * proposed_Bhnp


@broken(M2RNN, "read", "BLK-05a[plain]: y differs: ")
def reads_the_state_before_the_token(read, self, q_BThn, h_BThnp):
    """y_t reads h_{t-1} instead of h_t."""
    return read(self, q_BThn, torch.cat([torch.zeros_like(h_BThnp[:, :1]), h_BThnp[:, :-1]], dim=1))


@broken(M2RNN, "forward", "BLK-05a[plain]: y differs: ")
def adds_no_value_past_the_state(forward, self, x_BTD, packing, state):
    """D v is not added."""
    passed = self.D.data
    self.D.data = torch.zeros_like(passed)
    try:
        return forward(self, x_BTD, packing, state)
    finally:
        self.D.data = passed


class _Whole(GatedNorm):
    def normed(self, y_BTI: Tensor) -> Tensor:
        return RMSNorm.forward(self, y_BTI)


@broken(M2RNN, "__init__", "BLK-05a[three-groups-of-two]: y differs: ")
def norms_all_heads_of_r_together(init, self, recipe, parts):
    """One norm covers the whole inner width instead of each group."""
    init(self, recipe, parts)
    become(self, GatedNorm, _Whole)


@broken(M2RNN, "__init__", "BLK-05a[a-large-epsilon]: y differs: ", bugs=("MXP-08",))
def norms_r_by_its_own_epsilon(init, self, recipe, parts):
    """The gated norm uses a default eps of 1e-6 instead of the recipe's."""
    init(self, recipe, parts)
    self.out_norm.eps = 1e-6


@broken(Reference, "run_block", "BLK-05i[packed-with-state]: y in author_dp differs")
def builds_another_r_in_author_mode(run_block, self, call):
    """author_dp mode builds an old copy of the block, which a later fix did not reach."""
    if call.mode == "author_dp":
        return TransposesW().run_block(replace(call, mode="nemo_native"))
    return run_block(self, call)


# causality and documents
@broken(M2RNN, "read", "BLK-01d[plain]: tokens from 21 on in row 0 change the output at token 20 of row 0")
def reads_the_state_of_the_next_token(read, self, q_BThn, h_BThnp):
    """Each token reads the state of the next token."""
    return read(self, q_BThn, torch.cat([h_BThnp[:, 1:], h_BThnp[:, -1:]], dim=1))


def _positions(documents_BT: Tensor) -> Packing:
    return packing(documents_BT, documents_BT)


@broken(M2RNN, "recur", "BLK-02d[packed]: document 0 changes the output at token 3 of another one")
def recurs_through_documents(recur, self, k, v, f, packing, state):
    """The recurrence ignores documents."""
    whole = unpacked(packing)
    return recur(self, k, v, f, _positions(whole.documents_BT), state)


@broken(M2RNN, "recur", "BLK-02d[packed]: document 0 changes the output at token 3 of another one")
def resets_behind_the_first_token(recur, self, k, v, f, packing, state):
    """The state is reset one token late: a document's first token continues the previous document's state."""
    return recur(self, k, v, f, _positions(shifted(packing, 1).documents_BT), state)


@broken(M2RNN, "recur", "BLK-05c[packed]: y of document 0 of row 0 differs")
def resets_before_the_last_token(recur, self, k, v, f, packing, state):
    """The state is reset one token early: a document's last token has lost it."""
    return recur(self, k, v, f, _positions(shifted(packing, -1).documents_BT), state)


# state and precision
@broken(M2RNN, "recur", "BLK-05b[in-the-middle]: y in two halves, cut at 20, differs")
def begins_every_recurrence_empty(recur, self, k, v, f, packing, state):
    """The recurrence ignores its initial state."""
    return recur(self, k, v, f, packing, None)


@broken(M2RNN, "recur", "BLK-05a[packed-with-state]: the gradient of lacks state.h", bugs=("SSM-18",))
def gives_the_state_of_r_no_gradient(recur, self, k, v, f, packing, state):
    """The initial state gets no gradient."""
    return recur(self, k, v, f, packing, None if state is None else state.detach())


@broken(
    M2RNN, "step", "BLK-05a[float32]: y differs: ", "BLK-05g[fifty-tokens]: the state after 50 empty tokens differs"
)
def recurs_in_bfloat16(step, self, h_Bhnp, k_Bhn, v_Bhp, f_Bh11):
    """The state is rounded to bfloat16 between tokens."""
    return step(self, h_Bhnp.to(torch.bfloat16).to(h_Bhnp.dtype), k_Bhn, v_Bhp, f_Bh11)


@broken(M2RNN, "forward", "BLK-05g[fifty-tokens]: the state is bfloat16 under bfloat16 activations, expected float32")
def leaves_the_state_of_r_in_bfloat16(forward, self, x_BTD, packing, state):
    """The returned state has the dtype of the activations."""
    found = forward(self, x_BTD, packing, state)
    return found._replace(state={"h": found.state["h"].to(x_BTD.dtype)})


@broken(M2RNN, "forget", "BLK-05g[fifty-tokens]: the state after 50 empty tokens differs")
def forgets_in_bfloat16(forget, self, f_BTh):
    """The forget gate's bias and softplus are computed in the dtype of the projection."""
    step_BTh = F.softplus(f_BTh + self.dt_bias.to(f_BTh.dtype))
    return wide(torch.exp(-torch.exp(self.A_log) * wide(step_BTh)))


@broken(M2RNN, "__init__", "BLK-05h[bf16-three-groups]: A_log is held in bfloat16 under bf16, expected float32")
def holds_the_decay_of_r_in_bfloat16(init, self, recipe, parts):
    """A_log of R is held in bfloat16, because the list of float32 parameters covers M only."""
    init(self, recipe, parts)
    if recipe.dtype == "bf16":
        self.A_log = nn.Parameter(self.A_log.to(torch.bfloat16))


@broken(M2RNN, "__init__", "BLK-05h[float32]: mixer.W is (8, 8), expected (4, 8, 8)")
def shares_w_among_heads(init, self, recipe, parts):
    """All heads share one W."""
    init(self, recipe, parts)
    self.W = nn.Parameter(torch.eye(recipe.mamba.head_dim))


@broken(M2RNN, "forget", "BLK-05a[saturated]: the gradient of")
def writes_softplus_out_in_r(forget, self, f_BTh):
    """The forget gate computes log(1 + exp(x)): exp(-inf) is the 0 that it should be, and its gradient is NaN."""
    step_BTh = written_out.softplus(wide(f_BTh) + local(self.dt_bias))
    return torch.exp(-torch.exp(local(self.A_log)) * step_BTh)

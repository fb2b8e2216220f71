"""Stacks that compute more coarsely than bfloat16, or lose a row. Each exceeds its bound threefold."""

import torch

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.model.blocks import M2RNN, Attention, Experts, Mamba2, Mamba3, Mlp


def _float8(x):
    """Rounded to E5M2 without a scale; the gradient passes unchanged."""
    return x + (x.detach().clamp(-57344, 57344).to(torch.float8_e5m2).to(x.dtype) - x.detach())


@broken(Attention, "attend", "BLK-08g[attention]: over 3 times the bound", "BLK-08c[attention]: over 3 times the bound")
def keeps_keys_in_float8(attend, self, q_BTHd, k_BSHd, v_BSHv, visible_BTS):
    """Keys and values are stored in 8 bits although no recipe asks for it."""
    return attend(self, q_BTHd, _float8(k_BSHd), _float8(v_BSHv), visible_BTS)


@broken(Mlp, "activate", "BLK-08g[mlp]: over 3 times the bound", "BLK-08c[mlp]: over 3 times the bound")
def activates_in_float8(activate, self, x_BTF):
    """The second matmul of an MLP takes its input in 8 bits."""
    return _float8(activate(self, x_BTF))


@broken(Experts, "matmul", "BLK-08g[experts]: over 3 times the bound", "BLK-08c[experts]: over 3 times the bound")
def multiplies_experts_in_float8(matmul, self, x_SI, weight_EOI, ends_E):
    """The grouped kernel quantizes its rows to 8 bits, whatever the recipe says."""
    return matmul(self, _float8(x_SI), weight_EOI, ends_E)


@broken(
    Experts,
    "matmul",
    "BLK-08g[experts-swiglu]: over 3 times the bound",
    "BLK-08c[experts-swiglu]: over 3 times the bound",
)
def loses_the_last_row_of_an_expert(matmul, self, x_SI, weight_EOI, ends_E):
    """The partial tile at the end of each expert is not written, so one row of each expert is zero."""
    out_SO = matmul(self, x_SI, weight_EOI, ends_E)
    last_S = torch.zeros(len(out_SO), dtype=torch.bool, device=out_SO.device)
    last_S[ends_E[ends_E > 0] - 1] = True
    return out_SO.masked_fill(last_S[:, None], 0)


@broken(Mamba2, "scan", "BLK-08g[mamba2]: over 3 times the bound", "BLK-08c[mamba2]: over 3 times the bound")
def loses_the_token_at_an_edge(scan, self, x_BThp, dt_BTh, b_BThn, c_BThn, packing, state):
    """The last token of each chunk adds nothing to the state. The 95th percentile of errors does not show it."""
    inside_T = (torch.arange(1, dt_BTh.shape[1] + 1, device=dt_BTh.device) % self.chunk) != 0
    return scan(self, x_BThp * inside_T[:, None, None], dt_BTh, b_BThn, c_BThn, packing, state)


@broken(Mamba3, "scan", "BLK-08g[mamba3]: over 3 times the bound", "BLK-08c[mamba3]: over 3 times the bound")
def scans_float8_values(scan, self, v_BThp, *rest):
    """The scan gets its values in 8 bits."""
    return scan(self, _float8(v_BThp), *rest)


@broken(M2RNN, "step", "BLK-08g[recurrent]: over 3 times the bound", "BLK-08c[recurrent]: over 3 times the bound")
def bends_tanh_to_a_line(step, self, h_Bhnp, k_Bhn, v_Bhp, f_Bh11):
    """The kernel approximates tanh by a line clamped to -1 and 1."""
    given_Bhnp = h_Bhnp @ self.W + k_Bhn[..., :, None] * v_Bhp[..., None, :]
    return f_Bh11 * h_Bhnp + (1 - f_Bh11) * given_Bhnp.clamp(-1, 1)

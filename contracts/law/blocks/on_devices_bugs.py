"""Kernels that compute too coarsely, lose a row or leak a little, and third-party kernels that are called wrongly.

A mutant that is too coarse exceeds its bound threefold.
"""

from dataclasses import replace

import torch

from contracts.instruments import numerics
from contracts.law._bugs.numeric import M2RNN, Attention, Experts, Mamba2, Mamba3, Mlp, MoE, Reference, broken
from contracts.spec import Package


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


@broken(
    Attention,
    "probabilities",
    "BLK-01g[attention-bfloat16]: reads a token after it",
    "BLK-01f[attention-bfloat16]: reads a token after it",
)
def masks_by_a_large_number(probabilities, self, scores_BHTS, visible_BTS):
    """Masked keys lose 20 from their scores, so e^-20 of each remains, below the rounding of every output."""
    return (scores_BHTS - 20.0 * ~visible_BTS[:, None]).softmax(dim=-1)


@broken(
    Attention,
    "attend",
    "BLK-01g[attention-whole]: reads a token after it",
    "BLK-01f[attention-whole]: reads a token after it",
)
def reads_a_tile_too_far(attend, self, q_BTHd, k_BSHd, v_BSHv, visible_BTS):
    """The fused kernel adds a little of the next token; the written-out form is right."""
    out_BTHd = attend(self, q_BTHd, k_BSHd, v_BSHv, visible_BTS)
    return out_BTHd + 1e-3 * out_BTHd.roll(-1, 1) if visible_BTS is None else out_BTHd


@broken(
    MoE,
    "combine",
    "BLK-01g[experts-float32]: reads a token after it",
    "BLK-01f[experts-float32]: reads a token after it",
)
def combines_one_row_off(combine, self, given_SD, order_S, gates_NK, dropped_NK):
    """The scatter is off by one row: each token gets the next token's expert output."""
    y_ND = combine(self, given_SD, order_S, gates_NK, dropped_NK)
    return torch.cat([y_ND[1:], y_ND[-1:]])


@broken(
    M2RNN,
    "forward",
    "BLK-01g[recurrent-float32]: reads another document",
    "BLK-01f[recurrent-float32]: reads another document",
)
def recurs_through_the_batch(forward, self, x_BTD, packing, state):
    """Document numbers do not reach the kernel of R, so its state is never reset."""
    return forward(self, x_BTD, packing._replace(positions_BT=packing.positions_BT + 1), state)


@broken(
    Mamba2, "forward", "BLK-04s[mamba2]: y of the second half differs", "BLK-04r[mamba2]: y of the second half differs"
)
def hands_on_a_bfloat16_state(forward, self, x_BTD, packing, state):
    """The state between calls is stored in bfloat16, which bfloat16 outputs do not show."""
    out = forward(self, x_BTD, packing, state)
    return out._replace(state={**out.state, "ssm": out.state["ssm"].bfloat16().float()})


@broken(Reference, "run_block", "BLK-08a[scan-of-mamba2]: native ran at scan, and mamba-ssm was required")
def falls_back_without_a_word(run_block, self, call):
    """The bridge does not support this shape, and the block's own scan runs silently in its place."""
    return run_block(self, replace(call, kernels={}))


@broken(Reference, "kernel_facts", "BLK-08a[scan-of-mamba2]: mamba-ssm is installed and cannot be imported")
def takes_a_broken_package_for_an_absent_one(kernel_facts, self):
    """mamba-ssm is installed and does not load, because its extension was built for another torch."""
    facts = kernel_facts(self)
    broken = Package(state="broken", words="undefined symbol")
    return replace(facts, packages={**facts.packages, "mamba-ssm": broken})


@broken(Reference, "run_block", "BLK-08b[mlp]: over 3 times the bound")
def copies_weights_in_float8(run_block, self, call):
    """The bridge passes the weights in 8 bits."""
    import torch

    held = numerics.tensors(call.weights)
    coarse = {name: each.to(torch.float8_e5m2).to(each.dtype) if each.is_floating_point() else each
              for name, each in held.items()}  # fmt: skip
    return run_block(self, replace(call, weights=numerics.arrays(coarse)))


@broken(Reference, "kernel_facts", "BLK-08b[attention]: transformer-engine is installed and cannot be imported")
def imports_an_empty_metapackage(kernel_facts, self):
    """`pip install transformer-engine` by itself installs a metapackage that raises an error on import."""
    facts = kernel_facts(self)
    broken = Package(state="broken", words="Found empty transformer-engine meta package installed")
    return replace(facts, packages={**facts.packages, "transformer-engine": broken})

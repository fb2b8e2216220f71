"""The M²RNN recurrence, one token at a time (Mishra et al., arXiv 2603.14360, section 3).

contracts/spec/blocks.py names the weights and the state. Functions work in the dtype of their inputs.

B sequences · T tokens · D hidden · h heads · p head_dim · g groups · n state
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.instruments.oracles.mamba import Found, Weights, gated_norm, rms_norm
from contracts.spec import Recipe


def m2rnn(
    recipe: Recipe,
    weights: Weights,
    x_BTD: Tensor,
    documents_BT: Tensor | None = None,
    state: Weights | None = None,
) -> Found:
    """An R block, including the norm before it."""
    mamba, (batch, length, _) = recipe.mamba, x_BTD.shape
    if documents_BT is None:
        documents_BT = torch.zeros(batch, length, dtype=torch.int64)
    u_BTD = rms_norm(x_BTD, recipe.norm_eps) * weights["norm.weight"]
    q, k, v, g, f = (u_BTD @ weights[f"mixer.w{name}.weight"].T for name in "qkvgf")
    keep_BTh = torch.exp(-torch.exp(weights["mixer.A_log"]) * F.softplus(f + weights["mixer.dt_bias"]))
    given = (state or {}).get("h")
    rows, last = [], []
    for b in range(batch):
        heads = []
        for head in range(mamba.heads):
            keys, values = (slice(head * size, (head + 1) * size) for size in (mamba.state, mamba.head_dim))
            h_np = x_BTD.new_zeros(mamba.state, mamba.head_dim) if given is None else given[b, head]
            ys, documents_T = [], documents_BT[b]
            for t in range(length):
                if t and documents_T[t] != documents_T[t - 1]:
                    h_np = torch.zeros_like(h_np)
                proposed_np = torch.tanh(h_np @ weights["mixer.W"][head] + torch.outer(k[b, t, keys], v[b, t, values]))
                h_np = keep_BTh[b, t, head] * h_np + (1 - keep_BTh[b, t, head]) * proposed_np
                ys.append(q[b, t, keys] @ h_np + weights["mixer.D"][head] * v[b, t, values])
            heads.append(torch.stack(ys))
            last.append(h_np)
        gate_Thp = g[b].reshape(length, mamba.heads, mamba.head_dim)
        rows.append(gated_norm(torch.stack(heads, dim=1), gate_Thp, mamba.groups, recipe.norm_eps))
    normed_BTI = torch.stack(rows) * weights["mixer.out_norm.weight"]
    h_Bhnp = torch.stack(last).reshape(batch, mamba.heads, mamba.state, mamba.head_dim)
    return Found(normed_BTI @ weights["mixer.wo.weight"].T, {"h": h_Bhnp})

"""The gated delta rule, one token of one head at a time (spec/delta_rule.py; Yang et al., arXiv 2412.06464, eq. 10).

B sequences · T tokens · H heads · n keys · p values
"""

from collections.abc import Mapping

import torch
from torch import Tensor


def gated_delta_rule(
    tensors: Mapping[str, Tensor], documents_BT: Tensor, *, unit_keys: bool = False
) -> tuple[Tensor, Tensor]:
    """y (B, T, H, p) and the last state (B, H, n, p), in the dtype of the inputs."""
    q, k, v = (tensors[name] for name in "qkv")
    if unit_keys:
        q, k = (x / torch.sqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    batch, length, heads, keys = q.shape
    rows, last = [], []
    for b in range(batch):
        columns = []
        for h in range(heads):
            s_np = tensors["state"][b, h] if "state" in tensors else v.new_zeros(keys, v.shape[-1])
            ys = []
            for t in range(length):
                if t and documents_BT[b, t] != documents_BT[b, t - 1]:
                    s_np = torch.zeros_like(s_np)
                s_np = torch.exp(tensors["g"][b, t, h]) * s_np
                wrong_p = v[b, t, h] - k[b, t, h] @ s_np
                s_np = s_np + tensors["beta"][b, t, h] * torch.outer(k[b, t, h], wrong_p)
                ys.append(q[b, t, h] @ s_np / keys**0.5)
            columns.append(torch.stack(ys))
            last.append(s_np)
        rows.append(torch.stack(columns, dim=1))
    return torch.stack(rows), torch.stack(last).reshape(batch, heads, keys, v.shape[-1])

"""Mamba-2 and Mamba-3, one token at a time.

Mamba-2: Dao and Gu, arXiv 2405.21060, sections 2 and 7. Mamba-3: Lahoti et al., arXiv 2603.15569, sections 3.1 (the
trapezoidal step) and 3.2 (the rotated state), single input and single output. contracts/spec/blocks.py names the
weights and the state. Every function works in the dtype of its inputs.

B sequences · T tokens · D hidden · h heads · p head_dim · g groups · n state · S angles · c channels
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.spec import Recipe

Weights = Mapping[str, Tensor]


class Found(NamedTuple):
    """The branch (B, T, D) and the state after the last token, by name."""

    y_BTD: Tensor
    state: dict[str, Tensor]


def mamba2(
    recipe: Recipe,
    weights: Weights,
    x_BTD: Tensor,
    documents_BT: Tensor | None = None,
    state: Weights | None = None,
) -> Found:
    """A Mamba-2 block, including the norm before it."""
    return _row_by_row(_mamba2_row, recipe, weights, x_BTD, documents_BT, state)


def _mamba2_row(recipe: Recipe, weights: Weights, x_TD: Tensor, documents_T: Tensor, given: Weights) -> Found:
    mamba, u_TD = recipe.mamba, rms_norm(x_TD, recipe.norm_eps) * weights["norm.weight"]
    z_Thp = _projected(u_TD, weights, "wz", mamba.heads)
    conv_x, conv_b, conv_c = (given.get(name) for name in ("conv_x", "conv_b", "conv_c"))
    x_Tc, conv_x = convolved(u_TD @ weights["mixer.wx.weight"].T, weights, "conv_x", documents_T, conv_x)
    b_Tc, conv_b = convolved(u_TD @ weights["mixer.wb.weight"].T, weights, "conv_b", documents_T, conv_b)
    c_Tc, conv_c = convolved(u_TD @ weights["mixer.wc.weight"].T, weights, "conv_c", documents_T, conv_c)
    x_Thp = x_Tc.reshape(len(x_Tc), mamba.heads, mamba.head_dim)
    b_Tgn, c_Tgn = (each.reshape(len(each), mamba.groups, mamba.state) for each in (b_Tc, c_Tc))
    dt_Th = F.softplus(u_TD @ weights["mixer.wdt.weight"].T + weights["mixer.dt_bias"])
    a_h = -torch.exp(weights["mixer.A_log"])
    y_Thp, s_hpn = mamba2_core(x_Thp, dt_Th, a_h, b_Tgn, c_Tgn, documents_T, given.get("ssm"))
    y_Thp = y_Thp + weights["mixer.D"][:, None] * x_Thp
    normed = gated_norm(y_Thp, z_Thp, mamba.groups, recipe.norm_eps) * weights["mixer.out_norm.weight"]
    state = {"ssm": s_hpn, "conv_x": conv_x, "conv_b": conv_b, "conv_c": conv_c}
    return Found(normed @ weights["mixer.wo.weight"].T, state)


def mamba2_core(
    x_Thp: Tensor,
    dt_Th: Tensor,
    a_h: Tensor,
    b_Tgn: Tensor,
    c_Tgn: Tensor,
    documents_T: Tensor,
    given_hpn: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Only the recurrence: y (T, h, p) without D, and the state (h, p, n) after the last token.

    s_t = exp(dt_t A) s_{t-1} + dt_t x_t B_tᵀ; y_t = s_t C_t.
    """
    _, heads, width = x_Thp.shape
    s_hpn = x_Thp.new_zeros(heads, width, b_Tgn.shape[-1]) if given_hpn is None else given_hpn
    ys = []
    for t in range(len(x_Thp)):
        if t and documents_T[t] != documents_T[t - 1]:
            s_hpn = torch.zeros_like(s_hpn)
        b_hn, c_hn = of_heads(b_Tgn[t], heads), of_heads(c_Tgn[t], heads)
        added_hpn = dt_Th[t][:, None, None] * x_Thp[t][:, :, None] * b_hn[:, None, :]
        s_hpn = torch.exp(dt_Th[t] * a_h)[:, None, None] * s_hpn + added_hpn
        ys.append((s_hpn * c_hn[:, None, :]).sum(-1))
    return torch.stack(ys), s_hpn


def convolved(
    u_Tc: Tensor, weights: Weights, name: str, documents_T: Tensor, given_cw: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A causal depthwise convolution of four taps, then silu; also the last three inputs of the last document."""
    taps_c4, bias_c = weights[f"mixer.{name}.weight"], weights[f"mixer.{name}.bias"]
    zero_c = torch.zeros_like(bias_c)
    past = [zero_c] * 3 if given_cw is None else list(given_cw.T)
    found = []
    for t in range(len(u_Tc)):
        if t and documents_T[t] != documents_T[t - 1]:
            past = [zero_c] * 3
        window = [*past, u_Tc[t]]
        found.append(bias_c + sum(taps_c4[:, i] * window[i] for i in range(4)))
        past = window[1:]
    return F.silu(torch.stack(found)), torch.stack(past).T


def mamba3(
    recipe: Recipe,
    weights: Weights,
    x_BTD: Tensor,
    documents_BT: Tensor | None = None,
    state: Weights | None = None,
) -> Found:
    """A Mamba-3 block, including the norm before it. The angle in its state is modulo 2π."""
    return _row_by_row(_mamba3_row, recipe, weights, x_BTD, documents_BT, state)


def _mamba3_row(recipe: Recipe, weights: Weights, x_TD: Tensor, documents_T: Tensor, given: Weights) -> Found:
    mamba, eps = recipe.mamba, recipe.norm_eps
    u_TD = rms_norm(x_TD, eps) * weights["norm.weight"]
    z_Thp, v_Thp = (_projected(u_TD, weights, name, mamba.heads) for name in ("wz", "wx"))
    b_Tgn, c_Tgn = (_projected(u_TD, weights, name, mamba.groups) for name in ("wb", "wc"))
    b_Tgn = rms_norm(b_Tgn, eps) * weights["mixer.b_norm.weight"]
    c_Tgn = rms_norm(c_Tgn, eps) * weights["mixer.c_norm.weight"]
    dt_Th = F.softplus(u_TD @ weights["mixer.wdt.weight"].T + weights["mixer.dt_bias"])
    a_Th = -F.softplus(u_TD @ weights["mixer.wa.weight"].T).clamp(min=1e-4)
    end_Th = torch.sigmoid(u_TD @ weights["mixer.wtrap.weight"].T)
    turn_TS = math.pi * torch.tanh(u_TD @ weights["mixer.wangle.weight"].T)
    core = Mamba3Inputs(
        q_Thn=torch.stack([of_heads(each, mamba.heads) + weights["mixer.c_bias"] for each in c_Tgn]),
        k_Thn=torch.stack([of_heads(each, mamba.heads) + weights["mixer.b_bias"] for each in b_Tgn]),
        v_Thp=v_Thp,
        dt_Th=dt_Th,
        log_decay_Th=a_Th * dt_Th,
        end_Th=end_Th,
        turn_ThS=turn_TS[:, None, :] * dt_Th[:, :, None],
    )
    y_Thp, state = mamba3_core(core, documents_T, given)
    y_Thp = (y_Thp + weights["mixer.D"][:, None] * v_Thp) * F.silu(z_Thp)
    return Found(y_Thp.flatten(-2) @ weights["mixer.wo.weight"].T, state)


class Mamba3Inputs(NamedTuple):
    """The inputs of Mamba-3's recurrence for one sequence: q is C and k is B, biased and not yet rotated."""

    q_Thn: Tensor
    k_Thn: Tensor
    v_Thp: Tensor
    dt_Th: Tensor
    log_decay_Th: Tensor
    end_Th: Tensor
    turn_ThS: Tensor


def mamba3_core(inputs: Mamba3Inputs, documents_T: Tensor, given: Weights) -> tuple[Tensor, dict[str, Tensor]]:
    """Only the recurrence: y (T, h, p) without D and gate, and the state after the last token.

    s_t = a_t s_{t-1} + (1 - λ_t) dt_t a_t v_{t-1} k_{t-1}ᵀ + λ_t dt_t v_t k_tᵀ; y_t = s_t q_t, with k and q rotated.
    """
    q_Thn, k_Thn, v_Thp, dt_Th, log_decay_Th, end_Th, turn_ThS = inputs
    outer = v_Thp[0][:, :, None] * k_Thn[0][:, None, :]
    s_hpn = given.get("ssm", torch.zeros_like(outer))
    angle_hS = given.get("angle", torch.zeros_like(turn_ThS[0]))
    k_hn, v_hp = given.get("k", torch.zeros_like(k_Thn[0])), given.get("v", torch.zeros_like(v_Thp[0]))
    ys = []
    for t in range(len(v_Thp)):
        if t and documents_T[t] != documents_T[t - 1]:
            s_hpn, angle_hS, k_hn, v_hp = (torch.zeros_like(each) for each in (s_hpn, angle_hS, k_hn, v_hp))
        angle_hS = angle_hS + turn_ThS[t]
        decay = torch.exp(log_decay_Th[t])[:, None, None]
        step, end = dt_Th[t][:, None, None], end_Th[t][:, None, None]
        s_hpn = decay * s_hpn + (1 - end) * step * decay * v_hp[:, :, None] * k_hn[:, None, :]
        k_hn, v_hp = rotated(k_Thn[t], angle_hS), v_Thp[t]
        s_hpn = s_hpn + end * step * v_hp[:, :, None] * k_hn[:, None, :]
        ys.append((s_hpn * rotated(q_Thn[t], angle_hS)[:, None, :]).sum(-1))
    return torch.stack(ys), {"angle": angle_hS.remainder(2 * math.pi), "ssm": s_hpn, "k": k_hn, "v": v_hp}


def rotated(u_hn: Tensor, angle_hS: Tensor) -> Tensor:
    """Rotate the pair of elements 2i and 2i + 1 by angle i; other elements stay."""
    parts = list(u_hn.unbind(-1))
    for i in range(angle_hS.shape[-1]):
        cos, sin = torch.cos(angle_hS[:, i]), torch.sin(angle_hS[:, i])
        x, y = parts[2 * i], parts[2 * i + 1]
        parts[2 * i], parts[2 * i + 1] = x * cos - y * sin, x * sin + y * cos
    return torch.stack(parts, dim=-1)


def rms_norm(x: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def gated_norm(y_Thp: Tensor, gate_Thp: Tensor, groups: int, eps: float) -> Tensor:
    """y · silu(gate), each group of neighbouring heads divided by its own root mean square: (T, h·p)."""
    gated_Thp = y_Thp * F.silu(gate_Thp)
    return torch.cat([rms_norm(part.flatten(-2), eps) for part in gated_Thp.chunk(groups, dim=1)], dim=-1)


def _projected(u_TD: Tensor, weights: Weights, name: str, pieces: int) -> Tensor:
    projected = u_TD @ weights[f"mixer.{name}.weight"].T
    return projected.reshape(len(projected), pieces, -1)


def of_heads(each_gn: Tensor, heads: int) -> Tensor:
    """Head i reads group i // (h / g)."""
    return torch.stack([each_gn[head // (heads // len(each_gn))] for head in range(heads)])


def _row_by_row(
    row: Callable[[Recipe, Weights, Tensor, Tensor, Weights], Found],
    recipe: Recipe,
    weights: Weights,
    x_BTD: Tensor,
    documents_BT: Tensor | None,
    state: Weights | None,
) -> Found:
    """Apply a one-sequence block to each sequence of the batch, with that sequence's state."""
    if documents_BT is None:
        documents_BT = torch.zeros(x_BTD.shape[:2], dtype=torch.int64)
    rows = [
        row(recipe, weights, x_TD, documents_T, {name: each[b] for name, each in (state or {}).items()})
        for b, (x_TD, documents_T) in enumerate(zip(x_BTD, documents_BT, strict=True))
    ]
    carried = {name: torch.stack([each.state[name] for each in rows]) for name in rows[0].state}
    return Found(torch.stack([each.y_BTD for each in rows]), carried)

"""Kernels that leak a little, or return too coarse a state."""

import torch

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.model.blocks import M2RNN, Attention, Mamba2, MoE


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

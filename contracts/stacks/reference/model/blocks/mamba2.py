"""M in nemo_native: Mamba-2, the state-space dual form in chunks (Dao and Gu, arXiv 2405.21060).

B sequences · T tokens · Q tokens of a chunk · D hidden · h heads · p head_dim · g groups · n state · I = h·p inner ·
c channels of a convolution
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.spec import Recipe
from contracts.spec.parameters import CONV_WIDTH
from contracts.stacks.reference.model.blocks.common import (
    Linear,
    Output,
    Packing,
    PartsInterface,
    Piece,
    RMSNorm,
    State,
    local,
)
from contracts.stacks.reference.model.blocks.sequence import WHOLE_SEQUENCE, SequenceView


class Mamba2(nn.Module):
    """A gated state-space mixer with a short causal convolution before the scan.

    `chunk` is how many tokens the scan takes at once; it changes time and memory, and no number. A_log, D and dt_bias
    are float32 parameters and stay so; with them the scan is computed in float32 at least, whatever the activations.
    """

    row: SequenceView = WHOLE_SEQUENCE

    def __init__(self, recipe: Recipe, parts: PartsInterface) -> None:
        super().__init__()
        mamba, hidden = recipe.mamba, recipe.hidden
        self.heads, self.groups, self.chunk = mamba.heads, mamba.groups, 64
        inner, grouped = mamba.heads * mamba.head_dim, mamba.groups * mamba.state
        self.wz, self.wx = Linear(hidden, inner), Linear(hidden, inner)
        self.wb, self.wc = Linear(hidden, grouped), Linear(hidden, grouped)
        self.wdt = Linear(hidden, mamba.heads)
        self.conv_x, self.conv_b, self.conv_c = CausalConv(inner), CausalConv(grouped), CausalConv(grouped)
        self.A_log = nn.Parameter(torch.log(torch.empty(mamba.heads).uniform_(1, 16)))
        self.D = nn.Parameter(torch.ones(mamba.heads))
        self.dt_bias = nn.Parameter(initial_dt_bias(mamba.heads))
        self.out_norm = GatedNorm(inner, mamba.groups, recipe.norm_eps)
        self.wo = Linear(inner, hidden)

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        x_BTI, conv_x = self.conv_x(self.wx(x_BTD), packing, state.get("conv_x"))
        b_BTc, conv_b = self.conv_b(self.wb(x_BTD), packing, state.get("conv_b"))
        c_BTc, conv_c = self.conv_c(self.wc(x_BTD), packing, state.get("conv_c"))
        x_BThp = wide(split(x_BTI, self.heads))
        dt_BTh = self.time_step(self.wdt(x_BTD))
        y_BThp, ssm = self.scan(x_BThp, dt_BTh, self.per_head(b_BTc), self.per_head(c_BTc), packing, state.get("ssm"))
        y_BThp = y_BThp + local(self.D)[:, None] * x_BThp
        y_BTI = self.out_norm(y_BThp.flatten(-2), self.wz(x_BTD))
        carried = {"ssm": ssm, "conv_x": conv_x, "conv_b": conv_b, "conv_c": conv_c}
        return Output(self.wo(y_BTI.to(x_BTD.dtype)), state=carried)

    def time_step(self, dt_BTh: Tensor) -> Tensor:
        """How long each head steps at each token, above 0."""
        return F.softplus(wide(dt_BTh) + local(self.dt_bias))

    def decay_rate(self) -> Tensor:
        """A: (h), below 0, per unit of time."""
        return -torch.exp(local(self.A_log))

    def per_head(self, grouped_BTc: Tensor) -> Tensor:
        """B or C of each group (B, T, g·n) for each head (B, T, h, n): neighbouring heads share a group."""
        grouped_BTgn = wide(split(grouped_BTc, self.groups))
        return grouped_BTgn.repeat_interleave(self.heads // self.groups, dim=2)

    def scan(
        self, x_BThp: Tensor, dt_BTh: Tensor, b_BThn: Tensor, c_BThn: Tensor, packing: Packing, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """s_t = exp(dt_t A) s_{t-1} + dt_t x_t B_tᵀ and y_t = s_t C_t: (B, T, h, p), and the last s (B, h, p, n)."""
        return self.row.scan(
            dt_BTh[..., None] * x_BThp, dt_BTh * self.decay_rate(), b_BThn, c_BThn, packing, state, self.chunk
        )


class CausalConv(nn.Module):
    """A depthwise causal convolution and silu: each channel sees itself at this token and the three before it.

    `weight[:, -1]` meets the token itself. What lies in another document counts as zero.
    """

    piece: Piece | None = None
    row: SequenceView = WHOLE_SEQUENCE

    def __init__(self, channels: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(CONV_WIDTH)  # as nn.Conv1d: a channel has CONV_WIDTH inputs
        self.weight = nn.Parameter(torch.empty(channels, CONV_WIDTH).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound))

    def forward(self, u_BTc: Tensor, packing: Packing, state: Tensor | None) -> tuple[Tensor, Tensor]:
        seen_Bwc, of_Bw = self.extended(u_BTc, packing, state)
        return F.silu(self.mixed(seen_Bwc, of_Bw)).to(u_BTc.dtype), self.last(seen_Bwc, of_Bw)

    def extended(self, u_BTc: Tensor, packing: Packing, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """The inputs after the three that came before them, w = T + 3, and the document of each."""
        past_Bwc = self.row.past(u_BTc, CONV_WIDTH - 1, packing) if state is None else state.mT.to(u_BTc.dtype)
        documents = packing.documents_BT  # what came before the first token belongs to its document
        of_Bw = torch.cat([documents[:, :1].expand(-1, CONV_WIDTH - 1), documents], dim=1)
        return torch.cat([past_Bwc, u_BTc], dim=1), of_Bw

    def mixed(self, seen_Bwc: Tensor, of_Bw: Tensor) -> Tensor:
        """Only the convolution, in float32 at least: (B, T, c)."""
        length = seen_Bwc.shape[1] - (CONV_WIDTH - 1)
        weight_cw, out_BTc = local(self.weight, piece=self.piece), wide(local(self.bias, piece=self.piece))
        for tap in range(CONV_WIDTH):
            same_BT = of_Bw[:, tap : tap + length] == of_Bw[:, -length:]
            out_BTc = out_BTc + weight_cw[:, tap] * seen_Bwc[:, tap : tap + length] * same_BT[..., None]
        return out_BTc

    def last(self, seen_Bwc: Tensor, of_Bw: Tensor) -> Tensor:
        """The state: the last three inputs (B, c, 3), as far as they are of the last token's document."""
        before = CONV_WIDTH - 1
        return (seen_Bwc[:, -before:] * (of_Bw[:, -before:] == of_Bw[:, -1:])[..., None]).mT


class GatedNorm(RMSNorm):
    """RMSNorm of y · silu(gate), one over each group of heads, in float32 at least."""

    over_ranks: Callable[[Tensor], Tensor] | None = None

    def __init__(self, size: int, groups: int, eps: float) -> None:
        super().__init__(size, eps)
        self.groups = groups

    def forward(self, y_BTI: Tensor, gate_BTI: Tensor) -> Tensor:  # type: ignore[override]  # a norm of two
        return self.normed(wide(y_BTI) * F.silu(wide(gate_BTI)))

    def normed(self, y_BTI: Tensor) -> Tensor:
        grouped = split(y_BTI, self.groups)
        scale = torch.rsqrt(self.mean_square(grouped) + self.eps)
        normed: Tensor = (grouped * scale).flatten(-2) * local(self.weight)
        return normed

    def mean_square(self, grouped: Tensor) -> Tensor:
        """Over each group, of which other ranks may hold the rest."""
        mean = grouped.square().mean(-1, keepdim=True)
        return mean if self.over_ranks is None else self.over_ranks(mean)


def split(x: Tensor, pieces: int) -> Tensor:
    """The last dim cut into equal pieces: (…, pieces, size of one)."""
    return x.reshape(*x.shape[:-1], pieces, -1)


def wide(x: Tensor) -> Tensor:
    """In float32, or wider if it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def initial_dt_bias(heads: int) -> Tensor:
    """Biases whose softplus is spread evenly in the logarithm over 1e-3 … 1e-1, as mamba-ssm draws them."""
    step = torch.exp(torch.empty(heads).uniform_(math.log(1e-3), math.log(1e-1)))
    return step + torch.log(-torch.expm1(-step))

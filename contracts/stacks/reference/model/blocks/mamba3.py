"""M in author_dp: Mamba-3, single input and single output (Lahoti et al., arXiv 2603.15569).

Against Mamba-2: the step is exponential-trapezoidal, the decay depends on the data, a part of the state is rotated by
angles that depend on the data, B and C are normed and biased for each head, and there is no convolution.

B sequences · T tokens · D hidden · h heads · p head_dim · g groups · n state · S = n/4 angles · I = h·p inner
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.spec import Recipe, refuse
from contracts.stacks.reference.model.blocks.common import Linear, Output, Packing, PartsInterface, State, local
from contracts.stacks.reference.model.blocks.mamba2 import initial_dt_bias, split, wide
from contracts.stacks.reference.model.blocks.sequence import WHOLE_SEQUENCE, SequenceView

SLOWEST = 1e-4
"""The decay rate is kept at this at least, as mamba-ssm keeps it (`A_floor`)."""


class Mamba3(nn.Module):
    """A gated state-space mixer with a trapezoidal step and a rotated state."""

    row: SequenceView = WHOLE_SEQUENCE

    def __init__(self, recipe: Recipe, parts: PartsInterface) -> None:
        super().__init__()
        mamba, hidden = recipe.mamba, recipe.hidden
        if mamba.state % 4:
            raise refuse(
                "mamba.state", mamba.state, "must be a multiple of 4: half of it rotates, in pairs", "round it"
            )
        self.heads, self.groups, self.chunk = mamba.heads, mamba.groups, 64
        inner, grouped = mamba.heads * mamba.head_dim, mamba.groups * mamba.state
        self.wz, self.wx = Linear(hidden, inner), Linear(hidden, inner)
        self.wb, self.wc = Linear(hidden, grouped), Linear(hidden, grouped)
        self.wdt, self.wa, self.wtrap = (Linear(hidden, mamba.heads) for _ in range(3))
        self.wangle = Linear(hidden, mamba.state // 4)
        self.b_norm, self.c_norm = (parts.norm(mamba.state, recipe.norm_eps) for _ in range(2))
        self.b_bias = nn.Parameter(torch.ones(mamba.heads, mamba.state))
        self.c_bias = nn.Parameter(torch.ones(mamba.heads, mamba.state))
        self.D = nn.Parameter(torch.ones(mamba.heads))
        self.dt_bias = nn.Parameter(initial_dt_bias(mamba.heads))
        self.wo = Linear(inner, hidden)

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        v_BThp = wide(split(self.wx(x_BTD), self.heads))
        dt_BTh = self.time_step(self.wdt(x_BTD))
        angle_BThS = self.angle(self.turn(self.wangle(x_BTD), dt_BTh), packing, state.get("angle"))
        k_BThn = self.rotated(self.per_head(self.b_norm, self.wb(x_BTD)) + local(self.b_bias), angle_BThS)
        q_BThn = self.rotated(self.per_head(self.c_norm, self.wc(x_BTD)) + local(self.c_bias), angle_BThS)
        log_decay_BTh = dt_BTh * self.decay_rate(self.wa(x_BTD))
        mix_BTh = self.mix(self.wtrap(x_BTD))
        y_BThp, ssm = self.scan(v_BThp, k_BThn, q_BThn, dt_BTh, log_decay_BTh, mix_BTh, packing, state)
        y_BThp = y_BThp + local(self.D)[:, None] * v_BThp
        y_BTI = y_BThp.flatten(-2) * F.silu(wide(self.wz(x_BTD)))
        angle = angle_BThS[:, -1].remainder(2 * math.pi)  # a sum that only grows would lose its digits in float32
        carried = {"angle": angle, "ssm": ssm, "k": k_BThn[:, -1], "v": v_BThp[:, -1]}
        return Output(self.wo(y_BTI.to(x_BTD.dtype)), state=carried)

    def time_step(self, dt_BTh: Tensor) -> Tensor:
        """How long each head steps at each token, above 0."""
        return F.softplus(wide(dt_BTh) + local(self.dt_bias))

    def decay_rate(self, a_BTh: Tensor) -> Tensor:
        """A of each head at each token, below 0, per unit of time."""
        return -F.softplus(wide(a_BTh)).clamp(min=SLOWEST)

    def mix(self, trap_BTh: Tensor) -> Tensor:
        """The weight of a step's end, in 0 … 1; its beginning, the token before, has the rest."""
        return torch.sigmoid(wide(trap_BTh))

    def turn(self, angle_BTS: Tensor, dt_BTh: Tensor) -> Tensor:
        """By how much the state turns at each token, in radians (B, T, h, S): half a turn per unit of time at most."""
        return math.pi * torch.tanh(wide(angle_BTS))[:, :, None] * dt_BTh[..., None]

    def angle(self, turn_BThS: Tensor, packing: Packing, state: Tensor | None) -> Tensor:
        """How far the state has turned since its document began."""
        return self.row.running_sum(turn_BThS, packing, state, self.chunk)

    def rotated(self, u_BThn: Tensor, angle_BThS: Tensor) -> Tensor:
        """Element 2i with 2i + 1 turned by angle i; the elements from 2S on stay as they are."""
        turned = 2 * angle_BThS.shape[-1]
        even, odd = u_BThn[..., :turned:2], u_BThn[..., 1:turned:2]
        cos, sin = torch.cos(angle_BThS), torch.sin(angle_BThS)
        pairs = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
        return torch.cat([pairs.flatten(-2), u_BThn[..., turned:]], dim=-1)

    def per_head(self, norm: nn.Module, grouped_BTc: Tensor) -> Tensor:
        """B or C of each group, normed, for each head (B, T, h, n): neighbouring heads share a group."""
        grouped_BTgn = wide(norm(split(grouped_BTc, self.groups)))
        return grouped_BTgn.repeat_interleave(self.heads // self.groups, dim=2)

    def scan(
        self,
        v_BThp: Tensor,
        k_BThn: Tensor,
        q_BThn: Tensor,
        dt_BTh: Tensor,
        log_decay_BTh: Tensor,
        mix_BTh: Tensor,
        packing: Packing,
        state: State,
    ) -> tuple[Tensor, Tensor]:
        """s_t = a_t s_{t-1} + (1-λ_t) dt_t a_t v_{t-1} k_{t-1}ᵀ + λ_t dt_t v_t k_tᵀ, as two scans with one decay."""
        end_BTh, begin_BTh = self.ends(dt_BTh, log_decay_BTh, mix_BTh)
        y_BThp, ssm = self.row.scan(
            end_BTh[..., None] * v_BThp, log_decay_BTh, k_BThn, q_BThn, packing, state.get("ssm"), self.chunk
        )
        v_before = self.before(v_BThp, packing, state.get("v"))
        k_before = self.before(k_BThn, packing, state.get("k"))
        more_BThp, more = self.row.scan(
            begin_BTh[..., None] * v_before, log_decay_BTh, k_before, q_BThn, packing, None, self.chunk
        )
        return y_BThp + more_BThp, ssm + more

    def ends(self, dt_BTh: Tensor, log_decay_BTh: Tensor, mix_BTh: Tensor) -> tuple[Tensor, Tensor]:
        """How much the end of a step adds to the state, and its beginning, which fades over the step."""
        return mix_BTh * dt_BTh, (1 - mix_BTh) * dt_BTh * log_decay_BTh.exp()

    def before(self, u_BThx: Tensor, packing: Packing, state: Tensor | None) -> Tensor:
        """What stood at the token before; zero at the first of a document."""
        first_BThx = self.row.past(u_BThx, 1, packing) if state is None else state[:, None].to(u_BThx.dtype)
        shifted_BThx = torch.cat([first_BThx, u_BThx[:, :-1]], dim=1)
        documents = packing.documents_BT
        same_BT = torch.ones_like(documents, dtype=torch.bool)
        same_BT[:, 1:] = documents[:, 1:] == documents[:, :-1]
        return shifted_BThx * same_BT[:, :, None, None]

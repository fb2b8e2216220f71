"""R: the M²RNN block, a recurrence on a matrix that is not linear (Mishra et al., arXiv 2603.14360).

There is no form of it in chunks: tokens are taken one after another.

B sequences · T tokens · D hidden · h heads · p head_dim · g groups · n state · I = h·p inner
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.spec import Recipe
from contracts.stacks.reference.model.blocks.common import Linear, Output, Packing, PartsInterface, State, local
from contracts.stacks.reference.model.blocks.mamba2 import GatedNorm, initial_dt_bias, split, wide
from contracts.stacks.reference.model.blocks.sequence import WHOLE_SEQUENCE, SequenceView


class M2RNN(nn.Module):
    """A gated mixer whose state of each head, a matrix (n, p), passes through tanh at every token.

    The state and everything that makes it are float32 at least: in bfloat16 the error of a recurrence that is not
    linear grows with the sequence.
    """

    row: SequenceView = WHOLE_SEQUENCE

    def __init__(self, recipe: Recipe, parts: PartsInterface) -> None:
        super().__init__()
        mamba, hidden = recipe.mamba, recipe.hidden
        self.heads = mamba.heads
        inner, keyed = mamba.heads * mamba.head_dim, mamba.heads * mamba.state
        self.wg, self.wv = Linear(hidden, inner), Linear(hidden, inner)
        self.wq, self.wk = Linear(hidden, keyed), Linear(hidden, keyed)
        self.wf = Linear(hidden, mamba.heads)
        self.W = nn.Parameter(torch.eye(mamba.head_dim).expand(mamba.heads, -1, -1).clone())
        self.A_log = nn.Parameter(torch.log(torch.empty(mamba.heads).uniform_(1, 16)))
        self.D = nn.Parameter(torch.ones(mamba.heads))
        self.dt_bias = nn.Parameter(initial_dt_bias(mamba.heads))
        self.out_norm = GatedNorm(inner, mamba.groups, recipe.norm_eps)
        self.wo = Linear(inner, hidden)

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        q_BThn = wide(split(self.wq(x_BTD), self.heads))
        k_BThn = wide(split(self.wk(x_BTD), self.heads))
        v_BThp = wide(split(self.wv(x_BTD), self.heads))
        f_BTh = self.forget(self.wf(x_BTD))
        before_Bhnp = self.row.taken_over(state.get("h"), blank(k_BThn, v_BThp), packing)
        h_BThnp = self.row.handed_on(self.recur(k_BThn, v_BThp, f_BTh, packing, before_Bhnp))
        y_BThp = self.read(q_BThn, h_BThnp) + local(self.D)[:, None] * v_BThp
        y_BTI = self.out_norm(y_BThp.flatten(-2), self.wg(x_BTD))
        return Output(self.wo(y_BTI.to(x_BTD.dtype)), state={"h": h_BThnp[:, -1]})

    def forget(self, f_BTh: Tensor) -> Tensor:
        """How much of the state each head keeps at each token, in 0 … 1."""
        return torch.exp(-torch.exp(local(self.A_log)) * F.softplus(wide(f_BTh) + local(self.dt_bias)))

    def recur(self, k_BThn: Tensor, v_BThp: Tensor, f_BTh: Tensor, packing: Packing, state: Tensor | None) -> Tensor:
        """The state after every token, (B, T, h, n, p); zero before the first token of a document."""
        first_BT = packing.positions_BT == 0
        first_BT = torch.cat([torch.zeros_like(first_BT[:, :1]), first_BT[:, 1:]], dim=1)  # the first may continue
        h_Bhnp = blank(k_BThn, v_BThp) if state is None else state.to(k_BThn.dtype)
        found = []
        for t in range(k_BThn.shape[1]):
            h_Bhnp = torch.where(first_BT[:, t, None, None, None], 0, h_Bhnp)
            h_Bhnp = self.step(h_Bhnp, k_BThn[:, t], v_BThp[:, t], f_BTh[:, t, :, None, None])
            found.append(h_Bhnp)
        return torch.stack(found, dim=1)

    def step(self, h_Bhnp: Tensor, k_Bhn: Tensor, v_Bhp: Tensor, f_Bh11: Tensor) -> Tensor:
        """h_t = f_t h_{t-1} + (1 - f_t) tanh(h_{t-1} W + k_t v_tᵀ)."""
        proposed_Bhnp = torch.tanh(h_Bhnp @ local(self.W) + k_Bhn[..., :, None] * v_Bhp[..., None, :])
        return f_Bh11 * h_Bhnp + (1 - f_Bh11) * proposed_Bhnp

    def read(self, q_BThn: Tensor, h_BThnp: Tensor) -> Tensor:
        """y_t = q_tᵀ h_t, (B, T, h, p)."""
        return torch.einsum("bthn,bthnp->bthp", q_BThn, h_BThnp)


def blank(k_BThn: Tensor, v_BThp: Tensor) -> Tensor:
    """A state without content."""
    return torch.zeros_like(k_BThn[:, 0, :, :, None] * v_BThp[:, 0, :, None])

"""mHC: several residual streams beside each other, mixed by a doubly stochastic matrix (arXiv 2512.24880, section 4).

Each token carries n streams S. A layer reads one vector from them, and writes its branch back to each:

    S' = H_res S + h_post ⊗ branch(h_pre · S)
    h_pre = sigmoid(.)   h_post = 2 sigmoid(.)   H_res = Sinkhorn(exp(.))

where the three maps are functions of the token's own streams, alpha · phi RMSNorm(vec S) + bias. `H_res[i, j]` is how
much of stream j goes to stream i. Sinkhorn ends on columns: they add up to 1 exactly, so the mean of the streams passes
a layer unchanged; rows add up to 1 as far as 20 rounds bring them (3e-8 for logits of about 1).

B sequences · T tokens · N streams · D hidden · M = N² + 2N maps
"""

import math

import torch
from torch import Tensor, nn

from contracts.spec import Recipe
from contracts.stacks.reference.model.blocks.common import Linear, PartsInterface, local

ROUNDS = 20  # of Sinkhorn, as in the paper


class HyperConnections(nn.Module):
    """How one layer reads from the streams and writes to them: `phi` (M, N·D), `bias` (M), `alpha` (3).

    Rows of `phi` and elements of `bias` are h_pre, then h_post, then H_res row by row. The maps are computed in float32
    at least.
    """

    summed: bool = True

    def __init__(self, recipe: Recipe, parts: PartsInterface) -> None:
        super().__init__()
        assert recipe.mhc is not None
        self.number = recipe.mhc.streams
        self.eps = recipe.norm_eps
        maps = self.number * (self.number + 2)
        self.phi = Linear(self.number * recipe.hidden, maps)
        self.bias = nn.Parameter(torch.zeros(maps))
        self.alpha = nn.Parameter(torch.full((3,), 0.01))

    def forward(self, streams_BTND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What is read (B, T, N), what is written (B, T, N), and stream to stream (B, T, N, N), for each token."""
        n = self.number
        pre_BTN, post_BTN, res_BTM = torch.split(self.maps(streams_BTND), [n, n, n * n], dim=-1)
        return pre_BTN.sigmoid(), 2 * post_BTN.sigmoid(), self.mixing(res_BTM.view(*res_BTM.shape[:-1], n, n))

    def maps(self, streams_BTND: Tensor) -> Tensor:
        """alpha · phi RMSNorm(vec S) + bias; the norm has no weight of its own."""
        flat = streams_BTND.flatten(-2)
        flat = flat.to(torch.promote_types(flat.dtype, torch.float32))
        flat = flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + self.eps)
        n = self.number
        alpha_M = local(self.alpha, self.summed)
        alpha_M = alpha_M.repeat_interleave(torch.tensor((n, n, n * n), device=flat.device), output_size=n * (n + 2))
        mapped_BTM: Tensor = self.phi(flat)
        return alpha_M * mapped_BTM + local(self.bias, self.summed)

    def mixing(self, logits_BTNN: Tensor) -> Tensor:
        """The doubly stochastic matrix nearest to exp(logits) in the sense of Sinkhorn: rows, then columns, in turn."""
        matrix = logits_BTNN
        for _ in range(ROUNDS):  # in logarithms, so that no row can underflow
            matrix = matrix - matrix.logsumexp(-1, keepdim=True)
            matrix = matrix - matrix.logsumexp(-2, keepdim=True)
        return matrix.exp()

    def read(self, streams_BTND: Tensor, pre_BTN: Tensor) -> Tensor:
        return torch.einsum("btn,btnd->btd", pre_BTN.to(streams_BTND.dtype), streams_BTND)

    def write(self, streams_BTND: Tensor, y_BTD: Tensor, post_BTN: Tensor, res_BTNN: Tensor) -> Tensor:
        mixed = torch.einsum("btij,btjd->btid", res_BTNN.to(streams_BTND.dtype), streams_BTND)
        return mixed + post_BTN.to(y_BTD.dtype).unsqueeze(-1) * y_BTD.unsqueeze(-2)


def initial_bias(number: int) -> Tensor:
    """The bias that makes a layer nearly a plain residual on the mean: reads 1/n of each, writes 1, keeps streams.

    A diagonal of 4 against 0 leaves 0.95 of a stream in its place for n = 4, and a gradient to the rest.
    """
    read = -math.log(number - 1) if number > 1 else 8.0  # sigmoid(8) is 0.9997: one stream has nothing to share
    return torch.cat((torch.full((number,), read), torch.zeros(number), (4 * torch.eye(number)).flatten()))

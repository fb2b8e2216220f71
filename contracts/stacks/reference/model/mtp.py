"""Multi-token prediction: heads that look one token further each (DeepSeek-V3, arXiv 2412.19437, section 2.2).

Depth k (from 1) joins the hidden state at t with the embedding of token t + k and predicts token t + k + 1:

    h'_t = projection [RMSNorm(h_t); RMSNorm(E[token_(t+k)])],   h^k = block pair(h'),   logits = head(RMSNorm(h^k))

Embedding and output projection are the model's own, so their gradients add up; nothing is detached. h^0 is the residual
stream before the model's final norm. A position whose token t + k lies outside its row or its document sees a zero
vector there and counts in no loss.

B sequences · T tokens · D hidden
"""

import torch
from torch import Tensor, nn

from contracts.spec import Recipe
from contracts.stacks.reference.model.blocks import Linear, Packing, PartsInterface

IGNORED = -100  # the label of a position that counts in no loss


class MtpModule(nn.Module):
    """One depth: two norms and a projection, attention and a dense MLP, and a norm before the shared head."""

    def __init__(self, recipe: Recipe, parts: PartsInterface) -> None:
        super().__init__()
        hidden, eps = recipe.hidden, recipe.norm_eps
        self.hidden_norm = parts.norm(hidden, eps)
        self.token_norm = parts.norm(hidden, eps)
        self.projection = Linear(2 * hidden, hidden)
        attends = parts.attention if recipe.mla is None else parts.latent_attention  # never sparse
        self.attention = parts.layer(recipe, parts, attends(recipe, parts))
        self.mlp = parts.layer(recipe, parts, parts.mlp(recipe, recipe.ffn_hidden))
        self.norm = parts.norm(hidden, eps)

    def forward(self, hidden_BTD: Tensor, ahead_BTD: Tensor, packing: Packing) -> Tensor:
        """The hidden state of this depth; `ahead_BTD` is the embedding of the token that the depth may see."""
        joined = torch.cat((self.hidden_norm(hidden_BTD), self.token_norm(ahead_BTD)), dim=-1)
        x_BTD: Tensor = self.projection(joined)
        for layer in (self.attention, self.mlp):
            x_BTD = layer(x_BTD, packing).y_BTD
        return x_BTD


def shift_left(values_BT: Tensor, packing: Packing, steps: int, otherwise: int) -> Tensor:
    """The value `steps` later in the same row and document, or `otherwise` where there is none."""
    later_BT = torch.full_like(values_BT, otherwise)
    within = packing.documents_BT[:, steps:] == packing.documents_BT[:, : max(values_BT.shape[1] - steps, 0)]
    later_BT[:, : within.shape[1]] = torch.where(within, values_BT[:, steps:], otherwise)
    return later_BT

"""Models and experts that leak from later tokens or between documents."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from contracts.law._bugs.numeric import (
    Layer,
    Model,
    MoE,
    MtpModule,
    Output,
    Packing,
    RMSNorm,
    Router,
    State,
    broken,
    derived,
    packing,
)


@broken(Model, "embed", "BLK-01e[custom-mixers]: token 6 changed: logits change from position 5 on")
def smooths_embeddings_over_neighbours(embed, self, tokens_BT):
    """Every embedding contains a little of the next token's."""
    x_BTD = embed(self, tokens_BT)
    x_BTD = x_BTD.clone()
    x_BTD[:, :-1] += 1e-3 * x_BTD[:, 1:].detach()
    return x_BTD


@broken(RMSNorm, "forward", "BLK-01e[sparse-attention]: token 8 changed: logits change from position 0 on")
def norms_over_the_sequence(forward, self, x):
    """The norm covers the whole row, so every position depends on later ones."""
    scale = torch.rsqrt(x.square().mean(dim=(-2, -1), keepdim=True) + self.eps)
    return x * scale * self.weight


@broken(
    MtpModule,
    "forward",
    "BLK-01e[streams-and-depths]: token 9 changed, depth 1: logits change from position 7 on",
    leanest="",
)
def depths_see_two_ahead(forward, self, hidden_BTD, ahead_BTD, packing):
    """A prediction depth joins the token two ahead instead of one."""
    return forward(self, hidden_BTD, ahead_BTD.roll(-1, dims=1), packing)


@broken(Model, "embed", "BLK-01e[the-last-token]: logits change from position None on, expected 12")
def shifts_inputs_right(embed, self, tokens_BT):
    """Inputs are shifted right although labels are shifted already, so the last token is never read."""
    x_BTD = embed(self, tokens_BT)
    return torch.cat((x_BTD[:, :1], x_BTD[:, :-1]), dim=1)


@broken(Model, "trunk", "BLK-02e[every-family]: the logits of row 0 from 5 on differs")
def drops_documents(trunk, self, x, pack):
    """Document numbers reach the loss and none of the layers."""
    return trunk(self, x, packing(pack.documents_BT))


@broken(Model, "run", "BLK-02e[streams-and-depths]: the logits of row 0 from 5 on differs")
def one_layer_forgets_documents(run, self, layer, x, pack):
    """Layer 2, the first with a state, is called without document numbers."""
    whole = Packing(torch.zeros_like(pack.documents_BT), pack.positions_BT, boundless=True)
    return run(self, layer, x, whole if layer is self.layers["2"] else pack)


@broken(MtpModule, "forward", "BLK-02e[streams-and-depths]: depth 1 of row 0 from 5 on differs", leanest="")
def depths_attend_across_documents(forward, self, hidden_BTD, ahead_BTD, packing):
    """The prediction heads ignore documents; the layers do not."""
    whole = Packing(torch.zeros_like(packing.documents_BT), packing.positions_BT)
    return forward(self, hidden_BTD, ahead_BTD, whole)


@broken(Layer, "branch", "BLK-02e[latent-and-sparse]: the logits of row 1 from 2 on differs")
def takes_documents_of_the_first_row(branch, self, x_BTD, packing):
    """All rows use the document mask of the first row."""
    return branch(self, x_BTD, packing._replace(documents_BT=packing.documents_BT[:1].expand(x_BTD.shape[:2])))


@broken(Router, "choose", "BLK-01b[dropless]: y before it differs")
def compares_tokens(choose, self, scores_BTE):
    """Router scores are centred over the sequence, so later tokens change the routing of earlier ones."""
    return choose(self, scores_BTE - scores_BTE.mean(1, keepdim=True))


@derived("BLK-01b[full]: y before it differs")
class GivesSlotsToTheLargestGates(MoE):
    """A full expert keeps the tokens with the largest gates, so a later token can take an earlier one's slot."""

    gates_NK: ClassVar[Any] = None

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        type(self).gates_NK = self.router(x_BTD).gates_BTK.detach().flatten(0, 1)
        return super().forward(x_BTD, packing, state)

    def drop(self, experts_BTK: Tensor) -> Tensor:
        if self.moe.capacity_factor is None:
            return super().drop(experts_BTK)
        order = type(self).gates_NK.amax(1).argsort(descending=True, stable=True)
        dropped = super().drop(experts_BTK.flatten(0, 1)[order].unsqueeze(0)).squeeze(0)
        return dropped[order.argsort()].view(experts_BTK.shape)


@broken(MoE, "drop", "BLK-01b[full-softmax]: y before it differs")
def keeps_the_last_tokens(drop, self, experts_BTK):
    """Slots are filled from the end of the batch."""
    return drop(self, experts_BTK.flip(0, 1)).flip(0, 1)

"""Models that leak from later tokens or between documents."""

import torch

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.model.blocks.common import Packing, RMSNorm, packing
from contracts.stacks.reference.model.hybrid_model import Layer, Model
from contracts.stacks.reference.model.mtp import MtpModule


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

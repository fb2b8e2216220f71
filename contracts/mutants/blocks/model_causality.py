"""Models that leak from later tokens or between documents."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.stacks.reference.model.blocks.common import Output, Packing, RMSNorm, packing
from contracts.stacks.reference.model.hybrid_model import Layer, Model
from contracts.stacks.reference.model.mtp import MtpModule


class LooksOneAhead(Model):
    def embed(self, tokens_BT: Tensor) -> Tensor:
        x_BTD = super().embed(tokens_BT)
        x_BTD = x_BTD.clone()
        x_BTD[:, :-1] += 1e-3 * x_BTD[:, 1:].detach()
        return x_BTD


@mutant(of="BLK-01e", case="custom-mixers", says="token 6 changed: logits change from position 5 on")
class SmoothsEmbeddingsOverNeighbours(Exchanged):
    """Every embedding contains a little of the next token's."""

    exchange = {"model": LooksOneAhead}


class NormsTheRow(RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.square().mean(dim=(-2, -1), keepdim=True) + self.eps)
        return x * scale * self.weight


@mutant(of="BLK-01e", case="sparse-attention", says="token 8 changed: logits change from position 0 on")
class NormsOverTheSequence(Exchanged):
    """The norm covers the whole row, so every position depends on later ones."""

    exchange = {"norm": NormsTheRow}


class LooksTwoAhead(MtpModule):
    def forward(self, hidden_BTD: Tensor, ahead_BTD: Tensor, packing: Packing) -> Tensor:
        return super().forward(hidden_BTD, ahead_BTD.roll(-1, dims=1), packing)


@mutant(
    of="BLK-01e",
    case="streams-and-depths",
    says="token 9 changed, depth 1: logits change from position 7 on",
    leanest="",
)
class DepthsSeeTwoAhead(Exchanged):
    """A prediction depth joins the token two ahead instead of one."""

    exchange = {"prediction": LooksTwoAhead}


class Deaf(Model):
    def embed(self, tokens_BT: Tensor) -> Tensor:
        x_BTD = super().embed(tokens_BT)
        return torch.cat((x_BTD[:, :1], x_BTD[:, :-1]), dim=1)


@mutant(of="BLK-01e", case="the-last-token", says="logits change from position None on, expected 12")
class ShiftsInputsRight(Exchanged):
    """Inputs are shifted right although labels are shifted already, so the last token is never read."""

    exchange = {"model": Deaf}


class NeverPacked(Model):
    def trunk(self, x: Tensor, pack: Packing) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        return super().trunk(x, packing(pack.documents_BT))


@mutant(of="BLK-02e", case="every-family", says="the logits of row 0 from 5 on differs")
class DropsDocuments(Exchanged):
    """Document numbers reach the loss and none of the layers."""

    exchange = {"model": NeverPacked}


class Forgetful(Model):
    def run(self, layer: nn.Module, x: Tensor, pack: Packing) -> Output:
        whole = Packing(torch.zeros_like(pack.documents_BT), pack.positions_BT, boundless=True)
        return super().run(layer, x, whole if layer is self.layers["2"] else pack)


@mutant(of="BLK-02e", case="streams-and-depths", says="the logits of row 0 from 5 on differs")
class OneLayerForgetsDocuments(Exchanged):
    """Layer 2, the first with a state, is called without document numbers."""

    exchange = {"model": Forgetful}


class DepthsNeverPacked(MtpModule):
    def forward(self, hidden_BTD: Tensor, ahead_BTD: Tensor, packing: Packing) -> Tensor:
        whole = Packing(torch.zeros_like(packing.documents_BT), packing.positions_BT)
        return super().forward(hidden_BTD, ahead_BTD, whole)


@mutant(of="BLK-02e", case="streams-and-depths", says="depth 1 of row 0 from 5 on differs", leanest="")
class DepthsAttendAcrossDocuments(Exchanged):
    """The prediction heads ignore documents; the layers do not."""

    exchange = {"prediction": DepthsNeverPacked}


class ByRow(Layer):
    def branch(self, x_BTD: Tensor, packing: Packing) -> Output:
        return super().branch(x_BTD, packing._replace(documents_BT=packing.documents_BT[:1].expand(x_BTD.shape[:2])))


@mutant(of="BLK-02e", case="latent-and-sparse", says="the logits of row 1 from 2 on differs")
class TakesDocumentsOfTheFirstRow(Exchanged):
    """All rows use the document mask of the first row."""

    exchange = {"layer": ByRow}

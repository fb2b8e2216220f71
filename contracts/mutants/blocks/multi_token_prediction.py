"""Multi-token prediction heads with a wrong input token, a wrong label, or no gradient."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants._support.patched_functions import swapped
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.model import hybrid_model
from contracts.stacks.reference.model.blocks.common import Packing
from contracts.stacks.reference.model.hybrid_model import Model, ModelOutput
from contracts.stacks.reference.model.mtp import IGNORED, MtpModule, shift_left
from contracts.stacks.reference.model.parts_interface import PartsInterface
from contracts.stacks.reference.stack import Reference


class TokenFirst(MtpModule):
    def forward(self, hidden_BTD: Tensor, ahead_BTD: Tensor, packing: Packing) -> Tensor:
        half = self.projection.weight.shape[1] // 2
        with torch.no_grad():
            self.projection.weight.copy_(self.projection.weight.roll(half, dims=1))
        return super().forward(hidden_BTD, ahead_BTD, packing)


@mutant(of="BLK-06p", case="two-depths", says="the logits of depth 1 differs")
class JoinsTheTokenFirst(Exchanged):
    """The projection reads [token; hidden state], the reverse order. A published checkpoint loads without an error."""

    exchange = {"prediction": TokenFirst}


class _UsualEpsilon(MtpModule):
    def __init__(self, recipe: Recipe, parts: PartsInterface) -> None:
        super().__init__(recipe, parts)
        self.token_norm.eps = 1e-5


@mutant(of="BLK-06p", case="wide-eps", says="the logits of depth 1 differs")
class HasTheUsualEpsilon(Exchanged):
    """The norm of the token ahead has its class's default epsilon, whatever the recipe says."""

    exchange = {"prediction": _UsualEpsilon}


class Unnormed(MtpModule):
    def forward(self, hidden_BTD: Tensor, ahead_BTD: Tensor, packing: Packing) -> Tensor:
        rescaled_BTD = self.token_norm.weight * ahead_BTD
        x_BTD: Tensor = self.projection(torch.cat((self.hidden_norm(hidden_BTD), rescaled_BTD), dim=-1))
        for layer in (self.attention, self.mlp):
            x_BTD = layer(x_BTD, packing).y_BTD
        return x_BTD


@mutant(of="BLK-06p", case="latent-attention-swiglu", says="the logits of depth 1 differs")
class JoinsTheBareEmbedding(Exchanged):
    """The token embedding is scaled by the norm's weight and not normed, so its share stays small."""

    exchange = {"prediction": Unnormed}


class _Chain(Model):
    """Depth by depth; `start` and `onward` say what the first reads, and what the next one does."""

    def start(self, hidden_BTD: Tensor) -> Tensor:
        return hidden_BTD

    def onward(self, read_BTD: Tensor, out_BTD: Tensor, prediction: nn.Module) -> Tensor:
        return out_BTD

    def look_ahead(self, hidden_BTD: Tensor, tokens_BT: Tensor, pack: Packing) -> list[Tensor]:
        found, read_BTD = [], self.start(hidden_BTD)
        for depth, prediction in enumerate(self.mtp):
            later_BT = shift_left(tokens_BT, pack, depth + 1, IGNORED)
            seen_BTD = self.embed(later_BT.clamp(min=0)) * (later_BT >= 0).unsqueeze(-1)
            out_BTD = prediction(read_BTD, seen_BTD, pack)
            found.append(self.predict(prediction.norm(out_BTD)))  # type: ignore[operator]  # modules type as Tensor
            read_BTD = self.onward(read_BTD, out_BTD, prediction)
        return found


class _BehindTheFinalNorm(_Chain):
    def start(self, hidden_BTD: Tensor) -> Tensor:
        return self.norm(hidden_BTD)  # type: ignore[no-any-return]  # calls of modules are untyped


class _BehindEachNorm(_BehindTheFinalNorm):
    def onward(self, read_BTD: Tensor, out_BTD: Tensor, prediction: nn.Module) -> Tensor:
        return prediction.norm(out_BTD)  # type: ignore[operator, no-any-return]  # so are their parts


@mutant(of="BLK-06m", case="under-prediction-heads", says="the logits of depth 1 differs")
@mutant(of="BLK-06p", case="two-depths", says="the logits of depth 1 differs")
class ReadsBehindTheNorms(Exchanged):
    """A depth reads the hidden state after the final norm, or after that of the depth below, and norms it again."""

    exchange = {"model": _BehindEachNorm}


@mutant(of="BLK-06m", case="under-prediction-heads", says="the logits of depth 1 differs")
@mutant(of="BLK-06p", case="two-depths", says="the logits of depth 1 differs")
class DeclaresNormedStates(Reference):
    """Declares that depths read normed states, as a published checkpoint wants it, and reads the residual stream."""

    conventions = {"prediction-input": "normed"}


@mutant(of="BLK-06p", case="two-depths", says="the logits of depth 2 differs")
class NormsTheFirstStateAlone(Exchanged):
    """Declares that depths read normed states; only the first one does, the next reads the stream of the one below."""

    conventions = {"prediction-input": "normed"}
    exchange = {"model": _BehindTheFinalNorm}


class EachFromTheModel(_Chain):
    def onward(self, read_BTD: Tensor, out_BTD: Tensor, prediction: nn.Module) -> Tensor:
        return read_BTD


@mutant(of="BLK-06p", case="two-depths", says="the logits of depth 2 differs")
class StartsEveryDepthAtTheModel(Exchanged):
    """Depth 2 reads the model's hidden state instead of depth 1's, so it misses a token."""

    exchange = {"model": EachFromTheModel}


class FinalNorm(Model):
    def look_ahead(self, hidden_BTD: Tensor, tokens_BT: Tensor, pack: Packing) -> list[Tensor]:
        for prediction in self.mtp:
            prediction.norm = self.norm
        return super().look_ahead(hidden_BTD, tokens_BT, pack)


@mutant(of="BLK-06p", case="tied-embeddings", says="the logits of depth 1 differs")
class SharesTheFinalNorm(Exchanged):
    """A depth ends in the model's final norm; its own norm is loaded and never used."""

    exchange = {"model": FinalNorm}


class Rolls(Model):
    def forward(self, tokens_BT: Tensor, labels_BT: Tensor, documents_BT: Tensor | None = None) -> ModelOutput:
        out = super().forward(tokens_BT, labels_BT, documents_BT)
        for depth, logits_BTV in enumerate(out.mtp_logits):
            name, targets_BT = f"mtp.{depth}", labels_BT.roll(-depth - 1, dims=1)
            out.sums[name], out.counts[name] = self.cross_entropy(logits_BTV, targets_BT)
        return out


@mutant(of="BLK-06q", case="packed", says="mtp loss is")
class RollsLabels(Exchanged):
    """Labels are rolled, so a row's end is trained on its first tokens, a document's end on the next document's."""

    exchange = {"model": Rolls}


class Crosses(Model):
    def forward(self, tokens_BT: Tensor, labels_BT: Tensor, documents_BT: Tensor | None = None) -> ModelOutput:
        out = super().forward(tokens_BT, labels_BT, documents_BT)
        for depth, logits_BTV in enumerate(out.mtp_logits):
            name, targets_BT = f"mtp.{depth}", torch.full_like(labels_BT, IGNORED)
            targets_BT[:, : -depth - 1] = labels_BT[:, depth + 1 :]
            out.sums[name], out.counts[name] = self.cross_entropy(logits_BTV, targets_BT)
        return out


@mutant(of="BLK-06q", case="documents-shorter-than-the-depth", says="mtp loss is")
class PredictsTheNextDocument(Exchanged):
    """Labels past the end of the row are masked, and labels past the end of a document are not."""

    exchange = {"model": Crosses}


class OwnLabels(Model):
    def forward(self, tokens_BT: Tensor, labels_BT: Tensor, documents_BT: Tensor | None = None) -> ModelOutput:
        out = super().forward(tokens_BT, labels_BT, documents_BT)
        for depth, logits_BTV in enumerate(out.mtp_logits):
            out.sums[f"mtp.{depth}"], out.counts[f"mtp.{depth}"] = self.cross_entropy(logits_BTV, labels_BT)
        return out


@mutant(of="BLK-06q", case="one-document-a-row", says="mtp loss is")
class HoldsDepthsToTheNextToken(Exchanged):
    """Every depth is trained on the label of its own position, a token that it has just read."""

    exchange = {"model": OwnLabels}


class CountsOfTheFirst(Model):
    def objective(self, sums: Mapping[str, Tensor], counts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return super().objective(sums, {name: counts["lm" if "mtp" in name else name] for name in counts})


@mutant(of="BLK-06q", case="three-depths", says="mtp loss is", bugs=("DPS-24",))
class DividesDepthsByTheFirstHeadsLabels(Exchanged):
    """Each depth divides by the main head's label count, so depths that lose labels weigh too little."""

    exchange = {"model": CountsOfTheFirst}


class Adds(Model):
    def share(self, loss: str) -> float:
        depths = self.recipe.mtp.depth if self.recipe.mtp else 1
        return super().share(loss) * (depths if loss == "mtp" else 1)


@mutant(of="BLK-06q", case="three-depths", says="total holds")
class AddsDepthsUp(Exchanged):
    """The depths' losses are summed instead of averaged before weighting."""

    exchange = {"model": Adds}


class DetachesHidden(Model):
    def look_ahead(self, hidden_BTD: Tensor, tokens_BT: Tensor, pack: Packing) -> list[Tensor]:
        return super().look_ahead(hidden_BTD.detach(), tokens_BT, pack)


@mutant(of="BLK-06r", case="a-whole-model", says="gets no gradient from the depths")
class LooksAheadDetached(Exchanged):
    """The hidden state is detached, so the depths do not train the layers."""

    exchange = {"model": DetachesHidden}


class CopiesTheHead(Model):
    def look_ahead(self, hidden_BTD: Tensor, tokens_BT: Tensor, pack: Packing) -> list[Tensor]:
        assert self.head is not None
        held = self.head.weight
        del self.head.weight
        self.head.weight = held.detach()  # a tensor in a parameter's place
        found = super().look_ahead(hidden_BTD, tokens_BT, pack)
        del self.head.weight
        self.head.weight = held
        return found


@mutant(of="BLK-06r", case="untied", says="head.weight gets no gradient from the depths")
class CopiesTheOutputProjection(Exchanged):
    """Depths use a detached copy of the output projection, so its gradient from the depths is lost."""

    exchange = {"model": CopiesTheHead}


class OneLess(Model):
    def look_ahead(self, hidden_BTD: Tensor, tokens_BT: Tensor, pack: Packing) -> list[Tensor]:
        before_BT = torch.cat((tokens_BT[:, :1], tokens_BT[:, :-1]), dim=1)
        return super().look_ahead(hidden_BTD, before_BT, pack)


@mutant(of="BLK-06u", case="in-the-middle", says="on, expected 8")
class SeesItsOwnToken(Exchanged):
    """Depth k reads the token at t + k - 1, which the state below has read already."""

    exchange = {"model": OneLess}


class OneMore(Model):
    def look_ahead(self, hidden_BTD: Tensor, tokens_BT: Tensor, pack: Packing) -> list[Tensor]:
        after_BT = torch.cat((tokens_BT[:, 1:], tokens_BT[:, -1:]), dim=1)
        return super().look_ahead(hidden_BTD, after_BT, pack)


@mutant(of="BLK-06u", case="in-the-middle", says="on, expected 8")
class SeesItsAnswer(Exchanged):
    """Depth k reads the token at t + k + 1, the one that it predicts."""

    exchange = {"model": OneMore}


class Mixes(MtpModule):
    def forward(self, hidden_BTD: Tensor, ahead_BTD: Tensor, packing: Packing) -> Tensor:
        return super().forward(hidden_BTD, ahead_BTD + ahead_BTD.mean(0, keepdim=True), packing)


@mutant(of="BLK-06u", case="the-last", says="another row changes")
class MixesRows(Exchanged):
    """The embedding of the token ahead includes a mean over the batch."""

    exchange = {"prediction": Mixes}


class _StaysInTheRow(Model):
    def forward(self, tokens_BT: Tensor, labels_BT: Tensor, documents_BT: Tensor | None = None) -> ModelOutput:
        def shifted(values_BT: Tensor, packing: Packing, steps: int, otherwise: int) -> Tensor:
            return shift_left(values_BT, packing, min(steps, values_BT.shape[1] - 1), otherwise)

        with swapped(hybrid_model, "shift_left", shifted):
            return super().forward(tokens_BT, labels_BT, documents_BT)


@mutant(of="BLK-06q", case="rows-shorter-than-the-depth", says="mtp loss is")
@mutant(of="BLK-06q", case="rows-of-one-token", says="mtp loss is")
class LooksNoFurtherThanTheRow(Exchanged):
    """A distance is clamped to the row, so that the deepest heads learn the last label, which is not theirs."""

    exchange = {"model": _StaysInTheRow}

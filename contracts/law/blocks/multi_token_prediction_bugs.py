"""Multi-token prediction heads with a wrong input token, a wrong label, or no gradient."""

from unittest import mock

import torch
from torch import Tensor, nn

from contracts.law._bugs.numeric import (
    IGNORED,
    Model,
    MtpModule,
    Packing,
    broken,
    derived,
    hybrid_model,
    shift_left,
    with_attributes,
)


@broken(MtpModule, "forward", "BLK-06p[two-depths]: the logits of depth 1 differs")
def joins_the_token_first(forward, self, hidden_BTD, ahead_BTD, packing):
    """The projection reads [token; hidden state], the reverse order. A published checkpoint loads without an error."""
    half = self.projection.weight.shape[1] // 2
    with torch.no_grad():
        self.projection.weight.copy_(self.projection.weight.roll(half, dims=1))
    return forward(self, hidden_BTD, ahead_BTD, packing)


@broken(MtpModule, "__init__", "BLK-06p[wide-eps]: the logits of depth 1 differs")
def has_the_usual_epsilon(init, self, recipe, parts):
    """The norm of the token ahead has its class's default epsilon, whatever the recipe says."""
    init(self, recipe, parts)
    self.token_norm.eps = 1e-5


@broken(MtpModule, "forward", "BLK-06p[latent-attention-swiglu]: the logits of depth 1 differs")
def joins_the_bare_embedding(forward, self, hidden_BTD, ahead_BTD, packing):
    """The token embedding is scaled by the norm's weight and not normed, so its share stays small."""
    rescaled_BTD = self.token_norm.weight * ahead_BTD
    x_BTD = self.projection(torch.cat((self.hidden_norm(hidden_BTD), rescaled_BTD), dim=-1))
    for layer in (self.attention, self.mlp):
        x_BTD = layer(x_BTD, packing).y_BTD
    return x_BTD


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


@broken(
    _BehindTheFinalNorm,
    "onward",
    "BLK-06m[under-prediction-heads]: the logits of depth 1 differs",
    "BLK-06p[two-depths]: the logits of depth 1 differs",
)
def reads_behind_the_norms(onward, self, read_BTD, out_BTD, prediction):
    """A depth reads the hidden state after the final norm, or after that of the depth below, and norms it again."""
    return prediction.norm(out_BTD)


with_attributes(
    "DeclaresNormedStates",
    "Declares that depths read normed states, as a published checkpoint wants it, and reads the residual stream.",
    "BLK-06p[two-depths]: the logits of depth 1 differs",
    "BLK-06m[under-prediction-heads]: the logits of depth 1 differs",
    conventions={"prediction-input": "normed"},
)


@derived("BLK-06p[two-depths]: the logits of depth 2 differs", conventions={"prediction-input": "normed"})
class NormsTheFirstStateAlone(_BehindTheFinalNorm):
    """Declares that depths read normed states; only the first one does, the next reads the stream of the one below."""


@broken(_Chain, "onward", "BLK-06p[two-depths]: the logits of depth 2 differs")
def starts_every_depth_at_the_model(onward, self, read_BTD, out_BTD, prediction):
    """Depth 2 reads the model's hidden state instead of depth 1's, so it misses a token."""
    return read_BTD


@broken(Model, "look_ahead", "BLK-06p[tied-embeddings]: the logits of depth 1 differs")
def shares_the_final_norm(look_ahead, self, hidden_BTD, tokens_BT, pack):
    """A depth ends in the model's final norm; its own norm is loaded and never used."""
    for prediction in self.mtp:
        prediction.norm = self.norm
    return look_ahead(self, hidden_BTD, tokens_BT, pack)


@broken(Model, "forward", "BLK-06q[packed]: mtp loss is")
def rolls_labels(forward, self, tokens_BT, labels_BT, documents_BT=None):
    """Labels are rolled, so a row's end is trained on its first tokens, a document's end on the next document's."""
    out = forward(self, tokens_BT, labels_BT, documents_BT)
    for depth, logits_BTV in enumerate(out.mtp_logits):
        name, targets_BT = f"mtp.{depth}", labels_BT.roll(-depth - 1, dims=1)
        out.sums[name], out.counts[name] = self.cross_entropy(logits_BTV, targets_BT)
    return out


@broken(Model, "forward", "BLK-06q[documents-shorter-than-the-depth]: mtp loss is")
def predicts_the_next_document(forward, self, tokens_BT, labels_BT, documents_BT=None):
    """Labels past the end of the row are masked, and labels past the end of a document are not."""
    out = forward(self, tokens_BT, labels_BT, documents_BT)
    for depth, logits_BTV in enumerate(out.mtp_logits):
        name, targets_BT = f"mtp.{depth}", torch.full_like(labels_BT, IGNORED)
        targets_BT[:, : -depth - 1] = labels_BT[:, depth + 1 :]
        out.sums[name], out.counts[name] = self.cross_entropy(logits_BTV, targets_BT)
    return out


@broken(Model, "forward", "BLK-06q[one-document-a-row]: mtp loss is")
def holds_depths_to_the_next_token(forward, self, tokens_BT, labels_BT, documents_BT=None):
    """Every depth is trained on the label of its own position, a token that it has just read."""
    out = forward(self, tokens_BT, labels_BT, documents_BT)
    for depth, logits_BTV in enumerate(out.mtp_logits):
        out.sums[f"mtp.{depth}"], out.counts[f"mtp.{depth}"] = self.cross_entropy(logits_BTV, labels_BT)
    return out


@broken(Model, "objective", "BLK-06q[three-depths]: mtp loss is", bugs=("DPS-24",))
def divides_depths_by_the_first_heads_labels(objective, self, sums, counts):
    """Each depth divides by the main head's label count, so depths that lose labels weigh too little."""
    return objective(self, sums, {name: counts["lm" if "mtp" in name else name] for name in counts})


@broken(Model, "share", "BLK-06q[three-depths]: total holds")
def adds_depths_up(share, self, loss):
    """The depths' losses are summed instead of averaged before weighting."""
    depths = self.recipe.mtp.depth if self.recipe.mtp else 1
    return share(self, loss) * (depths if loss == "mtp" else 1)


@broken(Model, "look_ahead", "BLK-06r[a-whole-model]: gets no gradient from the depths")
def looks_ahead_detached(look_ahead, self, hidden_BTD, tokens_BT, pack):
    """The hidden state is detached, so the depths do not train the layers."""
    return look_ahead(self, hidden_BTD.detach(), tokens_BT, pack)


@broken(Model, "look_ahead", "BLK-06r[untied]: head.weight gets no gradient from the depths")
def copies_the_output_projection(look_ahead, self, hidden_BTD, tokens_BT, pack):
    """Depths use a detached copy of the output projection, so its gradient from the depths is lost."""
    held = self.head.weight
    del self.head.weight
    self.head.weight = held.detach()  # a tensor in a parameter's place
    found = look_ahead(self, hidden_BTD, tokens_BT, pack)
    del self.head.weight
    self.head.weight = held
    return found


@broken(Model, "look_ahead", "BLK-06u[in-the-middle]: on, expected 8")
def sees_its_own_token(look_ahead, self, hidden_BTD, tokens_BT, pack):
    """Depth k reads the token at t + k - 1, which the state below has read already."""
    before_BT = torch.cat((tokens_BT[:, :1], tokens_BT[:, :-1]), dim=1)
    return look_ahead(self, hidden_BTD, before_BT, pack)


@broken(Model, "look_ahead", "BLK-06u[in-the-middle]: on, expected 8")
def sees_its_answer(look_ahead, self, hidden_BTD, tokens_BT, pack):
    """Depth k reads the token at t + k + 1, the one that it predicts."""
    after_BT = torch.cat((tokens_BT[:, 1:], tokens_BT[:, -1:]), dim=1)
    return look_ahead(self, hidden_BTD, after_BT, pack)


@broken(MtpModule, "forward", "BLK-06u[the-last]: another row changes")
def mixes_rows(forward, self, hidden_BTD, ahead_BTD, packing):
    """The embedding of the token ahead includes a mean over the batch."""
    return forward(self, hidden_BTD, ahead_BTD + ahead_BTD.mean(0, keepdim=True), packing)


@broken(
    Model, "forward", "BLK-06q[rows-of-one-token]: mtp loss is", "BLK-06q[rows-shorter-than-the-depth]: mtp loss is"
)
def looks_no_further_than_the_row(forward, self, tokens_BT, labels_BT, documents_BT=None):
    """A distance is clamped to the row, so that the deepest heads learn the last label, which is not theirs."""

    def shifted(values_BT, packing, steps, otherwise):
        return shift_left(values_BT, packing, min(steps, values_BT.shape[1] - 1), otherwise)

    with mock.patch.object(hybrid_model, "shift_left", shifted):
        return forward(self, tokens_BT, labels_BT, documents_BT)

"""The whole model: embeddings, layers by the pattern, final norm, output projection, multi-token prediction heads.

Names of parameters come from spec/blocks.py: `layers.3.norm.weight`, `layers.3.mixer.wq.weight`, `embedding.weight`,
`head.weight`. Layers stand in a dictionary by their number in the whole model, so that a pipeline stage that owns some
of them keeps their names.

A forward pass gives sums over tokens and what they count, never means: whoever knows the whole batch divides.

B sequences · T tokens · D hidden · N streams · V vocabulary
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from contracts.spec import Mode, Recipe
from contracts.spec import pattern as patterns
from contracts.stacks.reference.model.blocks import PartsInterface
from contracts.stacks.reference.model.blocks.common import Output, Packing, local, packing
from contracts.stacks.reference.model.blocks.sequence import WHOLE_SEQUENCE, SequenceView
from contracts.stacks.reference.model.mtp import IGNORED, shift_left

if TYPE_CHECKING:
    from contracts.stacks.reference.model.blocks import HyperConnections

ACTIVATIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class ModelOutput(NamedTuple):
    """What a pass gives.

    `sums` are over the valid labels (`lm`, `mtp.0` …), the sequences (`aux`) or the tokens (`z`), `counts` how many of
    those there were; auxiliary losses are added up over the layers. `seen` has the counters of `layers.3.counts` and
    the like.
    """

    logits_BTV: Tensor
    mtp_logits: tuple[Tensor, ...]
    sums: dict[str, Tensor]
    counts: dict[str, Tensor]
    seen: dict[str, Tensor]


class Vocabulary:
    """The two ends of the model, where tokens become vectors and vectors tokens; here the whole of it is on this rank.

    `tensor_parallel.py` has the one whose rows lie on several ranks.
    """

    def lookup(self, tokens_BT: Tensor, weight_VD: Tensor) -> Tensor:
        return F.embedding(tokens_BT, weight_VD)

    def here(self, x_BT: Tensor) -> Tensor:
        """Of something given for each token, what belongs to the tokens of this rank's residual stream."""
        return x_BT

    def logits(self, hidden_BTD: Tensor, weight_VD: Tensor) -> Tensor:
        return F.linear(hidden_BTD, weight_VD.to(hidden_BTD.dtype))

    def cross_entropy(self, logits_NV: Tensor, labels_N: Tensor) -> Tensor:
        """The sum over valid labels."""
        return F.cross_entropy(logits_NV, labels_N, ignore_index=IGNORED, reduction="sum")


class Layer(nn.Module):
    """A residual layer: x + dropout(mixer(norm(x))), or its form over the streams of hyper-connections."""

    def __init__(
        self, recipe: Recipe, parts: PartsInterface, mixer: nn.Module, streams: HyperConnections | None = None
    ) -> None:
        super().__init__()
        self.norm = parts.norm(recipe.hidden, recipe.norm_eps)
        self.mixer = mixer
        self.streams = streams
        self.dropout = recipe.dropout

    def forward(self, x: Tensor, packing: Packing) -> Output:
        """The residual stream after the layer: (B, T, D), or (B, T, N, D) where there are several."""
        if self.streams is not None:
            pre_BTN, post_BTN, res_BTNN = self.streams(x)
            out = self.branch(self.streams.read(x, pre_BTN), packing)
            return Output(self.streams.write(x, out.y_BTD, post_BTN, res_BTNN), out.losses, out.state, out.seen)
        if x.dim() == 3:
            out = self.branch(x, packing)
            return Output(x + out.y_BTD, out.losses, out.state, out.seen)
        out = self.branch(x.mean(-2), packing)  # without maps of its own: reads the mean, writes 1 to each
        return Output(x + out.y_BTD.unsqueeze(-2), out.losses, out.state, out.seen)

    def branch(self, x_BTD: Tensor, packing: Packing) -> Output:
        """The mixer's output; its last state is dropped."""
        out: Output = self.mixer(self.norm(x_BTD), packing, {})
        return Output(self.drop(out.y_BTD), out.losses, {}, out.seen)

    def drop(self, y_BTD: Tensor) -> Tensor:
        return F.dropout(y_BTD, self.dropout, self.training)


class Model(nn.Module):
    """The model that a recipe becomes. Parameters are float32; `activations` is the dtype they are applied in.

    `recompute` recomputes each layer in the backward pass instead of keeping its activations.
    """

    row: SequenceView = WHOLE_SEQUENCE

    def __init__(self, recipe: Recipe, mode: Mode, parts: PartsInterface) -> None:
        super().__init__()
        self.recipe, self.mode = recipe, mode
        self.activations = ACTIVATIONS[recipe.dtype]
        self.recompute = recipe.recompute == "full"
        self.weight_of = parts.moe.weight_of
        self.vocabulary = Vocabulary()
        self.embedding = nn.Embedding(recipe.vocab, recipe.hidden)
        self.layers = nn.ModuleDict({str(number): self.layer(number, parts) for number in range(recipe.depth)})
        self.norm = parts.norm(recipe.hidden, recipe.norm_eps)
        self.head = nn.Linear(recipe.hidden, recipe.vocab, bias=False) if recipe.untied_embeddings else None
        depths = recipe.mtp.depth if recipe.mtp else 0
        self.mtp = nn.ModuleList(parts.prediction(recipe, parts) for _ in range(depths))

    def layer(self, number: int, parts: PartsInterface) -> Layer:
        """One layer (0-based) of the pattern; hyper-connections stand on attention."""
        recipe = self.recipe
        attends = patterns.parse(recipe.pattern, recipe.depth).letters[number] == "A"
        streams = parts.streams(recipe, parts) if recipe.mhc and attends else None
        layer: Layer = parts.layer(recipe, parts, parts.mixer(recipe, number, self.mode), streams)
        return layer

    def forward(self, tokens_BT: Tensor, labels_BT: Tensor, documents_BT: Tensor | None = None) -> ModelOutput:
        """One pass over packed sequences; labels are -100 where none counts.

        Every rank is given whole rows, and what looks to other tokens (labels, documents, what lies ahead) is read off
        before its own tokens are cut out.

        Args:
            tokens_BT, labels_BT: int64, (B, T). documents_BT: numbers rising along T; None means one a row.
        """
        pack = packing(tokens_BT, documents_BT)
        x, losses, seen = self.trunk(self.widen(self.embed(self.row.own(tokens_BT))), self.row.packing(pack))
        hidden_BTD = self.narrow(x)
        logits_BTV = self.predict(self.norm(hidden_BTD))
        sums, counts = {}, {}
        sums["lm"], counts["lm"] = self.cross_entropy(logits_BTV, self.row.own(labels_BT))
        further = self.look_ahead(hidden_BTD, tokens_BT, pack)
        for depth, further_BTV in enumerate(further):
            targets_BT = self.row.own(shift_left(labels_BT, pack, depth + 1, IGNORED))
            sums[f"mtp.{depth}"], counts[f"mtp.{depth}"] = self.cross_entropy(further_BTV, targets_BT)
        for name, loss in losses.items():  # means of what was given: of sequences for aux, of tokens for z
            number = tokens_BT.shape[0] if name == "aux" else tokens_BT.numel()
            sums[name], counts[name] = loss * number, torch.tensor(number, device=loss.device)
        return ModelOutput(logits_BTV=logits_BTV, mtp_logits=tuple(further), sums=sums, counts=counts, seen=seen)

    def embed(self, tokens_BT: Tensor) -> Tensor:
        return self.vocabulary.lookup(tokens_BT, local(self.embedding.weight)).to(self.activations)

    def widen(self, x_BTD: Tensor) -> Tensor:
        """One copy for each stream, where there are several."""
        if self.recipe.mhc is None:
            return x_BTD
        return x_BTD.unsqueeze(-2).repeat(1, 1, self.recipe.mhc.streams, 1)

    def narrow(self, x: Tensor) -> Tensor:
        """The mean of the streams, where there are several."""
        return x if self.recipe.mhc is None else x.mean(-2)

    def trunk(self, x: Tensor, pack: Packing) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """The layers that are here, in order: the stream after them, their losses added up, what they saw."""
        losses: dict[str, Tensor] = {}
        seen: dict[str, Tensor] = {}
        for number, layer in self.layers.items():
            out = self.run(layer, x, pack)
            x = out.y_BTD
            for name, loss in out.losses.items():
                losses[name] = losses[name] + loss if name in losses else loss
            seen |= {f"layers.{number}.{name}": each for name, each in out.seen.items()}
        return x, losses, seen

    def run(self, layer: nn.Module, x: Tensor, pack: Packing) -> Output:
        """One layer, recomputed in the backward pass if so asked; what it saw is from the first run."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(layer, x, pack, use_reentrant=False)  # type: ignore[no-any-return]  # torch's is untyped
        return layer(x, pack)  # type: ignore[no-any-return]  # so are calls of modules

    def predict(self, hidden_BTD: Tensor) -> Tensor:
        """Logits in float32 at least, of a normed hidden state."""
        weight_VD = self.embedding.weight if self.head is None else self.head.weight
        logits_BTV = self.vocabulary.logits(hidden_BTD, local(weight_VD))
        return logits_BTV.to(torch.promote_types(logits_BTV.dtype, torch.float32))

    def look_ahead(self, hidden_BTD: Tensor, tokens_BT: Tensor, pack: Packing) -> list[Tensor]:
        """The logits of each depth of multi-token prediction."""
        found = []
        for depth, prediction in enumerate(self.mtp):
            later_BT = self.row.own(shift_left(tokens_BT, pack, depth + 1, IGNORED))
            seen_BTD = self.embed(later_BT.clamp(min=0)) * self.vocabulary.here(later_BT >= 0).unsqueeze(-1)
            hidden_BTD = prediction(hidden_BTD, seen_BTD, self.row.packing(pack))
            found.append(self.predict(prediction.norm(hidden_BTD)))  # type: ignore[operator]  # modules type as Tensor
        return found

    def cross_entropy(self, logits_BTV: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
        """The sum over valid labels, and how many there are."""
        flat, labels = logits_BTV.flatten(0, 1), labels_BT.flatten()
        return self.vocabulary.cross_entropy(flat, labels), (labels != IGNORED).sum()

    def objective(self, sums: Mapping[str, Tensor], counts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Losses by name from sums and what they count, and `total`, what is minimised.

        Linear in `sums`: a part of a batch with the whole batch's counts gives its part of the gradient. `mtp` is the
        mean over depths, each over its own valid labels.
        """
        means = {name: each / counts[name].clamp(min=1) for name, each in sums.items()}
        depths = [means.pop(name) for name in sorted(sums) if name.startswith("mtp.")]
        if depths and self.recipe.mtp is not None:
            means["mtp"] = torch.stack(depths).mean()
        return means | {"total": sum((self.share(name) * each for name, each in means.items()), torch.tensor(0.0))}

    def share(self, loss: str) -> float:
        """The weight of a loss in what is minimised."""
        if loss == "lm":
            return 1.0
        if loss == "mtp":
            return self.recipe.mtp.loss_weight if self.recipe.mtp else 0.0
        return self.weight_of(self.recipe, loss)

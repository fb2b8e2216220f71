"""Losses with a wrong mean, a wrong dtype, or a wrong total."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.stacks.reference.model.hybrid_model import Model, ModelOutput
from contracts.stacks.reference.model.mtp import IGNORED


class CountsIgnored(Model):
    def cross_entropy(self, logits_BTV: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
        total, _ = super().cross_entropy(logits_BTV, labels_BT)
        return total, torch.tensor(labels_BT.numel())


@mutant(of="BLK-06s", case="unequal-rows", says="lm loss is")
class DividesByEveryPosition(Exchanged):
    """Ignored labels count in the divisor of the mean."""

    exchange = {"model": CountsIgnored}


class RowMeans(Model):
    def cross_entropy(self, logits_BTV: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
        pairs = zip(torch.split(logits_BTV, 1), torch.split(labels_BT, 1), strict=True)
        rows = [super(RowMeans, self).cross_entropy(*pair) for pair in pairs]
        return torch.stack([total / count.clamp(min=1) for total, count in rows]).sum(), torch.tensor(len(rows))


@mutant(of="BLK-06s", case="unequal-rows", says="lm loss is", bugs=("DPS-40",))
class AveragesTheMeansOfRows(Exchanged):
    """The loss is a mean of row means, so a row's single label weighs as much as all labels of another row."""

    exchange = {"model": RowMeans}


class TakesIgnored(Model):
    def cross_entropy(self, logits_BTV: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
        return super().cross_entropy(logits_BTV, labels_BT.clamp(min=0))


@mutant(of="BLK-06s", case="unequal-rows", says="lm loss is")
class TakesIgnoredForTokenZero(Exchanged):
    """-100 is clamped to 0, so every masked position learns to predict token 0."""

    exchange = {"model": TakesIgnored}


class Shifts(Model):
    def cross_entropy(self, logits_BTV: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
        return super().cross_entropy(logits_BTV[:, :-1], labels_BT[:, 1:])


@mutant(of="BLK-06s", case="float32", says="lm loss is", bugs=("DAT-05",))
class ShiftsLabelsAgain(Exchanged):
    """Labels arrive shifted and are shifted again, so the model learns the token after the next."""

    exchange = {"model": Shifts}


class DropsLast(Model):
    def cross_entropy(self, logits_BTV: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
        return super().cross_entropy(logits_BTV[:, :-1], labels_BT[:, :-1])


@mutant(of="BLK-06s", case="one-row", says="lm loss is")
class DropsTheLastPosition(Exchanged):
    """The last position of each row is dropped, even if it has a label."""

    exchange = {"model": DropsLast}


class InBfloat16(Model):
    def cross_entropy(self, logits_BTV: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
        flat, labels = logits_BTV.flatten(0, 1).to(self.activations), labels_BT.flatten()
        return F.cross_entropy(flat, labels, ignore_index=IGNORED, reduction="sum"), (labels != IGNORED).sum()


@mutant(of="BLK-06s", case="bf16", says="lm loss is")
class ComputesTheLossInBfloat16(Exchanged):
    """The loss is computed in the dtype of the activations."""

    exchange = {"model": InBfloat16}


class Smooths(Model):
    def cross_entropy(self, logits_BTV: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
        flat, labels = logits_BTV.flatten(0, 1), labels_BT.flatten()
        total = F.cross_entropy(flat, labels, ignore_index=IGNORED, reduction="sum", label_smoothing=1e-3)
        return total, (labels != IGNORED).sum()


@mutant(of="BLK-06s", case="bf16-tied-streams", says="lm loss is")
class SmoothsLabels(Exchanged):
    """The loss has a little label smoothing, left over from another recipe."""

    exchange = {"model": Smooths}


class KeepsActivations(Model):
    def predict(self, hidden_BTD: Tensor) -> Tensor:
        return super().predict(hidden_BTD).to(self.activations)


@mutant(of="BLK-06t", case="bf16", says="the logits are bfloat16", bugs=("MXP-07",))
class HandsOverBfloat16Logits(Exchanged):
    """Logits stay in the dtype of the activations."""

    exchange = {"model": KeepsActivations}


@mutant(of="BLK-06t", case="bf16", says="the logits are float32, expected bfloat16")
class DeclaresLogitsOfTheActivations(Exchanged):
    """Declares that logits have the dtype of the activations, and hands over float32."""

    conventions = {"logits-dtype": "activations"}


class AuxTwice(Model):
    def share(self, loss: str) -> float:
        return super().share(loss) * (2 if loss == "aux" else 1)


@mutant(of="BLK-06v", case="no-depths", says="total is")
class AddsTheAuxLossTwice(Exchanged):
    """The aux loss is added in the block and again in the trainer."""

    exchange = {"model": AuxTwice}


class NoZ(Model):
    def objective(self, sums: Mapping[str, Tensor], counts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = super().objective(sums, counts)
        return found | {"total": found["total"] - self.share("z") * found["z"]} if "z" in found else found


@mutant(of="BLK-06v", case="all-four", says="total is")
class ReportsTheZLossAlone(Exchanged):
    """The z loss is reported and missing from the total."""

    exchange = {"model": NoZ}


class Unweighed(Model):
    def share(self, loss: str) -> float:
        return 1.0 if loss == "mtp" else super().share(loss)


@mutant(of="BLK-06v", case="dense", says="total is", leanest="")
class WeighsDepthsFully(Exchanged):
    """The loss weight of multi-token prediction is not applied."""

    exchange = {"model": Unweighed}


class _HoldsTokensIn16Bits(Model):
    def forward(self, tokens_BT: Tensor, labels_BT: Tensor, documents_BT: Tensor | None = None) -> ModelOutput:
        return super().forward(tokens_BT & 0xFFFF, labels_BT, documents_BT)


@mutant(of="BLK-06x", case="a-token-above-two-to-the-sixteen", says="train rows")
class HoldsTokensIn16Bits(Exchanged):
    """The file of tokens is of uint16, as for the vocabulary of GPT-2."""

    exchange = {"model": _HoldsTokensIn16Bits}


class _HoldsLabelsIn8Bits(Model):
    def cross_entropy(self, logits_BTV: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
        return super().cross_entropy(logits_BTV, torch.where(labels_BT < 0, labels_BT, labels_BT & 0xFF))


@mutant(of="BLK-06x", case="above-two-to-the-eight", says="lm is")
class HoldsLabelsInBytes(Exchanged):
    """Labels are packed into bytes, which holds for a vocabulary of bytes."""

    exchange = {"model": _HoldsLabelsIn8Bits}

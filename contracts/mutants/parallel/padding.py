"""Trainers that count padding, or that divide by nothing where there is nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.broken import broken
from contracts.mutants._support.multi_rank import Spread
from contracts.stacks.reference.data import IGNORED
from contracts.stacks.reference.model.hybrid_model import Model, ModelOutput
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer
from contracts.stacks.reference.stack import Reference
from contracts.stacks.reference.training.trainer import Batch, Trainer


@broken(
    Trainer,
    "count",
    "PAR-05i[dense]: 52 labels count, expected 24",
    "PAR-05i[equal-rows]: 39 labels count, expected 24",
)
def counts_every_position(count, self, micro):
    """The loss is divided by all positions: the more a batch is padded, the smaller is its step."""
    return count(self, micro) | {"lm": torch.tensor(micro.labels_BT.numel())}


@broken(Trainer, "accumulate", "PAR-05i[unequal-rows]: with padding the gradient of")
def learns_less_from_padded_rows(accumulate, self, micro, counts):
    """The loss is reported over labels, and differentiated as a mean over positions."""
    whole = counts["lm"] * micro.labels_BT.numel() // (micro.labels_BT != IGNORED).sum().clamp(min=1)
    return accumulate(self, micro, {**counts, "lm": whole})


@broken(Trainer, "accumulate", "PAR-05i[a-row-of-padding]: with padding,")
def learns_to_predict_padding(accumulate, self, micro, counts):
    """The mask of the labels is made of a token that does not pad here: padding is predicted as text is."""
    after_BT = micro.tokens_BT.roll(-1, 1)
    last_BT = (micro.labels_BT == IGNORED) & (after_BT == self.recipe.vocab - 1)
    labels_BT = torch.where(last_BT, after_BT, micro.labels_BT)
    return accumulate(self, micro._replace(labels_BT=labels_BT), counts)


@broken(
    Trainer,
    "accumulate",
    "PAR-05i[a-dense-microbatch-of-padding]: lm is nan with padding",
    "PAR-05i[a-microbatch-of-padding]: lm is nan with padding",
)
def divides_by_no_label(accumulate, self, micro, counts):
    """A microbatch of padding alone has a mean of 0 / 0, and the NaN is added to all others."""
    own = self.count(micro)["lm"] * self.execution.microbatches
    out = accumulate(self, micro, {**counts, "lm": own})
    return out._replace(sums={**out.sums, "lm": out.sums["lm"] / own * counts["lm"]})


@mutant(of="PAR-05i", case="a-microbatch-of-padding", says="lm is")
class DeclaresMeansOfPaddedMicrobatches(Reference):
    """Declares the mean of the microbatches' means, and divides by the labels of the step."""

    conventions = {"window-divides-by": "microbatch-means"}


class _MeanOfRanks(ParallelTrainer):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        own = self.total([self.count(micro)])["lm"] * len(self.mesh.place("rows"))
        out = super().accumulate(micro, {**counts, "lm": own.clamp(min=1)})
        return out._replace(sums={**out.sums, "lm": out.sums["lm"] / own.clamp(min=1) * counts["lm"]})


@mutant(of="PAR-05j", case="dp2", says="lm is")
@mutant(of="PAR-05j", case="dense-dp4", says="lm is")
class TakesTheMeanOfRanks(Spread):
    """Each rank's mean weighs the same: a rank of padding halves the step of the others."""

    trains = _MeanOfRanks


@mutant(of="PAR-05j", case="fsdp2", says="labels count, ")
class CountsNoLabelsOnAPaddedRank(Spread):
    """A rank without labels takes a branch of its own, and its count for that of all."""

    class trains(ParallelTrainer):  # noqa: N801  # the attribute that the base asks for
        def over_rows(self, counts: dict[str, Tensor]) -> dict[str, Tensor]:
            own = int(counts["lm"])
            found = super().over_rows(counts)
            return found if own else found | {"lm": torch.tensor(1)}


class _MeanOfItsTokens(ParallelTrainer):
    def build(self) -> Model:
        model = super().build()
        whole = model.cross_entropy

        def cross_entropy(logits_BTV: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
            total, count = whole(logits_BTV, labels_BT)
            return (total / count * count if self.execution.degrees.cp > 1 else total), count

        model.cross_entropy = cross_entropy  # type: ignore[method-assign]  # of this model alone
        return model


@mutant(of="PAR-05j", case="dense-cp2", says="lm is nan")
class DividesByTheLabelsOfItsPartOfARow(Spread):
    """Each rank of a row takes the mean over its own labels and weighs it by their number: 0 / 0 behind the text."""

    trains = _MeanOfItsTokens


@broken(
    Trainer,
    "accumulate",
    "PAR-05k[dense-in-two]: is not finite behind a step without a label",
    "PAR-05k[dense]: is not finite behind a step without a label",
    "PAR-05k[letters]: is not finite behind a step without a label",
)
def steps_without_a_label(accumulate, self, micro, counts):
    """The sum of no losses is divided by the number of no labels, and the step is taken (Automodel #3796)."""
    out = accumulate(self, micro, counts)
    for parameter in self.model.parameters() if not counts["lm"] else ():
        if parameter.grad is not None:
            parameter.grad.fill_(float("nan"))
    return out

"""Trainers whose step depends on how its batch is cut into microbatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.mutants._support.trainer import Trained
from contracts.stacks.reference.data import IGNORED
from contracts.stacks.reference.model.hybrid_model import Model, ModelOutput
from contracts.stacks.reference.stack import Reference
from contracts.stacks.reference.training.trainer import Batch, Trainer


class _MeanOfMeans(Trainer):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        parts = self.execution.microbatches
        own = {name: each.clamp(min=1) * parts for name, each in self.count(micro).items()}
        out = super().accumulate(micro, own)
        scaled = {name: each / own[name] * counts[name] for name, each in out.sums.items()}
        return out._replace(sums=scaled)


@mutant(of="PAR-05a", case="three", says="lm is")
class TakesTheMeanOfMeans(Trained):
    """The loss is the mean of the microbatches' means: labels in microbatches with few labels weigh more."""

    trains = _MeanOfMeans


@mutant(of="PAR-05b", case="four", says="the mean over labels")
class DeclaresAMeanOfMeans(Reference):
    """Declares the mean of the microbatches' means, and divides by the labels of the step."""

    conventions = {"window-divides-by": "microbatch-means"}


class _MeanOverNothing(Trainer):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        parts = self.execution.microbatches
        own = {name: each * parts for name, each in self.count(micro).items()}
        out = super().accumulate(micro, own)
        return out._replace(sums={name: each / own[name] * counts[name] for name, each in out.sums.items()})


@mutant(of="PAR-05a", case="a-microbatch-without-a-label", says="lm is nan in 5 microbatches")
class DividesByNoLabels(Trained):
    """The mean over a microbatch without labels is 0 / 0, and the NaN destroys every weight."""

    trains = _MeanOverNothing


class _HeadsOverNothing(Trainer):
    """As in Megatron-LM: the loss of the heads is a mean over the microbatch, the main loss one over the window."""

    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        parts = self.execution.microbatches
        heads = {name: each * parts for name, each in self.count(micro).items() if name.startswith("mtp")}
        out = super().accumulate(micro, {**counts, **heads})
        sums = {name: each / heads[name] * counts[name] if name in heads else each for name, each in out.sums.items()}
        return out._replace(sums=sums)


@mutant(of="PAR-05a", case="heads-without-a-label", says="mtp is nan in 5 microbatches", bugs=("DPS-26",))
class HeadsDivideByNoLabels(Trained):
    """A microbatch whose prediction heads have no label divides 0 by 0; the main loss is right."""

    trains = _HeadsOverNothing


class _Unclamped(Model):
    def objective(self, sums: Mapping[str, Tensor], counts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = super().objective(sums, counts)
        empty = [name for name in sums if name.startswith("mtp") and not int(counts[name])]
        return {name: each / 0 * 0 if empty and name in ("mtp", "total") else each for name, each in found.items()}


@mutant(of="PAR-05a", case="a-step-without-a-label-for-heads", says="mtp is nan", bugs=("DPS-26",), leanest="")
class StepDividesByNoLabels(Exchanged):
    """Counting over the window mends the microbatch; a whole step without a label for the heads is NaN all the same."""

    exchange = {"model": _Unclamped}


class _MeanOfSequences(Trainer):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        held = [torch.split(each, 1) for each in micro if each is not None]
        pieces = [Batch(*piece) for piece in zip(*held, strict=True)]
        rows = float(counts["aux"])
        found = []
        for piece in pieces:
            own = {name: each.clamp(min=1) * rows for name, each in self.count(piece).items()}
            out = super().accumulate(piece, own)
            found.append(out._replace(sums={name: each / own[name] * counts[name] for name, each in out.sums.items()}))
        return found[0]._replace(sums=self.total([each.sums for each in found]))


@mutant(of="PAR-05b", case="one", says="the mean over labels")
class TakesTheMeanOfSequences(Trained):
    """The loss is the mean of the sequences' means: independent of the cut, and wrong."""

    trains = _MeanOfSequences


@mutant(of="PAR-05a", case="one-a-sequence", says="z is", leanest="")
class DividesOnlyTheMainLoss(Trained):
    """Auxiliary losses are added per microbatch and never divided: they grow with the number of microbatches."""

    class trains(Trainer):  # noqa: N801  # the attribute that the base asks for
        def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
            return super().accumulate(micro, {**counts, "z": self.count(micro)["z"]})

        def total(self, parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
            found = super().total(parts)
            return found | ({"z": found["z"] * len(parts)} if "lm" in found and found["z"].is_floating_point() else {})


@mutant(of="PAR-05a", case="two", says="aux is", bugs=("AUX-04",), leanest="")
class DividesAuxTwice(Trained):
    """The balance loss is divided by the step's sequences and again by the microbatches."""

    class trains(Trainer):  # noqa: N801
        def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
            parts = self.execution.microbatches
            out = super().accumulate(micro, {**counts, "aux": counts["aux"] * parts})
            return out._replace(sums={**out.sums, "aux": out.sums["aux"] / parts})


@mutant(of="PAR-05a", case="no-auxiliary-losses", says="labels count in 4 microbatches", bugs=("PPS-17",))
class DropsTheRemainder(Trained):
    """Sequences // microbatches: the last sequences of the batch are never seen."""

    class trains(Trainer):  # noqa: N801
        def cut(self, batch: Batch) -> list[Batch]:
            parts = self.execution.microbatches
            kept = len(batch.tokens_BT) // parts * parts
            documents = None if batch.documents_BT is None else batch.documents_BT[:kept]
            return super().cut(Batch(batch.tokens_BT[:kept], batch.labels_BT[:kept], documents))


@mutant(of="PAR-05a", case="two", says="in 2 microbatches the gradient of", bugs=("DPS-17",))
class ZeroesInsideTheWindow(Trained):
    """zero_grad is called inside the accumulation loop: the step is that of the last microbatch."""

    class trains(Trainer):  # noqa: N801
        def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
            self.optimizer.zero()
            return super().accumulate(micro, counts)


@mutant(of="PAR-05a", case="three", says="in 3 microbatches the gradient of", bugs=("DPS-16",))
class KeepsTheFirstMicrobatchAlone(Trained):
    """Gradients of later microbatches never reach the tensors that the optimizer reads."""

    class trains(Trainer):  # noqa: N801
        def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
            held = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}
            out = super().accumulate(micro, counts)
            for name, parameter in self.model.named_parameters():
                if name in held:
                    parameter.grad = held[name]
            return out


@mutant(of="PAR-05a", case="prediction-heads", says="mtp is")
class CountsPredictionHeadsByTheMainLabels(Trained):
    """The prediction heads' losses are divided by each microbatch's own labels."""

    class trains(Trainer):  # noqa: N801
        def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
            own = {name: each for name, each in self.count(micro).items() if name.startswith("mtp")}
            parts = self.execution.microbatches
            out = super().accumulate(micro, {**counts, **{name: each * parts for name, each in own.items()}})
            scaled = {name: out.sums[name] / (own[name] * parts).clamp(min=1) * counts[name] for name in own}
            return out._replace(sums={**out.sums, **scaled})


@mutant(of="PAR-05a", case="a-microbatch-without-a-label", says="aux is", leanest="")
class SkipsMicrobatchesWithoutLabels(Trained):
    """Microbatches without labels are skipped to avoid a division by zero, and their routing is not balanced."""

    class trains(Trainer):  # noqa: N801
        def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
            if bool((micro.labels_BT != IGNORED).any()):
                return super().accumulate(micro, counts)
            with torch.no_grad():
                out: ModelOutput = self.model(*micro)
            return out._replace(sums={name: torch.zeros_like(each) for name, each in out.sums.items()})


@mutant(of="PAR-05b", case="four", says="labels that count in each sequence: [13, 13, 13, 13, 13]")
class DividesByPositions(Trained):
    """The loss is divided by all positions, also those without a label: packed batches learn less."""

    class trains(Trainer):  # noqa: N801
        def count(self, micro: Batch) -> dict[str, Tensor]:
            return super().count(micro) | {"lm": torch.tensor(micro.tokens_BT.numel())}


class _KeepsPositions(Model):
    def forward(self, tokens_BT: Tensor, labels_BT: Tensor, documents_BT: Tensor | None = None) -> ModelOutput:
        documents_BT = self.first if self.first is not None and documents_BT is not None else documents_BT
        assert documents_BT is not None
        self.first = documents_BT if self.first is None else self.first
        rows, length = tokens_BT.shape
        kept = self.first[:1, :length]
        kept = torch.cat((kept, kept[:, -1:].expand(1, length - kept.shape[1])), 1).expand(rows, length)
        return super().forward(tokens_BT, labels_BT, kept)

    first: Tensor | None = None


@mutant(of="PAR-05c", case="one", says="after a step of another length", leanest="")
class KeepsTheFirstMask(Exchanged):
    """Document bounds are computed for the first batch and cached in the model."""

    exchange = {"model": _KeepsPositions}


@mutant(of="PAR-05c", case="one", says="after a step of another length")
class DividesByTheFirstCount(Trained):
    """The labels of a step are counted once and kept as a constant of the run, as if all steps had equally many."""

    class trains(Trainer):  # noqa: N801
        counted: dict[str, Tensor] | None = None

        def count(self, micro: Batch) -> dict[str, Tensor]:
            self.counted = self.counted or dict(super().count(micro))
            return self.counted

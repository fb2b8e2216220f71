"""Trainers whose step depends on how labels are spread over unequal microbatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from contracts.contract import mutant
from contracts.mutants._support.broken import broken
from contracts.mutants._support.multi_rank import Spread
from contracts.mutants._support.pipeline import Staged
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.mutants._support.trainer import Trained
from contracts.stacks.reference.data import IGNORED
from contracts.stacks.reference.model.blocks.common import Packing
from contracts.stacks.reference.model.hybrid_model import Model, ModelOutput
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer
from contracts.stacks.reference.parallel.pipeline import Pipeline, Stage
from contracts.stacks.reference.parallel.pipeline_messages import BatchedStage
from contracts.stacks.reference.training.trainer import Batch, Trainer

OVER = "over the window"


# on one rank
@broken(Trainer, "passes", "PAR-05f[as-they-come]: lm is")
def takes_the_mean_of_unequal_microbatches(passes, self, window, counts):
    """The loss is the mean of the microbatches' means: labels in microbatches with few labels weigh more."""
    found = []
    for micro in window:
        own = {name: each.clamp(min=1) * len(window) for name, each in self.count(micro).items()}
        out = self.accumulate(micro, own)
        found.append(out._replace(sums={name: each / own[name] * counts[name] for name, each in out.sums.items()}))
    return found


class _CountsByTheFirst(Trainer):
    def step_over(self, window: Sequence[Batch], *given: Any, **named: Any) -> Any:
        self.first = window[0].tokens_BT.shape[1]
        return super().step_over(window, *given, **named)

    def count(self, micro: Batch) -> dict[str, Tensor]:
        rows, _ = micro.tokens_BT.shape
        return super().count(micro) | {"z": torch.tensor(rows * self.first)}


@mutant(of="PAR-05f", case="longest-first", says="z is")
class CountsTokensByTheFirstLength(Trained):
    """The token count of a step is its sequences times the length of the recipe or of the first microbatch."""

    trains = _CountsByTheFirst


class _Pads(Trainer):
    """Pads every microbatch to the length of the longest."""

    labels = IGNORED

    def step_over(self, window: Sequence[Batch], *given: Any, **named: Any) -> Any:
        longest = max(micro.tokens_BT.shape[1] for micro in window)
        return super().step_over([self.padded(micro, longest) for micro in window], *given, **named)

    def padded(self, micro: Batch, length: int) -> Batch:
        more = (0, length - micro.tokens_BT.shape[1])
        assert micro.documents_BT is not None
        behind = int(micro.documents_BT.max()) + 1
        return Batch(
            pad(micro.tokens_BT, more), pad(micro.labels_BT, more, value=self.labels),
            pad(micro.documents_BT, more, value=behind),
        )  # fmt: skip


@mutant(of="PAR-05f", case="shortest-first", says="aux is", bugs=("AUX-08",))
class RoutesPaddingAsTokens(Trained):
    """Padding has no labels and adds nothing to the main loss, but the router sees it and its losses count it."""

    trains = _Pads


class _PadsLabels(_Pads):
    labels = 0


@mutant(of="PAR-05f", case="two", says="labels count in the window")
class LearnsToPredictPadding(Trained):
    """Labels are padded with the padding token, which is a token of the vocabulary."""

    trains = _PadsLabels


@broken(Trainer, "step_over", "PAR-05f[longest-first]: labels count in the window")
def cuts_to_the_shortest(step_over, self, window, *given, **named):
    """Microbatches are stacked, and longer ones are truncated."""
    shortest = min(micro.tokens_BT.shape[1] for micro in window)
    cut = [Batch(*(None if each is None else each[:, :shortest] for each in micro)) for micro in window]
    return step_over(self, cut, *given, **named)


class _KeepsBounds(Model):
    kept: Packing | None = None

    def trunk(self, x: Tensor, pack: Packing) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        rows, length = pack.documents_BT.shape
        held = self.kept
        if held is None or held.documents_BT.shape[1] < length or len(held.documents_BT) < rows:
            self.kept = held = pack
        kept = pack._replace(
            documents_BT=held.documents_BT[:rows, :length], positions_BT=held.positions_BT[:rows, :length],
            boundless=False,
        )  # fmt: skip
        return super().trunk(x, kept)


@mutant(of="PAR-05f", case="longest-first", says="lm is")
class KeepsTheBoundsOfTheLongest(Exchanged):
    """Masks and positions are rebuilt only when too small, and sliced for shorter microbatches."""

    exchange = {"model": _KeepsBounds}


@mutant(of="PAR-05f", case="two", says=OVER, bugs=("DPS-17",))
class ClearsGradientsWhereTheLengthIsAnother(Trained):
    """A new length makes new graphs and buffers, and resets the gradients."""

    class trains(Trainer):  # noqa: N801
        length = 0

        def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
            length = micro.tokens_BT.shape[1]
            if self.length not in (0, length):
                self.optimizer.zero()
            self.length = length
            return super().accumulate(micro, counts)


# on several
class _OwnLabels(ParallelTrainer):
    def over_rows(self, counts: dict[str, Tensor]) -> dict[str, Tensor]:
        whole = super().over_rows(dict(counts))
        ranks = len(self.mesh.place("rows"))
        return whole | {"lm": counts["lm"] * ranks}


@mutant(of="PAR-05g", case="dp2", says="labels count")
class DividesByTheLabelsOfEachRank(Spread):
    """Each rank takes the mean over its own labels, and the means are averaged."""

    trains = _OwnLabels


class _OwnMeans(ParallelTrainer):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        own = self.count(micro)["lm"] * self.execution.microbatches * len(self.mesh.place("rows"))
        out = super().accumulate(micro, {**counts, "lm": own})
        return out._replace(sums={**out.sums, "lm": out.sums["lm"] / own * counts["lm"]})


@mutant(of="PAR-05g", case="dp2", says="lm is nan", bugs=("DPS-27",))
class DividesByNoLabelsOnOneRank(Spread):
    """A rank whose sequences of a microbatch have no labels divides by zero, and its NaN reaches every rank."""

    trains = _OwnMeans


class _OnePerMicrobatch(ParallelTrainer):
    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        parts = self.execution.microbatches
        own = self.over_rows(self.count(micro))
        out = super().accumulate(micro, {**counts, "lm": own["lm"] * parts})
        return out._replace(sums={**out.sums, "lm": out.sums["lm"] / (own["lm"] * parts) * counts["lm"]})


@mutant(of="PAR-05g", case="fsdp2", says="lm is")
class SumsLabelsOverRanksAndNotOverTheWindow(Spread):
    """Labels are summed over ranks per microbatch: right for each, and a mean of means over the step."""

    trains = _OnePerMicrobatch


class _PadsOnRanks(ParallelTrainer):
    def step_over(self, window: Sequence[Batch], *given: Any, **named: Any) -> Any:
        longest = max(micro.tokens_BT.shape[1] for micro in window)
        padded = [_Pads.padded(self, micro, longest) for micro in window]  # type: ignore[arg-type]
        return super().step_over(padded, *given, **named)

    labels = IGNORED


@mutant(of="PAR-05g", case="borrowed-ep2-fsdp2", says="aux is", bugs=("AUX-08",))
class SendsPaddingToExperts(Spread):
    """Every rank pads to one length so that all-to-alls have one size; experts and their losses count the padding."""

    trains = _PadsOnRanks


class _LongestBuffer(BatchedStage):
    """Receives into a buffer as long as the longest microbatch, and takes the expected number of elements from it."""

    def receive_into(self, received: Mapping[int, tuple[Any, ...]]) -> None:
        super().receive_into(received)
        rows, length = (max(each.shape[dim] for each in self.streams) for dim in (0, 1))
        for infos in received.values() if self.is_long(received) else ():
            infos[0].buffer = infos[0].buffer.new_zeros((rows, length, *infos[0].buffer.shape[2:]))

    def is_long(self, received: object) -> bool:
        return received is self.args_recv_info

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> Any:
        (x,) = super()._retrieve_recv_activations(fwd_chunk_id)
        return (self.front(x, fwd_chunk_id).detach().requires_grad_(),)

    def front(self, long: Tensor, number: int) -> Tensor:
        rows, length = self.streams[number].shape[:2]
        return long[:rows, :length]


@mutant(of="PAR-05g", case="pp2", says="lm is")
class ReceivesIntoTheLongestBuffer(Staged):
    """One receive buffer, as long as the longest microbatch: shorter rows do not lie where they are read."""

    class runs(Pipeline):  # noqa: N801  # the attribute that the base asks for
        stage_class = _LongestBuffer


class _LongestGradient(_LongestBuffer):
    def is_long(self, received: object) -> bool:
        return received is self.grad_recv_info

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> Any:
        found = super()._retrieve_recv_grads(bwd_chunk_id)
        return tuple(each if each is None else self.front(each, bwd_chunk_id) for each in found)


@mutant(of="PAR-05g", case="pp4", says="loss agrees")
class ReceivesGradientsIntoTheLongestBuffer(Staged):
    """Forward receives have a buffer per length; backward receives keep those of the first step."""

    class runs(Pipeline):  # noqa: N801
        stage_class = _LongestGradient


class _OwnCounts(Stage):
    def forward(self, x: Tensor, tokens_BT: Tensor, labels_BT: Tensor, documents_BT: Tensor | None = None) -> Tensor:  # type: ignore[override]
        whole = self.counts
        labels = (labels_BT != IGNORED).sum().clamp(min=1)
        self.counts = {**whole, "lm": labels * 4}
        out = super().forward(x, tokens_BT, labels_BT, documents_BT)
        self.counts = whole
        return out


@mutant(of="PAR-05g", case="pp2-interleaved", says="loss agrees")
class DividesByTheLabelsOfEachMicrobatchInStages(Staged):
    """The last stage backpropagates each microbatch's own mean; the reported loss is over all labels."""

    stage = _OwnCounts

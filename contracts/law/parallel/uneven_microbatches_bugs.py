"""Trainers whose step depends on how labels are spread over unequal microbatches."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from contracts.law._bugs.numeric import (
    IGNORED,
    Batch,
    BatchedStage,
    Model,
    ModelOutput,
    Packing,
    ParallelTrainer,
    Stage,
    Trainer,
    broken,
    derived,
    with_attributes,
)


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


@derived("PAR-05f[longest-first]: z is")
class CountsTokensByTheFirstLength(Trainer):
    """The token count of a step is its sequences times the length of the recipe or of the first microbatch."""

    def step_over(self, window: Sequence[Batch], *given: Any, **named: Any) -> Any:
        self.first = window[0].tokens_BT.shape[1]
        return super().step_over(window, *given, **named)

    def count(self, micro: Batch) -> dict[str, Tensor]:
        rows, _ = micro.tokens_BT.shape
        return super().count(micro) | {"z": torch.tensor(rows * self.first)}


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


with_attributes(
    "RoutesPaddingAsTokens",
    "Padding has no labels and adds nothing to the main loss, but the router sees it and its losses count it.",
    "PAR-05f[shortest-first]: aux is",
    owner=_Pads,
    bugs=("AUX-08",),
)

with_attributes(
    "LearnsToPredictPadding",
    "Labels are padded with the padding token, which is a token of the vocabulary.",
    "PAR-05f[two]: labels count in the window",
    owner=_Pads,
    labels=0,
)


@broken(Trainer, "step_over", "PAR-05f[longest-first]: labels count in the window")
def cuts_to_the_shortest(step_over, self, window, *given, **named):
    """Microbatches are stacked, and longer ones are truncated."""
    shortest = min(micro.tokens_BT.shape[1] for micro in window)
    cut = [Batch(*(None if each is None else each[:, :shortest] for each in micro)) for micro in window]
    return step_over(self, cut, *given, **named)


@derived("PAR-05f[longest-first]: lm is")
class KeepsTheBoundsOfTheLongest(Model):
    """Masks and positions are rebuilt only when too small, and sliced for shorter microbatches."""

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


@derived("PAR-05f[two]: over the window", bugs=("DPS-17",))
class ClearsGradientsWhereTheLengthIsAnother(Trainer):
    """A new length makes new graphs and buffers, and resets the gradients."""

    length = 0

    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        length = micro.tokens_BT.shape[1]
        if self.length not in (0, length):
            self.optimizer.zero()
        self.length = length
        return super().accumulate(micro, counts)


# on several
@broken(ParallelTrainer, "over_rows", "PAR-05g[dp2]: labels count")
def divides_by_the_labels_of_each_rank(over_rows, self, counts):
    """Each rank takes the mean over its own labels, and the means are averaged."""
    whole = over_rows(self, dict(counts))
    ranks = len(self.mesh.place("rows"))
    return whole | {"lm": counts["lm"] * ranks}


@broken(ParallelTrainer, "accumulate", "PAR-05g[dp2]: lm is nan", bugs=("DPS-27",))
def divides_by_no_labels_on_one_rank(accumulate, self, micro, counts):
    """A rank whose sequences of a microbatch have no labels divides by zero, and its NaN reaches every rank."""
    own = self.count(micro)["lm"] * self.execution.microbatches * len(self.mesh.place("rows"))
    out = accumulate(self, micro, {**counts, "lm": own})
    return out._replace(sums={**out.sums, "lm": out.sums["lm"] / own * counts["lm"]})


@broken(ParallelTrainer, "accumulate", "PAR-05g[fsdp2]: lm is")
def sums_labels_over_ranks_and_not_over_the_window(accumulate, self, micro, counts):
    """Labels are summed over ranks per microbatch: right for each, and a mean of means over the step."""
    parts = self.execution.microbatches
    own = self.over_rows(self.count(micro))
    out = accumulate(self, micro, {**counts, "lm": own["lm"] * parts})
    return out._replace(sums={**out.sums, "lm": out.sums["lm"] / (own["lm"] * parts) * counts["lm"]})


@derived("PAR-05g[borrowed-ep2-fsdp2]: aux is", bugs=("AUX-08",))
class SendsPaddingToExperts(ParallelTrainer):
    """Every rank pads to one length so that all-to-alls have one size; experts and their losses count the padding."""

    def step_over(self, window: Sequence[Batch], *given: Any, **named: Any) -> Any:
        longest = max(micro.tokens_BT.shape[1] for micro in window)
        padded = [_Pads.padded(self, micro, longest) for micro in window]  # type: ignore[arg-type]
        return super().step_over(padded, *given, **named)

    labels = IGNORED


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


with_attributes(
    "ReceivesIntoTheLongestBuffer",
    "One receive buffer, as long as the longest microbatch: shorter rows do not lie where they are read.",
    "PAR-05g[pp2]: lm is",
    owner=_LongestBuffer,
)


@derived("PAR-05g[pp4]: loss agrees")
class ReceivesGradientsIntoTheLongestBuffer(_LongestBuffer):
    """Forward receives have a buffer per length; backward receives keep those of the first step."""

    def is_long(self, received: object) -> bool:
        return received is self.grad_recv_info

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> Any:
        found = super()._retrieve_recv_grads(bwd_chunk_id)
        return tuple(each if each is None else self.front(each, bwd_chunk_id) for each in found)


@broken(Stage, "forward", "PAR-05g[pp2-interleaved]: loss agrees")
def divides_by_the_labels_of_each_microbatch_in_stages(forward, self, x, tokens_BT, labels_BT, documents_BT=None):
    """The last stage backpropagates each microbatch's own mean; the reported loss is over all labels."""
    whole = self.counts
    labels = (labels_BT != IGNORED).sum().clamp(min=1)
    self.counts = {**whole, "lm": labels * 4}
    out = forward(self, x, tokens_BT, labels_BT, documents_BT)
    self.counts = whole
    return out

"""Pipelines whose step differs from that of one rank."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from contracts.law._bugs.numeric import (
    Batch,
    BatchedStage,
    LatentAttention,
    Packing,
    Pipeline,
    PipelineTrainer,
    Stage,
    broken,
    derived,
    every_rank,
)
from contracts.law._bugs.pipeline import cut, joined
from contracts.stacks.reference.parallel.pipeline import Passed


# what is scaled
@broken(Pipeline, "schedule", "PAR-08a[two-stages]: the gradient of ", "PAR-08h[1f1b]: the gradient of")
def takes_the_mean_of_microbatches(former, self, window):
    """The schedule divides gradients by the microbatches, its default, although the loss is already divided."""
    schedule = former(self, window)
    schedule.scale_grads = True
    return schedule


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.factor, None


def scaled(x: Tensor, factor: float) -> Tensor:
    """x, with its gradient multiplied."""
    held: Tensor = _Scaled.apply(x, factor)  # type: ignore[no-untyped-call]  # torch's
    return held


@broken(Stage, "forward", "PAR-08a[four-stages]: loss agrees", bugs=("DPS-12",))
def scales_on_every_stage(forward, self, x, *given, **named):
    """Each stage divides the gradients that pass back through it by the microbatches again."""
    held = x if self.piece.first else scaled(x, 0.25)
    return forward(self, held, *given, **named)


@broken(Stage, "forward", "PAR-08a[beside-dp]: the gradient of ", bugs=("DPS-16",))
def keeps_the_gradient_of_the_first_microbatch(forward, self, x, *given, **named):
    """Gradients of later microbatches never reach the tensors that the optimizer reads."""
    out = forward(self, x, *given, **named)
    return out if len(self.passed) == 1 else scaled(out, 0.0)


@broken(PipelineTrainer, "unreduced", "PAR-08a[beside-dp]: the gradient of ", bugs=("PPS-12",))
def never_tells_that_a_window_ends(unreduced, self, name):
    """The schedule counts microbatches itself, and the gradient reduction never learns that the step ends."""


# auxiliary losses
@broken(Stage, "carrying", "PAR-08a[two-stages]: loss agrees")
def balances_the_last_stage_alone(carrying, self, part, x):
    """Auxiliary losses of earlier stages are logged and never enter the backward pass."""
    return x


@broken(Stage, "carrying", "PAR-08a[four-stages]: loss agrees")
def balances_by_the_number_of_stages(carrying, self, part, x):
    """The gradient of an auxiliary loss is multiplied by the number of stages, as if each had reported the whole."""
    return carrying(self, part * self.piece.stages, x)


@derived("PAR-08a[two-stages]: first with layer 2 (M) of the stages AE|M, and lm agrees")
class ReportsTheLastStage(PipelineTrainer):
    """The last stage logs the losses, and it knows only its own experts."""

    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        own = super(PipelineTrainer, self).over_parts(values)
        *_, last = every_rank(own, self.group)
        return {**own, **last} if any(name.endswith("counts") for name in own) else last


@derived("PAR-08a[recomputed]: lm is", bugs=("AUX-14",))
class CountsWhatIsRecomputed(Stage):
    """Stages are recomputed as a whole, and the backward pass records a microbatch's figures a second time."""

    def forward(self, x: Tensor, *given: Any, **named: Any) -> Tensor:  # type: ignore[override]
        own = super().forward
        return checkpoint(own, x, *given, use_reentrant=False, **named)  # type: ignore[no-any-return]


@broken(Stage, "keep", "PAR-08a[sparse]: lm is")
def counts_attention_from_its_stage(keep, self):
    """Which attention layers select keys is looked up by their number within the stage, and the others see all keys."""
    keep(self)
    ranks = () if self.recipe.dsa is None else self.recipe.dsa.a_ranks
    mixers = [each.mixer for each in self.layers.values() if isinstance(each.mixer, LatentAttention)]
    for rank, mixer in enumerate(mixers):
        if mixer.indexer is not None and rank not in ranks:
            mixer.indexer.top_k = self.recipe.seq_length


# microbatches with another one's data
class _Mixing(Pipeline):
    """Stages after the first get other data of the step's microbatches."""

    def run(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[Passed]:
        first = self.stages[0].piece.first
        return super().run(window if first else cut(self.other(joined(window)), len(window)), counts)

    def other(self, window: Batch) -> Batch:
        raise NotImplementedError


@broken(_Mixing, "other", "PAR-08a[two-stages]: lm is")
def takes_labels_of_the_next_microbatch(other, self, window):
    """The last stage counts microbatches from its own first one, and takes labels one microbatch ahead."""
    return window._replace(labels_BT=window.labels_BT.roll(-1, 0))


@broken(_Mixing, "other", "PAR-08a[two-stages]: first with layer 2 (M) of the stages AE|M (")
def takes_documents_of_the_next_microbatch(other, self, window):
    """Document bounds reach later stages one microbatch early."""
    return window._replace(documents_BT=window.documents_BT.roll(-1, 0))


@broken(
    _Mixing, "other", "PAR-08a[eight-microbatches]: lm is", "PAR-08a[interleaved-eight-microbatches]: lm is"
)  # fmt: skip
def keeps_labels_of_four_microbatches(other, self, window):
    """Labels wait in four places, taken in turn: from the fifth microbatch on, later stages find those of the first."""
    return window._replace(labels_BT=window.labels_BT[torch.arange(len(window.labels_BT)) % 4])


@broken(_Mixing, "other", "PAR-08a[four-stages]: lm is")
def sends_no_documents(other, self, window):
    """Only the first stage gets document bounds; the others see one document per row."""
    return window._replace(documents_BT=None)


@broken(_Mixing, "other", "PAR-08a[prediction-heads]: on one rank, and lm agrees", bugs=("HYB-22",))
def sends_no_tokens_to_the_prediction_heads(other, self, window):
    """Only the first stage gets tokens; the prediction heads on the last stage read padding."""
    return window._replace(tokens_BT=torch.zeros_like(window.tokens_BT))


@broken(Pipeline, "run", "PAR-08a[two-stages]: lm is")
def loses_the_last_microbatch(run, self, window, counts):
    """The cool-down ends one microbatch early, while the counts cover the whole step."""
    return run(self, window[:3], counts)


@broken(Pipeline, "run", "PAR-08a[two-stages]: loss agrees", bugs=("DPS-44",))
def starts_the_schedule_anew(run, self, window, counts):
    """The schedule is set up again between two microbatches, which clears the gradients so far."""
    found = []
    for half in (window[:2], window[2:]):
        for stage in self.stages:
            stage.zero_grad()
        found += run(self, half, counts)
    return found


@derived("PAR-08a[interleaved]: the gradient of ", bugs=("PPS-06",))
class SendsTheGradientOfAnotherMicrobatch(BatchedStage):
    """A stage keeps one gradient to send back, and sends it for another microbatch."""

    held: Any = None

    def backward_one_chunk(self, bwd_chunk_id: int, *given: Any, **named: Any) -> None:
        super().backward_one_chunk(bwd_chunk_id, *given, **named)
        if not self.is_first:
            latest = self.bwd_cache[bwd_chunk_id]
            self.bwd_cache[bwd_chunk_id], self.held = self.held or latest, latest


# messages between the stages
class _AtTheBorder(Stage):
    def forward(self, x: Tensor, *given: Any, **named: Any) -> Tensor:  # type: ignore[override]
        return super().forward(x if self.piece.first else self.received(x), *given, **named)

    def received(self, x: Tensor) -> Tensor:
        raise NotImplementedError


@broken(_AtTheBorder, "received", "PAR-08a[two-stages]: lm is")
def rounds_what_it_sends(received, self, x):
    """The residual stream is sent in bfloat16, whatever its dtype."""
    return x.bfloat16().to(x.dtype)


@broken(_AtTheBorder, "received", "PAR-08a[streams]: lm is")
def averages_streams_at_the_border(received, self, x):
    """Several residual streams are sent as their mean and copied again."""
    return x.mean(-2, keepdim=True).expand_as(x)


@broken(_AtTheBorder, "received", "PAR-08a[four-stages]: loss agrees")
def stops_the_gradient_at_the_border(received, self, x):
    """A received tensor that may be a copy is detached: the first two stages train only on their own losses."""
    return x.detach() + 0 * x if self.piece.stage == 2 else x


@broken(PipelineTrainer, "plan", "PAR-08a[interleaved]: lm is", "PAR-08a[four-stages]: lm is", bugs=("HYB-13",))
def counts_layers_rank_by_rank(former, self):
    """Layers of an interleaved stage are numbered as if the stages of a rank were consecutive."""
    plan = former(self)
    order = (0, 2, 1, 3)
    return tuple(replace(piece, layers=plan[at].layers) for piece, at in zip(plan, order, strict=True))


@broken(PipelineTrainer, "add", "PAR-08a[tied]: the gradient of embedding.weight differs")
def adds_copies_twice(add, self, parameter, peer):
    """A group hook sums the gradients of copies, and the step sums them again: equal on both stages, and twice too
    large.
    """
    add(self, parameter, peer)
    parameter.grad.mul_(2)


@broken(PipelineTrainer, "add", "PAR-08a[tied]: the gradient of embedding.weight differs")
def averages_copies(add, self, parameter, peer):
    """Gradients of copies are averaged as for replicas, though each copy has a different part."""
    add(self, parameter, peer)
    parameter.grad.mul_(0.5)


@derived("PAR-08c[1f1b]: lm is")
class KeepsTheFirstBounds(Stage):
    """A stage computes document bounds at setup and keeps them while shapes match."""

    first: Packing | None = None

    def trunk(self, x: Tensor, pack: Packing) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        self.first = self.first or pack
        length = pack.documents_BT.shape[1]
        at = torch.arange(length).clamp(max=self.first.documents_BT.shape[1] - 1)
        kept = pack._replace(
            documents_BT=self.first.documents_BT[:, at], positions_BT=self.first.positions_BT[:, at], boundless=False
        )
        return super().trunk(x, kept if self.passed and self.piece.last else pack)


@derived("PAR-08c[interleaved]: (step 2, ")
class ClearsGradientsWhereTheLengthChanges(Pipeline):
    """Setting stages up for a new length clears the gradients accumulated before: the first half."""

    length: int | None = None

    def run(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[Passed]:
        passed, length = super().run(window, counts), window[0].tokens_BT.shape[1]
        if self.length not in (None, length):
            for stage in self.stages[:1]:
                stage.zero_grad()
        self.length = length
        return passed

"""Pipelines whose step differs from that of one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from contracts.contract import mutant
from contracts.mutants._support.pipeline import Staged, cut, joined
from contracts.stacks.reference.model.blocks.attention import LatentAttention
from contracts.stacks.reference.model.blocks.common import Packing
from contracts.stacks.reference.parallel.pipeline import Passed, Piece, Pipeline, Stage
from contracts.stacks.reference.parallel.pipeline_messages import BatchedStage
from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer, every_rank
from contracts.stacks.reference.training.trainer import Batch

GRADIENT = "the gradient of "


# what is scaled
@mutant(of="PAR-08a", case="two-stages", says=GRADIENT)
class TakesTheMeanOfMicrobatches(Staged):
    """The schedule divides gradients by the microbatches, its default, although the loss is already divided."""

    class runs(Pipeline):  # noqa: N801  # the attribute that the base asks for
        def schedule(self, window: Sequence[Batch]) -> Any:
            schedule = super().schedule(window)
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


@mutant(of="PAR-08a", case="four-stages", says="loss agrees", bugs=("DPS-12",))
class ScalesOnEveryStage(Staged):
    """Each stage divides the gradients that pass back through it by the microbatches again."""

    class stage(Stage):  # noqa: N801
        def forward(self, x: Tensor, *given: Any, **named: Any) -> Tensor:  # type: ignore[override]
            held = x if self.piece.first else scaled(x, 0.25)
            return super().forward(held, *given, **named)


@mutant(of="PAR-08a", case="beside-dp", says=GRADIENT, bugs=("DPS-16",))
class KeepsTheGradientOfTheFirstMicrobatch(Staged):
    """Gradients of later microbatches never reach the tensors that the optimizer reads."""

    class stage(Stage):  # noqa: N801
        def forward(self, x: Tensor, *given: Any, **named: Any) -> Tensor:  # type: ignore[override]
            out = super().forward(x, *given, **named)
            return out if len(self.passed) == 1 else scaled(out, 0.0)


class _AtNoBoundary(PipelineTrainer):
    def unreduced(self, name: str) -> Any:
        return None


@mutant(of="PAR-08a", case="beside-dp", says=GRADIENT, bugs=("PPS-12",))
class NeverTellsThatAWindowEnds(Staged):
    """The schedule counts microbatches itself, and the gradient reduction never learns that the step ends."""

    trains = _AtNoBoundary


# auxiliary losses
@mutant(of="PAR-08a", case="two-stages", says="loss agrees")
class BalancesTheLastStageAlone(Staged):
    """Auxiliary losses of earlier stages are logged and never enter the backward pass."""

    class stage(Stage):  # noqa: N801
        def carrying(self, part: Tensor, x: Tensor) -> Tensor:
            return x


@mutant(of="PAR-08a", case="four-stages", says="loss agrees")
class BalancesByTheNumberOfStages(Staged):
    """The gradient of an auxiliary loss is multiplied by the number of stages, as if each had reported the whole."""

    class stage(Stage):  # noqa: N801
        def carrying(self, part: Tensor, x: Tensor) -> Tensor:
            return super().carrying(part * self.piece.stages, x)


class _OfTheLastStage(PipelineTrainer):
    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        own = super(PipelineTrainer, self).over_parts(values)
        *_, last = every_rank(own, self.group)
        return {**own, **last} if any(name.endswith("counts") for name in own) else last


@mutant(of="PAR-08a", case="two-stages", says="aux is")
class ReportsTheLastStage(Staged):
    """The last stage logs the losses, and it knows only its own experts."""

    trains = _OfTheLastStage


@mutant(of="PAR-08a", case="recomputed", says="lm is", bugs=("AUX-14",))
class CountsWhatIsRecomputed(Staged):
    """Stages are recomputed as a whole, and the backward pass records a microbatch's figures a second time."""

    class stage(Stage):  # noqa: N801
        def forward(self, x: Tensor, *given: Any, **named: Any) -> Tensor:  # type: ignore[override]
            own = super().forward
            return checkpoint(own, x, *given, use_reentrant=False, **named)  # type: ignore[no-any-return]


@mutant(of="PAR-08a", case="sparse", says="lm is")
class CountsAttentionFromItsStage(Staged):
    """Which attention layers select keys is looked up by their number within the stage, and the others see all keys."""

    class stage(Stage):  # noqa: N801
        def keep(self) -> None:
            super().keep()
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


@mutant(of="PAR-08a", case="two-stages", says="lm is")
class TakesLabelsOfTheNextMicrobatch(Staged):
    """The last stage counts microbatches from its own first one, and takes labels one microbatch ahead."""

    class runs(_Mixing):  # noqa: N801
        def other(self, window: Batch) -> Batch:
            return window._replace(labels_BT=window.labels_BT.roll(-1, 0))


@mutant(of="PAR-08a", case="two-stages", says="lm is")
class TakesDocumentsOfTheNextMicrobatch(Staged):
    """Document bounds reach later stages one microbatch early."""

    class runs(_Mixing):  # noqa: N801
        def other(self, window: Batch) -> Batch:
            assert window.documents_BT is not None
            return window._replace(documents_BT=window.documents_BT.roll(-1, 0))


@mutant(of="PAR-08a", case="four-stages", says="lm is")
class SendsNoDocuments(Staged):
    """Only the first stage gets document bounds; the others see one document per row."""

    class runs(_Mixing):  # noqa: N801
        def other(self, window: Batch) -> Batch:
            return window._replace(documents_BT=None)


@mutant(of="PAR-08a", case="prediction-heads", says="mtp is", bugs=("HYB-22",))
class SendsNoTokensToThePredictionHeads(Staged):
    """Only the first stage gets tokens; the prediction heads on the last stage read padding."""

    class runs(_Mixing):  # noqa: N801
        def other(self, window: Batch) -> Batch:
            return window._replace(tokens_BT=torch.zeros_like(window.tokens_BT))


@mutant(of="PAR-08a", case="two-stages", says="lm is")
class LosesTheLastMicrobatch(Staged):
    """The cool-down ends one microbatch early, while the counts cover the whole step."""

    class runs(Pipeline):  # noqa: N801
        def run(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[Passed]:
            return super().run(window[:3], counts)


@mutant(of="PAR-08a", case="two-stages", says="loss agrees", bugs=("DPS-44",))
class StartsTheScheduleAnew(Staged):
    """The schedule is set up again between two microbatches, which clears the gradients so far."""

    class runs(Pipeline):  # noqa: N801
        def run(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[Passed]:
            found = []
            for half in (window[:2], window[2:]):
                for stage in self.stages:
                    stage.zero_grad()
                found += super().run(half, counts)
            return found


class _LateStage(BatchedStage):
    held: Any = None

    def backward_one_chunk(self, bwd_chunk_id: int, *given: Any, **named: Any) -> None:
        super().backward_one_chunk(bwd_chunk_id, *given, **named)
        if not self.is_first:
            latest = self.bwd_cache[bwd_chunk_id]
            self.bwd_cache[bwd_chunk_id], self.held = self.held or latest, latest


@mutant(of="PAR-08a", case="interleaved", says=GRADIENT, bugs=("PPS-06",))
class SendsTheGradientOfAnotherMicrobatch(Staged):
    """A stage keeps one gradient to send back, and sends it for another microbatch."""

    class runs(Pipeline):  # noqa: N801
        stage_class = _LateStage


# messages between the stages
class _AtTheBorder(Stage):
    def forward(self, x: Tensor, *given: Any, **named: Any) -> Tensor:  # type: ignore[override]
        return super().forward(x if self.piece.first else self.received(x), *given, **named)

    def received(self, x: Tensor) -> Tensor:
        raise NotImplementedError


@mutant(of="PAR-08a", case="two-stages", says="lm is")
class RoundsWhatItSends(Staged):
    """The residual stream is sent in bfloat16, whatever its dtype."""

    class stage(_AtTheBorder):  # noqa: N801
        def received(self, x: Tensor) -> Tensor:
            return x.bfloat16().to(x.dtype)


@mutant(of="PAR-08a", case="streams", says="lm is")
class AveragesStreamsAtTheBorder(Staged):
    """Several residual streams are sent as their mean and copied again."""

    class stage(_AtTheBorder):  # noqa: N801
        def received(self, x: Tensor) -> Tensor:
            return x.mean(-2, keepdim=True).expand_as(x)


@mutant(of="PAR-08a", case="four-stages", says="loss agrees")
class StopsTheGradientAtTheBorder(Staged):
    """A received tensor that may be a copy is detached: the first two stages train only on their own losses."""

    class stage(_AtTheBorder):  # noqa: N801
        def received(self, x: Tensor) -> Tensor:
            return x.detach() + 0 * x if self.piece.stage == 2 else x


@mutant(of="PAR-08a", case="interleaved", says="lm is", bugs=("HYB-13",))
class CountsLayersRankByRank(Staged):
    """Layers of an interleaved stage are numbered as if the stages of a rank were consecutive."""

    class trains(PipelineTrainer):  # noqa: N801
        def plan(self) -> tuple[Piece, ...]:
            plan = super().plan()
            order = (0, 2, 1, 3)
            return tuple(replace(piece, layers=plan[at].layers) for piece, at in zip(plan, order, strict=True))


@mutant(of="PAR-08a", case="four-stages", says="lm is")
class ReversesTheMiddle(Staged):
    """Stages are numbered from the end, including the two between embedding and head."""

    class trains(PipelineTrainer):  # noqa: N801
        def plan(self) -> tuple[Piece, ...]:
            plan = super().plan()
            order = (0, 2, 1, 3)
            return tuple(replace(piece, layers=plan[at].layers) for piece, at in zip(plan, order, strict=True))


@mutant(of="PAR-08a", case="tied", says="the gradient of embedding.weight differs")
class AddsCopiesTwice(Staged):
    """A group hook sums the gradients of copies, and the step sums them again: equal on both stages, and twice too
    large.
    """

    class trains(PipelineTrainer):  # noqa: N801
        def add(self, parameter: Tensor, peer: int) -> None:
            super().add(parameter, peer)
            assert parameter.grad is not None
            parameter.grad.mul_(2)


@mutant(of="PAR-08a", case="tied", says="the gradient of embedding.weight differs")
class AveragesCopies(Staged):
    """Gradients of copies are averaged as for replicas, though each copy has a different part."""

    class trains(PipelineTrainer):  # noqa: N801
        def add(self, parameter: Tensor, peer: int) -> None:
            super().add(parameter, peer)
            assert parameter.grad is not None
            parameter.grad.mul_(0.5)


# lengths
class _KeepsPacking(Stage):
    first: Packing | None = None

    def trunk(self, x: Tensor, pack: Packing) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        self.first = self.first or pack
        length = pack.documents_BT.shape[1]
        at = torch.arange(length).clamp(max=self.first.documents_BT.shape[1] - 1)
        kept = pack._replace(
            documents_BT=self.first.documents_BT[:, at], positions_BT=self.first.positions_BT[:, at], boundless=False
        )
        return super().trunk(x, kept if self.passed and self.piece.last else pack)


@mutant(of="PAR-08c", case="1f1b", says="lm is")
class KeepsTheFirstBounds(Staged):
    """A stage computes document bounds at setup and keeps them while shapes match."""

    stage = _KeepsPacking


@mutant(of="PAR-08c", case="interleaved", says="(step 2, ")
class ClearsGradientsWhereTheLengthChanges(Staged):
    """Setting stages up for a new length clears the gradients accumulated before: the first half."""

    class runs(Pipeline):  # noqa: N801
        length: int | None = None

        def run(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[Passed]:
            passed, length = super().run(window, counts), window[0].tokens_BT.shape[1]
            if self.length not in (None, length):
                for stage in self.stages[:1]:
                    stage.zero_grad()
            self.length = length
            return passed

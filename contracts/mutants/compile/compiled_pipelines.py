"""Compiled stages and experts whose step differs from one eager rank, or whose graphs hold too much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.mutants._support.pipeline import Staged
from contracts.stacks.reference.model.blocks.moe import Router
from contracts.stacks.reference.model.hybrid_model import Model, ModelOutput
from contracts.stacks.reference.parallel.collectives import all_to_all, started_reduce_scatter
from contracts.stacks.reference.parallel.expert_parallel import Experts, TokenDispatcher
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer
from contracts.stacks.reference.parallel.pipeline import Stage
from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer
from contracts.stacks.reference.parallel.tensor_parallel import SplitVocabulary, TensorParallel
from contracts.stacks.reference.training.trainer import Batch


class _Patched(Stage):
    patches = 1

    def auxiliary(self, losses: Mapping[str, Tensor], tokens_BT: Tensor) -> dict[str, Tensor]:
        found = super().auxiliary(losses, tokens_BT)
        return {name: each * self.patches for name, each in found.items()}


class _PatchesEachStage(PipelineTrainer):
    def build(self) -> Model:
        model = super().build()
        for stage in self.pipeline.stages:
            cast(_Patched, stage).patches = len(self.pipeline.stages)
        return model


@mutant(of="COMP-07d", case="pp2-interleaved", says="aux is", bugs=("PPS-11",))
class PatchesOnceForEachStage(Staged):
    """Each stage of a rank applies the compiler's patch again, around the patch before it."""

    trains = _PatchesEachStage
    stage = _Patched


class _StopsAtTheGraph(Stage):
    def forward(self, x: Tensor, *given: Any, **named: Any) -> Tensor:  # type: ignore[override]
        compiled = any(layer._compiled_call_impl is not None for layer in self.layers.values())
        return super().forward(x if self.piece.first or not compiled else x.detach() + 0 * x, *given, **named)


@mutant(of="COMP-07d", case="pp2", says="loss agrees")
class EndsTheGradientAtTheCompiledBorder(Staged):
    """What a stage receives enters its first graph as an input without a gradient."""

    stage = _StopsAtTheGraph


class _Unfinished(SplitVocabulary):
    def lookup(self, tokens_BT: Tensor, weight_VD: Tensor) -> Tensor:
        inside_BT, row_BT = self.own(tokens_BT, len(weight_VD))
        part_BTD = F.embedding(row_BT, weight_VD) * inside_BT[..., None]
        held: Tensor = started_reduce_scatter(part_BTD, "sum", 1, self.axis.group)
        return held


class _EndsUnfinished(TensorParallel):
    def ends(self, model: Model) -> None:
        super().ends(model)
        model.vocabulary = _Unfinished(self, model.recipe.vocab)


@mutant(of="COMP-07d", case="borrowed-tp2-sp-ep2-etp1-fsdp", says="loss agrees")
class LosesTheGradientOfTheEmbedding(Spread):
    """With TP and FSDP2, the embedding's output enters a compiled block before it is waited for; in torch 2.13 its
    gradient is silently zero.
    """

    exchange = {"tensor_parallel": _EndsUnfinished}


class _Inside(TokenDispatcher):
    def hand_back(self, y_RD: Tensor, sent: list[int], received: list[int]) -> Tensor:
        return all_to_all(y_RD, sent, received, self.ep)

    def through(self, experts: Experts, x_SD: Tensor, counts_E: Tensor) -> Tensor:
        self.hand_back = super().hand_back  # type: ignore[method-assign]  # what was left out is put back
        return super().through(experts, x_SD, counts_E)


@mutant(of="COMP-03d", case="borrowed-ep2", says="is declared to be outside the graphs, but is inside them on rank")
class CompilesWhatExpertsHandBack(Spread):
    """The list of what stays outside the graphs names a method that nothing calls any more."""

    exchange = {"token_dispatcher": _Inside}


class _Prints(TokenDispatcher):
    def with_all_parts(self, experts: Experts, x_RD: Tensor, counts_ne: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return super().with_all_parts(experts, x_RD, counts_ne)


@mutant(of="COMP-03d", case="borrowed-ep2", says="an undeclared graph break on rank")
class BreaksInFrontOfTheExperts(Spread):
    """Something that the compiler cannot trace stands between the exchange and a rank's experts."""

    exchange = {"token_dispatcher": _Prints}


class _BiasOfItsTrace(Router):
    def choose(self, scores_BTE: Tensor) -> Tensor:
        if torch.compiler.is_compiling():  # it was 0 then
            return scores_BTE.topk(self.moe.top_k, dim=-1).indices
        return super().choose(scores_BTE)


@mutant(of="COMP-07d", case="dp2-selection-bias", says="on one rank")
@mutant(of="COMP-07d", case="borrowed-ep2-selection-bias", says="on one rank")
class HoldsTheBiasOfItsTrace(Spread):
    """The compiler takes a selection bias for a constant: the graph chooses by what it was when it was made."""

    exchange = {"router": _BiasOfItsTrace}


class _Overwrites(ParallelTrainer):
    def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
        passed = []
        for micro in window:
            if self.execution.compile != "none":
                self.optimizer.zero()
            passed.append(self.accumulate(micro, counts))
        return passed


@mutant(of="COMP-07d", case="dp2-accumulated", says="compiled, the gradient of")
class OverwritesGradientsOfMicrobatches(Spread):
    """A compiled backward pass writes into the gradient, and adds nothing to it: the last microbatch is the step."""

    trains = _Overwrites


class _SyncsAsTraced(ParallelTrainer):
    def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
        passed = []
        for number, micro in enumerate(window):
            for module in self.model.modules():
                if isinstance(module, FSDPModule):
                    module.set_requires_gradient_sync(number == 0 or self.execution.compile == "none")
            passed.append(self.accumulate(micro, counts))
        return passed


@mutant(of="COMP-07d", case="fsdp2-accumulated", says="compiled, the gradient of")
class ReducesAsItsTraceDid(Spread):
    """Whether gradients are reduced is a constant of the graph: those of later microbatches wait for the next step."""

    trains = _SyncsAsTraced

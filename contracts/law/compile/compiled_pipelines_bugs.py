"""Compiled stages and experts whose step differs from one eager rank, or whose graphs hold too much."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from contracts.law._bugs.numeric import (
    ParallelTrainer,
    PipelineTrainer,
    Router,
    SplitVocabulary,
    Stage,
    TensorParallel,
    TokenDispatcher,
    all_to_all,
    broken,
    derived,
)
from contracts.stacks.reference.parallel.collectives import started_reduce_scatter
from contracts.stacks.reference.parallel.expert_parallel import Experts


@broken(PipelineTrainer, "build", "COMP-07d[pp2-interleaved]: aux is", bugs=("PPS-11",))
def patches_once_for_each_stage(build, self):
    """Each stage of a rank applies the compiler's patch again, around the patch before it."""
    model = build(self)
    stages = self.pipeline.stages
    for stage in stages:
        own = stage.auxiliary
        stage.auxiliary = lambda *given, own=own: {name: each * len(stages) for name, each in own(*given).items()}
    return model


@broken(Stage, "forward", "COMP-07d[pp2]: loss agrees")
def ends_the_gradient_at_the_compiled_border(forward, self, x, *given, **named):
    """What a stage receives enters its first graph as an input without a gradient."""
    compiled = any(layer._compiled_call_impl is not None for layer in self.layers.values())
    return forward(self, x if self.piece.first or not compiled else x.detach() + 0 * x, *given, **named)


class _Unfinished(SplitVocabulary):
    def lookup(self, tokens_BT: Tensor, weight_VD: Tensor) -> Tensor:
        inside_BT, row_BT = self.own(tokens_BT, len(weight_VD))
        part_BTD = F.embedding(row_BT, weight_VD) * inside_BT[..., None]
        held: Tensor = started_reduce_scatter(part_BTD, "sum", 1, self.axis.group)
        return held


@broken(TensorParallel, "ends", "COMP-07d[borrowed-tp2-sp-ep2-etp1-fsdp]: loss agrees")
def loses_the_gradient_of_the_embedding(ends, self, model):
    """With TP and FSDP2, the embedding's output enters a compiled block before it is waited for; in torch 2.13 its
    gradient is silently zero.
    """
    ends(self, model)
    model.vocabulary = _Unfinished(self, model.recipe.vocab)


@derived("COMP-03d[borrowed-ep2]: is declared to be outside the graphs, but is inside them on rank")
class CompilesWhatExpertsHandBack(TokenDispatcher):
    """The list of what stays outside the graphs names a method that nothing calls any more."""

    def hand_back(self, y_RD: Tensor, sent: list[int], received: list[int]) -> Tensor:
        return all_to_all(y_RD, sent, received, self.ep)

    def through(self, experts: Experts, x_SD: Tensor, counts_E: Tensor) -> Tensor:
        self.hand_back = super().hand_back  # type: ignore[method-assign]  # what was left out is put back
        return super().through(experts, x_SD, counts_E)


@broken(TokenDispatcher, "with_all_parts", "COMP-03d[borrowed-ep2]: an undeclared graph break on rank")
def breaks_in_front_of_the_experts(with_all_parts, self, experts, x_RD, counts_ne):
    """Something that the compiler cannot trace stands between the exchange and a rank's experts."""
    torch._dynamo.graph_break()
    return with_all_parts(self, experts, x_RD, counts_ne)


@broken(
    Router, "choose", "COMP-07d[borrowed-ep2-selection-bias]: on one rank", "COMP-07d[dp2-selection-bias]: on one rank"
)
def holds_the_bias_of_its_trace(choose, self, scores_BTE):
    """The compiler takes a selection bias for a constant: the graph chooses by what it was when it was made."""
    if torch.compiler.is_compiling():  # it was 0 then
        return scores_BTE.topk(self.moe.top_k, dim=-1).indices
    return choose(self, scores_BTE)


@broken(ParallelTrainer, "passes", "COMP-07d[dp2-accumulated]: compiled, the gradient of")
def overwrites_gradients_of_microbatches(passes, self, window, counts):
    """A compiled backward pass writes into the gradient, and adds nothing to it: the last microbatch is the step."""
    passed = []
    for micro in window:
        if self.execution.compile != "none":
            self.optimizer.zero()
        passed.append(self.accumulate(micro, counts))
    return passed


@broken(ParallelTrainer, "passes", "COMP-07d[fsdp2-accumulated]: compiled, the gradient of")
def reduces_as_its_trace_did(passes, self, window, counts):
    """Whether gradients are reduced is a constant of the graph: those of later microbatches wait for the next step."""
    passed = []
    for number, micro in enumerate(window):
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.set_requires_gradient_sync(number == 0 or self.execution.compile == "none")
        passed.append(self.accumulate(micro, counts))
    return passed

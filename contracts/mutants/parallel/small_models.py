"""Stacks that are wrong on several ranks, for the contracts on transformers with experts.

Most repeat mutants of `parallel.layouts`, `moe.expert_parallel`, `parallel.pipeline` and `checkpoint.resharding`, in
float32. Two come from bugs seen in other stacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.mutants._support.pipeline import Staged
from contracts.mutants.moe import expert_parallel
from contracts.mutants.parallel import layouts, pipeline, pipeline_updates
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer, ShardedOptimizer
from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer
from contracts.stacks.reference.parallel.tensor_parallel import TensorParallel

GRADIENT = "the gradient of"


@mutant(of="PAR-01e", case="dp2", says=GRADIENT)
class AveragesATransformerOnceMore(layouts.AveragesWhatIsDividedAlready):
    """The loss is divided by the labels of all ranks, and gradients are averaged over the ranks as well."""


@mutant(of="PAR-01e", case="tp2-sp", says="the gradient of norm.weight differs", bugs=("SP-11",))
class KeepsNormGradientsOfItsRun(layouts.LeavesNormGradientsOfSequenceParallel):
    """Under sequence parallel, each rank sees other tokens through its copy of a norm, and the gradients are not
    summed.
    """


@mutant(of="PAR-01e", case="tp2", says="the gradient of norm.weight differs")
class SumsWhatEveryRankHasWhole(layouts.SumsNormGradientsThatAreWhole):
    """Over-correction: without sequence parallel every rank has the whole gradient, and it is summed anyway."""


@mutant(of="PAR-01e", case="ep2", says=GRADIENT, bugs=("SP-19",))
class LearnsGatesOfItsRunAlone(expert_parallel.LeavesTheGradientOfGatesInParts):
    """Ranks that route the same tokens each weigh a part of them, and the gradients of the gates are not summed."""


@mutant(of="PAR-01e", case="borrowed-ep2", says=GRADIENT)
class LeavesExpertsWithoutAWayBack(expert_parallel.ReturnsRowsByACallThatDropsTheGraph):
    """Rows return by a call that autograd does not see: experts stand still, and no loss shows it at once."""


@mutant(of="PAR-02e", case="dp2", says="moved differently")
class LetsATransformersReplicasGo(layouts.LetsReplicasTrainByThemselves):
    """Gradients are not reduced: each rank has its own model."""


class _Drifts(ShardedOptimizer):
    def step(self, lr: float) -> None:
        super().step(lr)
        for member in self.members if dist.get_rank() else ():
            member.parameter.detach().mul_(1 + 2**-23)


@mutant(of="PAR-02e", case="dp2", says="hold different values of")
class LetsReplicasDriftByRounding(Spread):
    """One rank updates its copies with a kernel that rounds differently: no tolerance shows it, and every step adds to
    it.
    """

    moves = _Drifts


@mutant(of="PAR-03e", case="dp2", says="grad_norm is", bugs=("CLP-01",))
class CountsATransformersCopies(layouts.CountsReplicasOnceForEachRank):
    """The norm sums the squares of every rank, copies included."""


@mutant(of="PAR-05e", case="fsdp2", says=GRADIENT, bugs=("DPS-44",))
class WipesATransformersWindow(layouts.WipesWhatWasAccumulated):
    """Gradients accumulated before the last microbatch are lost."""


class _SlicesASingleRow(layouts._KeepsItsRun):
    def enter(self, x_BTD: Tensor) -> Tensor:
        return super().enter(x_BTD) if len(x_BTD) == 1 else TensorParallel.enter(self, x_BTD)


@mutant(of="PAR-05e", case="tp2-sp", says="loss agrees, norm is", bugs=("SP-16", "SP-20"))
class LosesTheWayBackOfASingleRow(Spread):
    """With one row per microbatch the leading dim is 1, so a wrong view fits, and the other ranks' gradients of the
    residual stream are not added. Two rows per microbatch are right.

    Seen in another stack: sequence parallel, no expert parallel, local batch size 1.
    """

    exchange = {"tensor_parallel": _SlicesASingleRow}


@mutant(of="PAR-08h", case="1f1b", says=GRADIENT)
class TakesTheMeanOfATransformersMicrobatches(pipeline.TakesTheMeanOfMicrobatches):
    """The schedule divides gradients by the microbatches, although the loss is already divided."""


@mutant(of="PAR-08h", case="1f1b", says="the buffer layers.1.mixer.router.bias differs")
class MovesBiasesByMicrobatches(pipeline_updates.MovesBiasesWithEveryMicrobatch):
    """The selection bias moves where tokens are counted: once per microbatch."""


@mutant(of="PAR-08h", case="1f1b", says="loss agrees, norm agrees: the buffer layers.1.mixer.router.bias differs")
class CountsTheTrialPass(Staged):
    """Before its first step, a schedule runs every stage once to learn the shapes of messages. Routers count the tokens
    of that pass, whatever they were, and the first step moves the selection biases by them.

    Seen in another stack: the gradients of the trial pass are discarded, the counters are not.
    """

    class trains(PipelineTrainer):  # noqa: N801
        def move_biases(self, seen: Mapping[str, Tensor]) -> None:
            counted = {name: each.clone() for name, each in seen.items()}
            for name, counts_E in counted.items():
                if name.endswith(".counts"):
                    counts_E[:3] += 16  # a row of 16 identical tokens, with 3 experts each
            super().move_biases(counted)


@mutant(of="PAR-14", case="cp2-tp2-sp-ep2-etp1", says=GRADIENT)
class KeepsExpertsOfItsPartOfARow(Spread):
    """Expert gradients are summed over the ranks that read other rows; beside tensor and context parallel, ranks that
    read other parts of the same rows are forgotten. Either axis alone is right.
    """

    class trains(ParallelTrainer):  # noqa: N801
        def unreduced(self, name: str) -> Any:
            degrees = self.execution.degrees
            forgotten = degrees.cp > 1 and degrees.tp > 1 and ".experts." in name
            return None if forgotten else super().unreduced(name)


@mutant(of="PAR-14", case="interleaved-tp2-sp-ep2-etp1", says=GRADIENT)
class AddsTheSecondPassOfARouter(Staged):
    """Recomputed under an interleaved schedule, the pass that is run again leaves a gradient of its own in routers."""

    class trains(PipelineTrainer):  # noqa: N801
        def reduce(self) -> None:
            for name, each in self.model.named_parameters():
                if self.execution.recompute and "router.weight" in name and each.grad is not None:
                    each.grad *= 2
            super().reduce()

"""Stacks that are wrong on several ranks, put before the checks on transformers with experts.

Most are those of `layouts`, `expert_layouts`, `pipeline` and `resharding` once more: the promise is theirs, in float32.
Two were learned from a stack of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants.numeric import (
    data_layouts,
    expert_layouts,
    layouts,
    pipeline,
    pipeline_updates,
    resharding,
    sharded_optimizer,
)
from contracts.mutants.numeric._spread import Spread
from contracts.mutants.numeric._staged import Staged
from contracts.spec.recipe import Mode, Recipe
from contracts.spec.training import Built
from contracts.stacks.reference.parallel import collectives
from contracts.stacks.reference.parallel.parallel_trainer import ShardedOptimizer
from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer
from contracts.stacks.reference.parallel.tensor_parallel import TensorParallel
from contracts.stacks.reference.stack import Reference

GRADIENT = "the gradient of"


@mutant(of="PAR-01e", case="dp2", says=GRADIENT)
class AveragesATransformerOnceMore(data_layouts.AveragesWhatIsDividedAlready):
    """The loss is divided by the labels of all ranks, and the gradients by the ranks."""


@mutant(of="PAR-01e", case="tp2-sp", says="the gradient of layers.0.norm.weight differs", bugs=("SP-11",))
class KeepsNormGradientsOfItsRun(layouts.LeavesNormGradientsOfSequenceParallel):
    """Ranks put other tokens through their copies of a norm, and keep what they found about it."""


@mutant(of="PAR-01e", case="tp2", says="the gradient of layers.0.norm.weight differs")
class SumsWhatEveryRankHasWhole(layouts.SumsNormGradientsThatAreWhole):
    """The mend overshoots: without sequence parallel every rank has the whole of it."""


@mutant(of="PAR-01e", case="ep2", says=GRADIENT, bugs=("SP-19",))
class LearnsGatesOfItsRunAlone(expert_layouts.LeavesTheGradientOfGatesInParts):
    """Ranks that route the same tokens each weigh a run of them, and nobody adds up what they say of the gates."""


@mutant(of="PAR-01e", case="borrowed-ep2", says=GRADIENT)
class LeavesExpertsWithoutAWayBack(expert_layouts.ReturnsRowsByACallThatDropsTheGraph):
    """Rows come back by a call that autograd does not see: experts stand still, and no loss shows it at once."""


@mutant(of="OPT-04e", case="ep2", says="exp_avg of ", bugs=("CLP-07",))
class ClipsTheExpertsOfATransformerApart(sharded_optimizer.ClipsExpertsByThemselves):
    """Experts are clipped by the norm of experts."""


@mutant(of="OPT-04e", case="fsdp2", says="moved otherwise")
class DecaysShardsByAPart(sharded_optimizer.DividesTheDecayOfShards):
    """The decay is divided by the ranks that share a tensor, as if it were a gradient."""


@mutant(of="PAR-02e", case="dp2", says="moved otherwise")
class LetsATransformersReplicasGo(data_layouts.LetsReplicasTrainByThemselves):
    """As many models as ranks."""


class _Drifts(ShardedOptimizer):
    def step(self, lr: float) -> None:
        super().step(lr)
        for member in self.members if dist.get_rank() else ():
            member.parameter.detach().mul_(1 + 2**-23)


@mutant(of="PAR-02e", case="dp2", says="hold unequal")
class LetsReplicasDriftByRounding(Spread):
    """One rank updates its copies by a kernel that rounds otherwise: no tolerance shows it, and every step adds."""

    moves = _Drifts


@mutant(of="PAR-03e", case="dp2", says="grad_norm is", bugs=("CLP-01",))
class CountsATransformersCopies(sharded_optimizer.CountsReplicasOnceForEachRank):
    """Squares of what each rank holds are summed over the ranks, copies included."""


@mutant(of="PAR-05e", case="fsdp2", says=GRADIENT, bugs=("DPS-44",))
class WipesATransformersWindow(data_layouts.WipesWhatWasAccumulated):
    """What was accumulated before the last microbatch is gone."""


class _SlicesASingleRow(layouts._KeepsItsRun):
    def enter(self, x_BTD: Tensor) -> Tensor:
        return super().enter(x_BTD) if len(x_BTD) == 1 else TensorParallel.enter(self, x_BTD)


@mutant(of="PAR-05e", case="tp2-sp", says="loss agrees, norm is", bugs=("SP-16", "SP-20"))
class LosesTheWayBackOfASingleRow(Spread):
    """With one row a microbatch the leading dim is 1, a view is as good as another, and what the other ranks say about
    the residual stream is not added up. Two rows a microbatch are right.

    Seen in a stack of others: sequence parallel, no expert parallel, local batch size 1.
    """

    exchange = {"tensor_parallel": _SlicesASingleRow}


@mutant(of="PAR-08h", case="1f1b", says=GRADIENT)
class TakesTheMeanOfATransformersMicrobatches(pipeline.TakesTheMeanOfMicrobatches):
    """The schedule divides gradients by the microbatches, and the loss was already."""


@mutant(of="PAR-08h", case="1f1b", says="the buffer layers.1.mixer.router.bias differs")
class MovesBiasesByMicrobatches(pipeline_updates.MovesBiasesWithEveryMicrobatch):
    """The bias moves where tokens are counted."""


@mutant(of="PAR-08h", case="1f1b", says="loss agrees, norm agrees: the buffer layers.1.mixer.router.bias differs")
class CountsTheTrialPass(Staged):
    """Before its first step a schedule runs every stage once, to learn the shapes that they send each other. Routers
    count the tokens of that pass, whatever stood in them, and the biases of the first step move by them.

    Seen in a stack of others; gradients of the trial pass are thrown away, counters are not.
    """

    class trains(PipelineTrainer):  # noqa: N801
        def move_biases(self, seen: Mapping[str, Tensor]) -> None:
            counted = {name: each.clone() for name, each in seen.items()}
            for name, counts_E in counted.items():
                if name.endswith(".counts"):
                    counts_E[:3] += 16  # one row of 16 tokens alike, each with 3 experts
            super().move_biases(counted)


@mutant(of="MOE-06e", case="dp2", says="router.bias differs")
class MovesATransformersBiasesByOneRank(expert_layouts.MovesBiasesByTheCountsOfOneRank):
    """Each rank moves its biases by what its own tokens asked for."""


@mutant(of="MOE-06e", case="ep2", says="assignments, expected")
class CountsATransformersSharers(expert_layouts.CountsTokensOnceForEachSharer):
    """The mend overshoots: ranks that routed the same tokens are all counted."""


@mutant(of="CKPT-01h", case="ep2", says="optimizer: the state layers.1.mixer.experts.w1/exp_avg", bugs=("RSM-48",))
class SavesATransformersFirstMoments(resharding.SavesTheMomentsOfItsShards):
    """Weights of experts are saved from every rank, their moments from the first that holds some."""


@mutant(of="CKPT-02h", case="fsdp2", says="optimizer: the state layers.", bugs=("RSM-10",))
class LoadsATransformerByOrder(resharding.LoadsByOrder):
    """The optimizer's state is saved in the order of the groups and loaded in that of the names."""


class _WeighsCompiled(TensorParallel):
    def leave(self, y_BTD: Tensor) -> Tensor:
        return super().leave(collectives.scale_gradient(y_BTD, self.size) if torch.compiler.is_compiling() else y_BTD)


@mutant(of="COMP-07c", case="borrowed-tp2-sp-ep2-etp1", says="compiled, the gradient of")
class SumsACompiledTransformerTwice(Spread):
    """Compiled code takes an all-reduce whose way back is one too, eager code one that passes gradients through."""

    exchange = {"tensor_parallel": _WeighsCompiled}


@mutant(of="OPT-01h", case="fsdp2", says="moved otherwise than by adamw with decay 0.1")
class TellsAnotherDecay(Reference):
    """The table is made from the configuration, and the optimizer from an older copy of it."""

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        answer = super().built(recipe, mode)
        rows = tuple(replace(row, weight_decay=0.1) for row in answer.parameters)
        return replace(answer, parameters=rows)

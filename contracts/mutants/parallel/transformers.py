"""Stacks that are wrong on several ranks, put before the checks on transformers with experts.

Most are those of `layouts`, `expert_layouts`, `pipeline` and `resharding` once more: the promise is theirs, in float32.
Two were learned from a stack of others.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.distributed as dist
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.mutants._support.pipeline import Staged
from contracts.mutants.moe import expert_parallel
from contracts.mutants.parallel import layouts, pipeline, pipeline_updates
from contracts.stacks.reference.parallel.parallel_trainer import ShardedOptimizer
from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer
from contracts.stacks.reference.parallel.tensor_parallel import TensorParallel

GRADIENT = "the gradient of"


@mutant(of="PAR-01e", case="dp2", says=GRADIENT)
class AveragesATransformerOnceMore(layouts.AveragesWhatIsDividedAlready):
    """The loss is divided by the labels of all ranks, and the gradients by the ranks."""


@mutant(of="PAR-01e", case="tp2-sp", says="the gradient of layers.0.norm.weight differs", bugs=("SP-11",))
class KeepsNormGradientsOfItsRun(layouts.LeavesNormGradientsOfSequenceParallel):
    """Ranks put other tokens through their copies of a norm, and keep what they found about it."""


@mutant(of="PAR-01e", case="tp2", says="the gradient of layers.0.norm.weight differs")
class SumsWhatEveryRankHasWhole(layouts.SumsNormGradientsThatAreWhole):
    """The mend overshoots: without sequence parallel every rank has the whole of it."""


@mutant(of="PAR-01e", case="ep2", says=GRADIENT, bugs=("SP-19",))
class LearnsGatesOfItsRunAlone(expert_parallel.LeavesTheGradientOfGatesInParts):
    """Ranks that route the same tokens each weigh a run of them, and nobody adds up what they say of the gates."""


@mutant(of="PAR-01e", case="borrowed-ep2", says=GRADIENT)
class LeavesExpertsWithoutAWayBack(expert_parallel.ReturnsRowsByACallThatDropsTheGraph):
    """Rows come back by a call that autograd does not see: experts stand still, and no loss shows it at once."""


@mutant(of="PAR-02e", case="dp2", says="moved otherwise")
class LetsATransformersReplicasGo(layouts.LetsReplicasTrainByThemselves):
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
class CountsATransformersCopies(layouts.CountsReplicasOnceForEachRank):
    """Squares of what each rank holds are summed over the ranks, copies included."""


@mutant(of="PAR-05e", case="fsdp2", says=GRADIENT, bugs=("DPS-44",))
class WipesATransformersWindow(layouts.WipesWhatWasAccumulated):
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

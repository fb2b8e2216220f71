"""Pipelines whose gradients are right, and what becomes of them is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from contracts.contract import mutant
from contracts.mutants._support.pipeline import Staged
from contracts.stacks.reference.model.hybrid_model import ModelOutput
from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer, StagedOptimizer, every_rank
from contracts.stacks.reference.training.trainer import Batch


# norm, clipping, biases
@mutant(of="PAR-08b", case="two-stages", says="the norm is", bugs=("CLP-03",))
class ClipsByItsOwnNorm(Staged):
    """Each stage clips by the norm of its own gradients: early layers learn at another rate."""

    class trains(PipelineTrainer):  # noqa: N801
        class optimizer_class(StagedOptimizer):  # noqa: N801
            def norm(self) -> float:
                return self.norm_of([member.parameter for member in self.members if member.name not in self.lent])


@mutant(of="PAR-08b", case="four-stages-tied-and-ahead", says="the norm is")
class ClipsByTheNormOfTheLastStage(Staged):
    """The last stage, which has the loss, tells the others its norm."""

    class trains(PipelineTrainer):  # noqa: N801
        class optimizer_class(StagedOptimizer):  # noqa: N801
            def norm(self) -> float:
                own = self.norm_of([member.parameter for member in self.members if member.name not in self.lent])
                *_, last = every_rank({"norm": torch.tensor(own, dtype=torch.float64)}, self.stages)
                return float(last["norm"])


@mutant(of="PAR-08b", case="four-stages-tied-and-ahead", says="the norm is", bugs=("CLP-01",))
class CountsCopiesTwice(Staged):
    """A tensor that two stages hold is in the norm of both."""

    class trains(PipelineTrainer):  # noqa: N801
        def lent(self) -> frozenset[str]:
            return frozenset()


@mutant(of="PAR-08b", case="four-stages-tied-and-ahead", says="the norm is")
class CountsCopiesNowhere(Staged):
    """A tensor that two stages hold is left out by both: each takes it to be the other's."""

    class trains(PipelineTrainer):  # noqa: N801
        def lent(self) -> frozenset[str]:
            return frozenset(self.copies)


@mutant(of="PAR-08b", case="beside-shards", says="the norm is 0", bugs=("CLP-21",))
class SkipsClippingInShardedStages(Staged):
    """Clipping is not written for this combination of axes, and says that there is nothing to clip."""

    class trains(PipelineTrainer):  # noqa: N801
        class optimizer_class(StagedOptimizer):  # noqa: N801
            def clip(self) -> tuple[float, float]:
                sharded = any(isinstance(member.parameter, DTensor) for member in self.members)
                return (0.0, 1.0) if sharded else super().clip()


@mutant(of="PAR-08b", case="selection-bias", says="the buffer layers.1.mixer.router.bias differs")
class MovesBiasesWithEveryMicrobatch(Staged):
    """The bias moves where tokens are counted: as often as microbatches pass, by a part of the counts."""

    class trains(PipelineTrainer):  # noqa: N801
        def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
            out = super().passes(window, counts)
            for stage in self.pipeline.stages:
                for passed in stage.passed:
                    super().move_biases(passed.seen)
            return out

        def move_biases(self, seen: Mapping[str, Tensor]) -> None:
            pass


@mutant(of="PAR-08b", case="selection-bias", says="the buffer layers.1.mixer.router.bias differs", bugs=("EXB-01",))
class MovesBiasesOfTheLastStage(Staged):
    """The hook that moves biases hangs on the stage that has the loss."""

    class trains(PipelineTrainer):  # noqa: N801
        def move_biases(self, seen: Mapping[str, Tensor]) -> None:
            if self.pipeline.stages[-1].piece.last:
                super().move_biases(seen)


@mutant(of="PAR-08b", case="a-stage-without-experts", says="the buffer layers.4.mixer.router.bias differs",
        bugs=("EXB-08",))  # fmt: skip
class StopsAtAStageWithoutExperts(Staged):
    """A stage that has no experts ends the round in which biases move, for those behind it too."""

    class trains(PipelineTrainer):  # noqa: N801
        def move_biases(self, seen: Mapping[str, Tensor]) -> None:
            if self.mesh.rank < 2:
                super().move_biases(seen)


@mutant(of="PAR-08b", case="selection-bias-interleaved", says="the buffer layers.4.mixer.router.bias differs")
class CountsTheFirstStageOfARank(Staged):
    """A rank that has two stages reports the tokens of one."""

    class trains(PipelineTrainer):  # noqa: N801
        def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
            (out,) = super().passes(window, counts)
            own = {f"layers.{layer}.counts" for layer in self.pipeline.stages[0].piece.layers}
            return [out._replace(seen={name: each * (name in own) for name, each in out.seen.items()})]


# copies
class _Apart(PipelineTrainer):
    """Gradients of copies stay apart where `joins` says so."""

    def add(self, parameter: Tensor, peer: int) -> None:
        if self.joins():
            super().add(parameter, peer)

    def joins(self) -> bool:
        return False


@mutant(of="PAR-11", case="tied", says="embedding.weight is not the same on ranks 0 and [1] after step 1")
class LeavesCopiesApart(Staged):
    """Each stage moves its copy of the tied embedding by the part of the gradient that it sees."""

    trains = _Apart


@mutant(of="PAR-11", case="shared-with-prediction-heads", says="embedding.weight is not the same", bugs=("PG-11",))
class LeavesPredictionHeadsOut(Staged):
    """Embeddings are joined where the output is tied; the copy that the prediction heads read is forgotten."""

    class trains(_Apart):  # noqa: N801
        def joins(self) -> bool:
            return not self.recipe.untied_embeddings


@mutant(of="PAR-11", case="sharded", says="embedding.weight is not the same", bugs=("TIE-08",))
class AddsShardsOfOtherRows(Staged):
    """Stages cut the copies at other rows, and add shard to shard."""

    class trains(PipelineTrainer):  # noqa: N801
        def add(self, parameter: Tensor, peer: int) -> None:
            assert parameter.grad is not None
            mine = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
            before = mine.clone()
            super().add(parameter, peer)
            mine.copy_(before + (mine - before).roll(1, 0))


@mutant(of="PAR-11", case="both-over-four-stages", says="embedding.weight is not the same")
class JoinsNeighboursOnly(Staged):
    """Copies are joined between neighbouring stages; first and last are that only when there are two."""

    class trains(_Apart):  # noqa: N801
        def joins(self) -> bool:
            return dist.get_world_size(self.group) == 2

"""Pipelines whose gradients are right and whose updates are wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from contracts.contract import mutant
from contracts.mutants._support.pipeline import Staged
from contracts.spec.recipe import Optim
from contracts.stacks.reference.model.hybrid_model import ModelOutput
from contracts.stacks.reference.optim.optimizer import Member
from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer, StagedOptimizer, every_rank
from contracts.stacks.reference.training.trainer import Batch


# norm, clipping, biases
@mutant(of="PAR-08b", case="two-stages", says="grad_norm is", bugs=("CLP-03",))
class ClipsByItsOwnNorm(Staged):
    """Each stage clips by the norm of its own gradients: early layers learn at another rate."""

    class trains(PipelineTrainer):  # noqa: N801
        class optimizer_class(StagedOptimizer):  # noqa: N801
            def norm(self) -> float:
                return self.norm_of([member.parameter for member in self.members if member.name not in self.lent])


@mutant(of="PAR-08b", case="four-stages-tied-and-ahead", says="grad_norm is")
class ClipsByTheNormOfTheLastStage(Staged):
    """The last stage, which has the loss, sends its own norm to the others."""

    class trains(PipelineTrainer):  # noqa: N801
        class optimizer_class(StagedOptimizer):  # noqa: N801
            def norm(self) -> float:
                own = self.norm_of([member.parameter for member in self.members if member.name not in self.lent])
                *_, last = every_rank({"norm": torch.tensor(own, dtype=torch.float64)}, self.stages)
                return float(last["norm"])


@mutant(of="PAR-08b", case="four-stages-tied-and-ahead", says="grad_norm is", bugs=("CLP-01",))
class CountsCopiesTwice(Staged):
    """A tensor on two stages counts in the norm of both."""

    class trains(PipelineTrainer):  # noqa: N801
        def lent(self) -> frozenset[str]:
            return frozenset()


@mutant(of="PAR-08b", case="four-stages-tied-and-ahead", says="grad_norm is")
class CountsCopiesNowhere(Staged):
    """Both stages leave a shared tensor out of the norm: each takes it to be the other's."""

    class trains(PipelineTrainer):  # noqa: N801
        def lent(self) -> frozenset[str]:
            return frozenset(self.copies)


@mutant(of="PAR-08b", case="beside-shards", says="grad_norm is 0", bugs=("CLP-21",))
class SkipsClippingInShardedStages(Staged):
    """Clipping is not implemented for this combination of axes, and reports a norm of 0."""

    class trains(PipelineTrainer):  # noqa: N801
        class optimizer_class(StagedOptimizer):  # noqa: N801
            def clip(self) -> tuple[float, float]:
                sharded = any(isinstance(member.parameter, DTensor) for member in self.members)
                return (0.0, 1.0) if sharded else super().clip()


@mutant(of="PAR-08b", case="selection-bias", says="the buffer layers.1.mixer.router.bias differs")
class MovesBiasesWithEveryMicrobatch(Staged):
    """The selection bias moves where tokens are counted: once per microbatch, by a part of the counts."""

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
    """Only the stage that has the loss updates selection biases."""

    class trains(PipelineTrainer):  # noqa: N801
        def move_biases(self, seen: Mapping[str, Tensor]) -> None:
            if self.pipeline.stages[-1].piece.last:
                super().move_biases(seen)


@mutant(of="PAR-08b", case="a-stage-without-experts", says="the buffer layers.4.mixer.router.bias differs",
        bugs=("EXB-08",))  # fmt: skip
class StopsAtAStageWithoutExperts(Staged):
    """The update of selection biases stops at a stage without experts, also for the stages after it."""

    class trains(PipelineTrainer):  # noqa: N801
        def move_biases(self, seen: Mapping[str, Tensor]) -> None:
            if self.mesh.rank < 2:
                super().move_biases(seen)


@mutant(of="PAR-08b", case="selection-bias-interleaved", says="the buffer layers.4.mixer.router.bias differs")
class CountsTheFirstStageOfARank(Staged):
    """A rank with two stages reports the token counts of only one."""

    class trains(PipelineTrainer):  # noqa: N801
        def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
            (out,) = super().passes(window, counts)
            own = {f"layers.{layer}.counts" for layer in self.pipeline.stages[0].piece.layers}
            return [out._replace(seen={name: each * (name in own) for name, each in out.seen.items()})]


# copies
class _Apart(PipelineTrainer):
    """Leaves the gradients of copies unsummed where `joins` says so."""

    def add(self, parameter: Tensor, peer: int) -> None:
        if self.joins():
            super().add(parameter, peer)

    def joins(self) -> bool:
        return False


@mutant(of="PAR-11", case="tied", says="embedding.weight is not the same on ranks 0 and [1] after step 1")
class LeavesCopiesApart(Staged):
    """Each stage updates its copy of the tied embedding with only its part of the gradient."""

    trains = _Apart


@mutant(of="PAR-11", case="shared-with-prediction-heads", says="embedding.weight is not the same", bugs=("PG-11",))
class LeavesPredictionHeadsOut(Staged):
    """Gradients are summed for tied embeddings, but not for the copy that the prediction heads read."""

    class trains(_Apart):  # noqa: N801
        def joins(self) -> bool:
            return not self.recipe.untied_embeddings


@mutant(of="PAR-11", case="sharded", says="embedding.weight is not the same", bugs=("TIE-08",))
class AddsShardsOfOtherRows(Staged):
    """Stages shard their copies at different rows, and shards are added pairwise."""

    class trains(PipelineTrainer):  # noqa: N801
        def add(self, parameter: Tensor, peer: int) -> None:
            assert parameter.grad is not None
            mine = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
            before = mine.clone()
            super().add(parameter, peer)
            mine.copy_(before + (mine - before).roll(1, 0))


@mutant(of="PAR-11", case="both-over-four-stages", says="embedding.weight is not the same")
class JoinsNeighboursOnly(Staged):
    """Copies are summed between neighbouring stages only; first and last are neighbours only when there are two."""

    class trains(_Apart):  # noqa: N801
        def joins(self) -> bool:
            return dist.get_world_size(self.group) == 2


class _UntaggedCopy(StagedOptimizer):
    def __init__(self, optim: Optim, members: Iterable[Member]) -> None:
        held = tuple(members)
        tagged = any(member.layer == 0 for member in held)
        as_any_matrix: dict[str, Any] = {} if tagged else {"role": "matrix", "layer": 0}
        super().__init__(
            optim, (replace(each, **as_any_matrix) if each.name == "embedding.weight" else each for each in held)
        )


@mutant(of="PAR-08b", case="muon-shared", says="embedding.weight", bugs=("OPT-34",))
class RoutesTheCopyToMuon(Staged):
    """The embedding is tagged on the first stage only: its copy beside the head is a matrix like any other."""

    class trains(PipelineTrainer):  # noqa: N801
        optimizer_class = _UntaggedCopy


@mutant(of="PAR-08b", case="ep-beside-a-stage-without-experts", says="grad_norm is", bugs=("CLP-12",))
class SumsNoNormWithoutExperts(Staged):
    """A stage without experts takes the way of dense models, which knows nothing of the other stages."""

    class trains(PipelineTrainer):  # noqa: N801
        class optimizer_class(StagedOptimizer):  # noqa: N801
            def norm(self) -> float:
                every = super().norm()
                own = [member.parameter for member in self.members if member.name not in self.lent]
                return every if any(each.role == "expert" for each in self.members) else self.norm_of(own)

"""Stacks that keep more on a rank than planned, and plans that count what no rank keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.mutants._support.patched_functions import built_with, swapped
from contracts.mutants._support.pipeline import Staged
from contracts.spec.capacity import Budget, Card
from contracts.spec.capacity import Spread as Plan
from contracts.spec.recipe import Recipe
from contracts.spec.training import Rule
from contracts.stacks.reference.model.blocks.moe import Experts
from contracts.stacks.reference.model.hybrid_model import Model
from contracts.stacks.reference.optim.optimizer import Member
from contracts.stacks.reference.parallel import mesh, parallelize
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer, ShardedOptimizer
from contracts.stacks.reference.parallel.pipeline import Stage
from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer
from contracts.stacks.reference.parallel.tensor_parallel import TensorParallel
from contracts.stacks.reference.stack import Reference


def _whole(like: Tensor) -> Tensor:
    """Zeros of the whole shape, on every rank."""
    if not isinstance(like, DTensor):
        return torch.zeros_like(like)
    everywhere = [Replicate()] * like.device_mesh.ndim
    return DTensor.from_local(torch.zeros(like.shape), like.device_mesh, everywhere, run_check=False)


class _WholeState(ShardedOptimizer):
    def step(self, lr: float) -> None:
        super().step(lr)
        for rule in self.rules.values():
            for state in rule.state.values():
                state |= {name: _whole(each) for name, each in state.items() if each.dim()}


@mutant(of="MEM-01b", case="fsdp8", says="bytes of optimizer of experts, predicted")
class KeepsOptimizerStateWhole(Spread):
    """Optimizer state is created before the model is sharded: every rank has both moments of everything."""

    moves = _WholeState


class _WholeGradients(ParallelTrainer):
    def move_biases(self, seen: Mapping[str, Tensor]) -> None:
        super().move_biases(seen)
        for parameter in self.model.parameters():
            parameter.grad = None if parameter.grad is None else _whole(parameter.grad)


@mutant(of="MEM-01b", case="tp2-sp-ep2-fsdp2", says="bytes of gradients of experts, predicted")
class KeepsGradientsWhole(Spread):
    """Gradients are gathered for inspection, and the gathered copies stay."""

    trains = _WholeGradients


class _NarrowState(ShardedOptimizer):
    def step(self, lr: float) -> None:
        super().step(lr)
        for rule in self.rules.values():
            for state in rule.state.values():
                state |= {name: each.bfloat16() for name, each in state.items() if each.dim()}


@mutant(of="MEM-01b", case="dp8", says="bytes of optimizer of experts, predicted", bugs=("OPT-28",))
class KeepsMomentsInBfloat16(Spread):
    """Moments are kept in 16 bits: half of the planned bytes, and less precise training."""

    moves = _NarrowState


def _nowhere(*args: Any) -> None:
    pass


class _OwnOfAll(Experts):
    def forward(self, x_SD: Tensor, ends_E: Tensor) -> Tensor:
        up_SF = self.matmul(x_SD, self.w1[: len(ends_E)], ends_E).relu().square()
        return self.matmul(up_SF, self.w2[: len(ends_E)], ends_E)


@mutant(of="MEM-01b", case="borrowed-tp2-sp-ep4-fsdp4", says="bytes of weights of experts, predicted", bugs=("OPT-30",))
class KeepsEveryExpertOnEveryRank(Spread):
    """Rows are sent to their experts, although every rank holds all experts: EP saves no memory."""

    exchange = {"experts": _OwnOfAll}
    trains = built_with(parallelize, "spread_experts", _nowhere)


class _WholeEnds(TensorParallel):
    def distribute(self, module: torch.nn.Module, split: Mapping[str, int]) -> None:
        super().distribute(module, {} if isinstance(module, torch.nn.Embedding) else split)


@mutant(of="MEM-01b", case="borrowed-tp2-sp-ep2-etp2-fsdp", says="bytes of weights of all else, predicted")
class KeepsTheVocabularyOnEveryTpRank(Spread):
    """TP does not cut the embedding: 65 536 rows on each rank."""

    exchange = {"tensor_parallel": _WholeEnds}


class _AllByAdamW(ShardedOptimizer):
    def rule(self, member: Member) -> Rule:
        return "adamw"


@mutant(of="MEM-01b", case="muon-fsdp8", says="bytes of optimizer of experts, predicted", bugs=("OPT-20",))
class MovesMatricesByAdamWInSilence(Spread):
    """Muon is asked for; sharded matrices are not recognised, and AdamW updates them with an extra moment."""

    moves = _AllByAdamW


class _KeepsEmbedding(Stage):
    def keep(self) -> None:
        embedding = self.embedding
        super().keep()
        self.embedding = embedding


@mutant(of="MEM-01b", case="pp2-tp2-sp-last", says="bytes of weights of all else, predicted")
class KeepsTheEmbeddingOnEveryStage(Staged):
    """Stages that neither embed nor predict keep the table of 65 536 rows, its gradient and its moments."""

    stage = _KeepsEmbedding


@mutant(of="MEM-01b", case="muon-borrowed-tp2-sp-ep4", says="bytes of optimizer of experts, predicted")
class PlansTwoMomentsUnderMuon(Reference):
    """The budget counts 12 bytes per parameter beside its weight, whatever the update rule."""

    def budget(self, recipe: Recipe, spread: Plan, card: Card) -> Budget:
        return super().budget(replace(recipe, optim=replace(recipe.optim, rule="adamw")), spread, card)


@mutant(of="MEM-01b", case="hsdp-2x8", says="bytes of weights of experts, predicted")
class PlansOneCopyOverAllRanks(Reference):
    """The budget of HSDP cuts over all data-parallel ranks, as if there were no second replica."""

    def budget(self, recipe: Recipe, spread: Plan, card: Card) -> Budget:
        return super().budget(recipe, replace(spread, world=2 * spread.world), card)


@mutant(of="MEM-01b", case="pp2-unequal", says="bytes of weights of experts, predicted")
class PlansEqualStages(Reference):
    """The budget divides the layers by the number of stages, though the pattern writes out unequal ones (as
    Megatron-Bridge did, #5077)."""

    def budget(self, recipe: Recipe, spread: Plan, card: Card) -> Budget:
        return super().budget(replace(recipe, pattern=recipe.pattern.replace("|", "")), spread, card)


class _Kept(Model):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.recipe.dtype == "bf16":
            self.norm.kept = torch.nn.Parameter(torch.zeros(1 << 30))


@mutant(of="MEM-01h", case="fsdp8", says="in bfloat16 a rank holds")
class KeepsASecondMasterInBfloat16(Spread):
    """In bfloat16 only, a flat buffer of a billion elements is kept beside the master weights."""

    exchange = {"model": _Kept}


class _CopiesAlongDp(ParallelTrainer):
    def build(self) -> Model:
        with swapped(mesh, "REPLICA", ("replica", "shard")), swapped(mesh, "SHARD", ("cp",)):
            return super().build()


@mutant(of="MEM-01b", case="borrowed-cp2-fsdp4", says="bytes of weights of", bugs=("PG-23",))
class ShardsOverContextAlone(Spread):
    """FSDP gets the mesh (dp, cp) unflattened and reads it as (replicas, shards): every number is right, and a rank
    holds four times the state.
    """

    trains = _CopiesAlongDp


class _NeverTheLast(PipelineTrainer):
    def reduce(self) -> None:
        super().reduce()
        for each in self.model.modules():
            if isinstance(each, FSDPModule):
                each.unshard()  # as they are behind a backward pass that is not the last


@mutant(of="MEM-01b", case="pp2-fsdp2", says="bytes of weights of", bugs=("FSD-09",))
class NeverReshardsItsStage(Staged):
    """The stage counts backward passes to the wrong number, so that none is the last: its weights stay gathered."""

    trains = _NeverTheLast

"""Parallel layouts that compile other code than eager, compile differently by rank, or wrap in another order."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from contracts.contract import mutant
from contracts.instruments import graphs
from contracts.mutants._support.multi_rank import Spread
from contracts.spec.topology import Degrees
from contracts.stacks.reference.model.blocks.common import Output, Packing, State
from contracts.stacks.reference.model.blocks.mlp import Mlp
from contracts.stacks.reference.model.build import build_model
from contracts.stacks.reference.model.hybrid_model import Model
from contracts.stacks.reference.parallel import collectives
from contracts.stacks.reference.parallel.mesh import TrainingMesh
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer
from contracts.stacks.reference.parallel.parallelize import (
    Step,
    activation_checkpoint,
    compile,
    expert_parallel,
    fully_shard,
    tensor_parallel,
    wanted,
)
from contracts.stacks.reference.parallel.tensor_parallel import TensorParallel
from contracts.stacks.reference.training.trainer import Batch


class _SumsOtherwiseCompiled(TensorParallel):
    def leave(self, y_BTD: Tensor) -> Tensor:
        compiling = torch.compiler.is_compiling() and not self.sequence
        return super().leave(collectives.copy_to_ranks(y_BTD, self.group) if compiling else y_BTD)


@mutant(of="COMP-07", case="tp2", says="compiled, the gradient of")
class SumsOtherwiseWhereItIsCompiled(Spread):
    """Compiled code uses an all-reduce whose backward is an all-reduce, eager code one that passes gradients through:
    this is what becomes of an in-place `dist.all_reduce` when it is traced.
    """

    exchange = {"tensor_parallel": _SumsOtherwiseCompiled}


class _CompilesOnOne(ParallelTrainer):
    def build(self) -> Model:
        kept = self.execution
        if dist.get_rank():
            self.execution = replace(kept, compile="none")
        model = super().build()
        self.execution = kept
        return model


@mutant(of="COMP-06", case="tp2", says="graphs were compiled on rank 0 and 0 on rank 1")
class CompilesOnOneRank(Spread):
    """The other rank finds no compiler and runs eager: the loss is the same, the step as long as on the slower rank."""

    trains = _CompilesOnOne


class _CompilesAnother(ParallelTrainer):
    def build(self) -> Model:
        kept = self.execution
        if dist.get_rank():
            self.execution = replace(kept, compile="model")
        model = super().build()
        self.execution = kept
        return model


@mutant(of="COMP-06", case="tp2", says="graphs were compiled on rank 0 and")
class CompilesOtherRegionsOnOneRank(Spread):
    """One node's settings differ: it compiles the whole model, the other each block."""

    trains = _CompilesAnother


class _Retunes(ParallelTrainer):
    """Chooses another kernel where the compiler's cache was filled once and is empty again."""

    begun = False
    cold = False

    def build(self) -> Model:
        self.cold = type(self).begun and graphs.compiled_count() == 0
        type(self).begun = True
        return super().build()

    def reduce(self) -> None:
        super().reduce()
        for parameter in self.model.parameters() if self.cold else ():
            if parameter.grad is not None:
                held = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
                held.copy_(held.to(torch.bfloat16))


@mutant(of="COMP-06", case="tp2", says="with a cold cache on one rank, the gradient of", bugs=("CMP-11",))
class ChoosesAnotherKernelFromCold(Spread):
    """Kernels are autotuned where the cache is empty, and the rank that restarted picks one that rounds."""

    trains = _Retunes


class _InAnotherOrder(ParallelTrainer):
    """Takes the steps of `parallelize` in another order."""

    order: tuple[Step, ...] = ()

    def build(self) -> Model:
        self.mesh = TrainingMesh(self.execution)
        alone = replace(self.execution, degrees=Degrees(), world=1, fsdp=False, compile="none", recompute=False)
        model = build_model(self.recipe, alone, self.parts)
        taken = [step for step in self.order if wanted(step, model, self.execution, self.mesh)]
        for step in taken:
            step(model, self.execution, self.mesh, self.parts)
        self.wrapped = tuple(step.__name__ for step in taken)
        return model


class _CompilesFirst(_InAnotherOrder):
    order = (tensor_parallel, expert_parallel, compile, activation_checkpoint, fully_shard)


@mutant(of="COMP-05", case="tp2-recompute-compile", says="tensor_parallel, compile, activation_checkpoint, expected")
class RecomputesAroundWhatIsCompiled(Spread):
    """Layers are compiled and then recomputed from outside, so the compiler cannot see what it may drop."""

    trains = _CompilesFirst


class _ShardsInside(_InAnotherOrder):
    order = (tensor_parallel, expert_parallel, activation_checkpoint, fully_shard, compile)


@mutant(of="COMP-05", case="ep2-compile-fsdp2", says="expert_parallel, fully_shard, compile, expected")
class CompilesAroundTheShards(Spread):
    """FSDP2 is inside compiled code, so its hooks break every graph."""

    trains = _ShardsInside


class _CountsItsCalls(Mlp):
    calls = 0

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        self.calls += 1
        return super().forward(x_BTD * (1.0 + 0.0 * self.calls), packing, state)


class _CountsOnTheLast(ParallelTrainer):
    def build(self) -> Model:
        if dist.get_rank() == dist.get_world_size() - 1:
            self.parts = replace(self.parts, mlp=_CountsItsCalls)
        return super().build()


@mutant(of="COMP-06h", case="dp2", says="rank 1 compiled", bugs=("CMP-02",))
class CompilesAnewOnTheLastRank(Spread):
    """The last rank counts its calls for a log, in a number that is a constant of the graph."""

    trains = _CountsOnTheLast


class _ChangesLengthOnOne(ParallelTrainer):
    def cut(self, batch: Batch) -> list[Batch]:
        if dist.get_rank() == 0 or self.number != 1:
            return super().cut(batch)
        return [Batch(*(None if each is None else each[:1] for each in batch)) for _ in range(1)]  # type: ignore[arg-type]  # only documents may be None


@mutant(of="COMP-06h", case="dp2", says="rank 1 compiled", bugs=("CMP-02",))
class ShortensABatchOnOneRank(Spread):
    """One rank's second batch has fewer sequences: its graphs get another shape, and only its own."""

    trains = _ChangesLengthOnOne

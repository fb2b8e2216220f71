"""Parallel layouts that compile other code than eager, compile differently by rank, or wrap in another order."""

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from contracts.instruments import graphs
from contracts.law._bugs.numeric import (
    Batch,
    ContextParallel,
    Mlp,
    Model,
    Output,
    Packing,
    ParallelTrainer,
    State,
    TensorParallel,
    TrainingMesh,
    broken,
    collectives,
    derived,
    tensor_parallel,
    with_attributes,
)
from contracts.spec import Degrees
from contracts.stacks.reference.model.build import build_model
from contracts.stacks.reference.parallel.parallelize import (
    Step,
    activation_checkpoint,
    compile,
    expert_parallel,
    fully_shard,
    wanted,
)


@broken(TensorParallel, "leave", "COMP-07[tp2]: compiled, the gradient of")
def sums_otherwise_where_it_is_compiled(leave, self, y_BTD):
    """Compiled code uses an all-reduce whose backward is an all-reduce, eager code one that passes gradients through:
    this is what becomes of an in-place `dist.all_reduce` when it is traced.
    """
    compiling = torch.compiler.is_compiling() and not self.sequence
    return leave(self, collectives.copy_to_ranks(y_BTD, self.group) if compiling else y_BTD)


@broken(ParallelTrainer, "build", "COMP-06[tp2]: graphs were compiled on rank 0 and 0 on rank 1")
def compiles_on_one_rank(build, self):
    """The other rank finds no compiler and runs eager: the loss is the same, the step as long as on the slower rank."""
    kept = self.execution
    if dist.get_rank():
        self.execution = replace(kept, compile="none")
    model = build(self)
    self.execution = kept
    return model


@broken(ParallelTrainer, "build", "COMP-06[tp2]: graphs were compiled on rank 0 and")
def compiles_other_regions_on_one_rank(build, self):
    """One node's settings differ: it compiles the whole model, the other each block."""
    kept = self.execution
    if dist.get_rank():
        self.execution = replace(kept, compile="model")
    model = build(self)
    self.execution = kept
    return model


@derived("COMP-06[tp2]: with a cold cache on one rank, the gradient of", bugs=("CMP-11",))
class ChoosesAnotherKernelFromCold(ParallelTrainer):
    """Kernels are autotuned where the cache is empty, and the rank that restarted picks one that rounds."""

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


with_attributes(
    "RecomputesAroundWhatIsCompiled",
    "Layers are compiled and then recomputed from outside, so the compiler cannot see what it may drop.",
    "COMP-05[tp2-recompute-compile]: tensor_parallel, compile, activation_checkpoint, expected",
    owner=_InAnotherOrder,
    order=(tensor_parallel, expert_parallel, compile, activation_checkpoint, fully_shard),
)

with_attributes(
    "CompilesAroundTheShards",
    "FSDP2 is inside compiled code, so its hooks break every graph.",
    "COMP-05[ep2-compile-fsdp2]: expert_parallel, fully_shard, compile, expected",
    owner=_InAnotherOrder,
    order=(tensor_parallel, expert_parallel, activation_checkpoint, fully_shard, compile),
)


class _CountsItsCalls(Mlp):
    calls = 0

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        self.calls += 1
        return super().forward(x_BTD * (1.0 + 0.0 * self.calls), packing, state)


@broken(ParallelTrainer, "build", "COMP-06h[dp2]: rank 1 compiled", bugs=("CMP-02",))
def compiles_anew_on_the_last_rank(build, self):
    """The last rank counts its calls for a log, in a number that is a constant of the graph."""
    if dist.get_rank() == dist.get_world_size() - 1:
        self.parts = replace(self.parts, mlp=_CountsItsCalls)
    return build(self)


@broken(ParallelTrainer, "cut", "COMP-06h[dp2]: rank 1 compiled", bugs=("CMP-02",))
def shortens_a_batch_on_one_rank(cut, self, batch):
    """One rank's second batch has fewer sequences: its graphs get another shape, and only its own."""
    if dist.get_rank() == 0 or self.number != 1:
        return cut(self, batch)
    return [Batch(*(None if each is None else each[:1] for each in batch)) for _ in range(1)]


@broken(ContextParallel, "__init__", "COMP-06g[cp2-recurrence]: graphs were compiled on rank")
def breaks_within_the_messages(init, self, *, group):
    """The compiler traces the code that sends and receives, so one rank has a break there that the other has not."""
    init(self, group=group)
    del self.taken_over, self.handed_on  # those of the class, which the compiler looks into

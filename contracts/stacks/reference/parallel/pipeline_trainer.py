"""The trainer of a pipeline: a window is one pass of the schedule, and tensors on several stages are kept equal.

If two stages hold copies of a tensor, their gradients are summed before the norm is computed. The sum has the same bits
on both stages, so the copies stay bit-identical. The norm counts the tensor once.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from contracts.spec import Degrees, NotOffered, refuse
from contracts.stacks.reference.model.build import build_model
from contracts.stacks.reference.model.hybrid_model import Model, ModelOutput
from contracts.stacks.reference.parallel.collectives import all_gather_list
from contracts.stacks.reference.parallel.mesh import TrainingMesh
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer, ShardedOptimizer
from contracts.stacks.reference.parallel.parallelize import parallelize
from contracts.stacks.reference.parallel.pipeline import (
    Chunks,
    Piece,
    Pipeline,
    Stage,
    pieces,
    refuse_microbatches,
    staged,
)
from contracts.stacks.reference.parallel.placements import local_part, placed_zeros
from contracts.stacks.reference.training.trainer import Batch


class StagedOptimizer(ShardedOptimizer):
    """The optimizer of one rank's stages, with the gradient norm of all stages.

    `stages` is the group of the pipeline's ranks; `lent` has the names of copies that another stage counts.
    """

    stages: Any = None
    lent: frozenset[str] = frozenset()
    device: str = "cpu"

    def norm(self) -> float:
        own = self.norm_of([member.parameter for member in self.members if member.name not in self.lent])
        square = torch.tensor(own, dtype=torch.float64, device=self.device).square()
        dist.all_reduce(square, group=self.stages)
        return float(square.sqrt())


class PipelineTrainer(ParallelTrainer):
    """One rank of a pipeline-parallel run."""

    optimizer_class: type[StagedOptimizer] = StagedOptimizer
    optimizer: StagedOptimizer
    copies: Mapping[str, list[int]] = {}
    stage_class: type[Stage] = Stage
    pipeline_class: type[Pipeline] = Pipeline

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.copies = self.shared()
        self.optimizer = self.optimizer_of_members()

    def optimizer_of_members(self) -> StagedOptimizer:
        made = cast(StagedOptimizer, super().optimizer_of_members())
        made.stages, made.lent, made.device = self.group, self.lent(), self.execution.device
        return made

    def refuse_unsupported(self) -> None:
        if self.recipe.dtype == "fp16":
            raise NotOffered("the reference scales no loss under a pipeline: run fp16 without one")
        refuse_microbatches(self.execution)
        self.plan()
        self.fits()

    @property
    def group(self) -> Any:
        """The group of this pipeline's ranks; an existing group if one has the same members."""
        return self.mesh.group("pp")

    # stages
    def build(self) -> Model:
        self.mesh = TrainingMesh(self.execution)
        ranks = self.mesh.place("pp")
        stages = [self.part(piece) for piece in self.plan() if ranks[piece.stage % len(ranks)] == self.mesh.rank]
        (self.wrapped, *_) = [parallelize(stage, self.execution, self.mesh, self.parts) for stage in stages]
        self.pipeline = self.pipeline_class(stages, self.execution, self.group)
        return Chunks(stages)  # type: ignore[return-value]  # it has the model's parameters and objective

    def plan(self) -> tuple[Piece, ...]:
        """Every stage of the pipeline, in model order."""
        return pieces(self.recipe, self.execution)

    def part(self, piece: Piece) -> Stage:
        """One stage with its initial weights, before it is sharded."""
        alone = replace(
            self.execution, degrees=Degrees(), world=1, fsdp=False, replicas=1, compile="none", recompute=False
        )
        kind = staged(self.parts.model, piece, self.stage_class)
        return cast(Stage, build_model(self.recipe, alone, replace(self.parts, model=kind)))

    # a window
    def cut(self, batch: Batch) -> list[Batch]:
        """
        Raises:
            Refused: when the microbatches would differ in size.
        """
        count = self.execution.microbatches
        for rows in (each for each in self.shares or (len(batch.tokens_BT),) if each % count):
            raise refuse("microbatches", count, f"must divide the sequences of a rank ({rows})", "cut another number")
        return super().cut(batch)

    def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
        """One pass of the schedule."""
        passed = self.pipeline.run(window, counts)
        sums = self.total([each.sums for each in passed])
        seen = self.total([_adding_up(each.seen) for each in passed])
        nothing = window[0].tokens_BT.new_empty(0)
        return [ModelOutput(logits_BTV=nothing, mtp_logits=(), sums=sums, counts=dict(counts), seen=seen)]

    def validate(self, batches: Sequence[Batch]) -> float:
        raise NotOffered("the reference has no schedule of only forward passes: validate without a pipeline")

    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Each stage has the losses and counts of its own layers, so they are summed over stages too."""
        return self.total(every_rank(super().over_parts(values), self.group, self.execution.device))

    # tensors on two stages
    def holders(self) -> dict[str, list[int]]:
        """Parameter → the ranks of the pipeline that hold it, in the order of the stages."""
        found: dict[str, list[int]] = {}
        nothing = {name: torch.empty(0) for name, _ in self.model.named_parameters()}
        for rank, names in zip(
            self.mesh.place("pp"), every_rank(nothing, self.group, self.execution.device), strict=True
        ):
            for name in names:
                found.setdefault(name, []).append(rank)
        return found

    def lent(self) -> frozenset[str]:
        """The parameters on this rank that are copies of another stage's."""
        return frozenset(name for name, ranks in self.copies.items() if ranks[0] != self.mesh.rank)

    def shared(self) -> dict[str, list[int]]:
        """The parameters of this rank that another rank of the pipeline also holds."""
        here = dict(self.model.named_parameters())
        return {name: ranks for name, ranks in self.holders().items() if name in here and len(ranks) > 1}

    def reduce(self) -> None:
        super().reduce()
        for name, ranks in self.copies.items():
            if name in self.frozen:
                continue
            (peer,) = (rank for rank in ranks if rank != self.mesh.rank)
            self.add(self.model.get_parameter(name), peer)

    def add(self, parameter: Tensor, peer: int) -> None:
        """Set the gradient of a copy to the sum of both: a + b here and b + a there, which have the same bits."""
        if parameter.grad is None:
            parameter.grad = placed_zeros(parameter)
        mine = local_part(parameter.grad)
        sent, theirs = mine.contiguous(), torch.empty_like(mine)
        ops = [dist.P2POp(dist.isend, sent, peer, self.group), dist.P2POp(dist.irecv, theirs, peer, self.group)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        mine += theirs

    # full tensors
    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The full tensors of all stages; of a tensor on several stages, this rank's own copy."""
        own = super().whole(tensors)
        found: dict[str, Tensor] = {}
        for each in every_rank(own, self.group, self.execution.device):
            found |= each
        return found | own

    def put(self, values: Mapping[str, Tensor], into: Mapping[str, Tensor], what: str) -> None:
        """Copy the tensors of this rank's stages from those of a full model."""
        known = self.elsewhere(into)
        super().put({name: each for name, each in values.items() if name in into or name not in known}, into, what)

    def elsewhere(self, here: Mapping[str, Tensor]) -> frozenset[str]:
        """The names of tensors on other stages."""
        nothing = {name: torch.empty(0) for name in here}
        return (
            frozenset(name for names in every_rank(nothing, self.group, self.execution.device) for name in names)
            - here.keys()
        )


def every_rank(values: Mapping[str, Tensor], group: Any, device: str = "cpu") -> list[dict[str, Tensor]]:
    """The tensors of each rank of a group, by rank; names, dtypes and shapes may differ between ranks. They are sent
    from, and arrive on, `device`."""
    names = sorted(values)
    rows = [[name, str(values[name].dtype).removeprefix("torch."), list(values[name].shape)] for name in names]
    head = torch.tensor(list(json.dumps(rows).encode()), dtype=torch.uint8, device=device)
    flat = (values[name].detach().to(device).contiguous().reshape(-1).view(torch.uint8) for name in names)
    mine = torch.cat([head, *flat])
    sizes = all_gather_list(torch.tensor([len(head), len(mine)], device=device), group)
    longest = max(int(size[1]) for size in sizes)
    padded = torch.cat([mine, mine.new_zeros(longest - len(mine))])
    return [_read(bytes_N, int(size[0])) for bytes_N, size in zip(all_gather_list(padded, group), sizes, strict=True)]


def _read(bytes_N: Tensor, at: int) -> dict[str, Tensor]:
    """Tensors by name; the first `at` bytes describe them."""
    found = {}
    for name, element, shape in json.loads(bytes(bytes_N[:at].tolist())):
        dtype = getattr(torch, element)
        size = math.prod(shape) * dtype.itemsize
        found[name] = bytes_N[at : at + size].clone().view(dtype).reshape(shape)
        at += size
    return found


def _adding_up(seen: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The values of a microbatch that are summed over a window, by name: assignments and dropped assignments."""
    found = {name: each for name, each in seen.items() if name.endswith(".counts")}
    return found | {name: each.sum() for name, each in seen.items() if name.endswith(".dropped")}

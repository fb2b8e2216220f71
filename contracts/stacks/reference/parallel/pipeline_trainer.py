"""The trainer of a pipeline: a window is one pass of the schedule, and what lies on several stages is brought together.

Gradients of a tensor that two stages hold a copy of are added up before the norm is taken, in one order, so that the
copies stay bit for bit the same; in the norm it counts once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from contracts.instruments.ranks import device
from contracts.spec.errors import refuse
from contracts.spec.topology import Degrees
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
    """The rules over the parameters of one rank's stages; the norm is that of the gradients of all stages.

    `stages` is the group of the pipeline's ranks, `lent` the names of copies that count on another stage.
    """

    stages: Any = None
    lent: frozenset[str] = frozenset()

    def norm(self) -> float:
        own = self.norm_of([member.parameter for member in self.members if member.name not in self.lent])
        square = torch.tensor(own, dtype=torch.float64, device=device()).square()
        dist.all_reduce(square, group=self.stages)
        return float(square.sqrt())


class PipelineTrainer(ParallelTrainer):
    """One rank of a run whose layers lie on several."""

    optimizer_class: type[StagedOptimizer] = StagedOptimizer
    optimizer: StagedOptimizer
    stage_class: type[Stage] = Stage
    pipeline_class: type[Pipeline] = Pipeline

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.copies = self.shared()
        self.optimizer.stages, self.optimizer.lent = self.group, self.lent()

    def refuse_unsupported(self) -> None:
        refuse_microbatches(self.execution)
        self.plan()
        self.fits()

    @property
    def group(self) -> Any:
        """The ranks of this pipeline; the group that is there, where one has the same members."""
        return self.mesh.group("pp")

    # stages
    def build(self) -> Model:
        self.mesh = TrainingMesh(self.execution)
        ranks = self.mesh.place("pp")
        stages = [self.part(piece) for piece in self.plan() if ranks[piece.stage % len(ranks)] == self.mesh.rank]
        (self.wrapped, *_) = [parallelize(stage, self.execution, self.mesh, self.parts) for stage in stages]
        self.pipeline = self.pipeline_class(stages, self.execution, self.group)
        return Chunks(stages)  # type: ignore[return-value]  # of the model it has the parameters and the objective

    def plan(self) -> tuple[Piece, ...]:
        """Every stage of the pipeline, in the order of the model."""
        return pieces(self.recipe, self.execution)

    def part(self, piece: Piece) -> Stage:
        """One stage with its initial weights, before it is spread over the ranks that share it."""
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
        rows, count = len(batch.tokens_BT), self.execution.microbatches
        if rows % count:
            raise refuse("microbatches", count, f"must divide the sequences of a rank ({rows})", "cut another number")
        return super().cut(batch)

    def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
        """One pass of the schedule."""
        passed = self.pipeline.run(window, counts)
        sums = self.total([each.sums for each in passed])
        seen = self.total([_adding_up(each.seen) for each in passed])
        nothing = window[0].tokens_BT.new_empty(0)
        return [ModelOutput(logits_BTV=nothing, mtp_logits=(), sums=sums, counts=dict(counts), seen=seen)]

    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Each stage knows the losses and counts of its own layers."""
        return self.total(every_rank(super().over_parts(values), self.group))

    # what two stages hold
    def holders(self) -> dict[str, list[int]]:
        """Which ranks of the pipeline hold a parameter, in the order of the stages."""
        found: dict[str, list[int]] = {}
        nothing = {name: torch.empty(0, device=device()) for name, _ in self.model.named_parameters()}
        for rank, names in zip(self.mesh.place("pp"), every_rank(nothing, self.group), strict=True):
            for name in names:
                found.setdefault(name, []).append(rank)
        return found

    def lent(self) -> frozenset[str]:
        """The parameters that are here as copies of another stage's."""
        return frozenset(name for name, ranks in self.copies.items() if ranks[0] != self.mesh.rank)

    def shared(self) -> dict[str, list[int]]:
        """The parameters of this rank that another rank of the pipeline holds too."""
        here = dict(self.model.named_parameters())
        return {name: ranks for name, ranks in self.holders().items() if name in here and len(ranks) > 1}

    def reduce(self) -> None:
        super().reduce()
        for name, ranks in self.copies.items():
            (peer,) = (rank for rank in ranks if rank != self.mesh.rank)
            self.add(self.model.get_parameter(name), peer)

    def add(self, parameter: Tensor, peer: int) -> None:
        """The gradient of a copy becomes the sum of both: a + b here and b + a there, which are the same bits."""
        if parameter.grad is None:
            parameter.grad = placed_zeros(parameter)
        mine = local_part(parameter.grad)
        sent, theirs = mine.contiguous(), torch.empty_like(mine)
        ops = [dist.P2POp(dist.isend, sent, peer, self.group), dist.P2POp(dist.irecv, theirs, peer, self.group)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        mine += theirs

    # whole tensors
    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of all stages; of what several hold, this rank's own copy."""
        own = super().whole(tensors)
        found: dict[str, Tensor] = {}
        for each in every_rank(own, self.group):
            found |= each
        return found | own

    def put(self, values: Mapping[str, Tensor], into: Mapping[str, Tensor], what: str) -> None:
        """Of the tensors of a whole model, those of this rank's stages."""
        known = self.elsewhere(into)
        super().put({name: each for name, each in values.items() if name in into or name not in known}, into, what)

    def elsewhere(self, here: Mapping[str, Tensor]) -> frozenset[str]:
        """Names that other stages have."""
        nothing = {name: torch.empty(0, device=device()) for name in here}
        return frozenset(name for names in every_rank(nothing, self.group) for name in names) - here.keys()


def every_rank(values: Mapping[str, Tensor], group: Any) -> list[dict[str, Tensor]]:
    """The tensors that each rank of a group has, by rank: names, dtypes and shapes may differ from rank to rank."""
    names = sorted(values)
    rows = [[name, str(values[name].dtype).removeprefix("torch."), list(values[name].shape)] for name in names]
    head = torch.tensor(list(json.dumps(rows).encode()), dtype=torch.uint8, device=device())
    mine = torch.cat([head, *(values[name].detach().contiguous().reshape(-1).view(torch.uint8) for name in names)])
    sizes = all_gather_list(torch.tensor([len(head), len(mine)], device=device()), group)
    longest = max(int(size[1]) for size in sizes)
    padded = torch.cat([mine, mine.new_zeros(longest - len(mine))])
    return [_read(bytes_N, int(size[0])) for bytes_N, size in zip(all_gather_list(padded, group), sizes, strict=True)]


def _read(bytes_N: Tensor, at: int) -> dict[str, Tensor]:
    """Tensors by name: what they are stands in the first `at` bytes."""
    found = {}
    for name, element, shape in json.loads(bytes(bytes_N[:at].tolist())):
        dtype = getattr(torch, element)
        size = math.prod(shape) * dtype.itemsize
        found[name] = bytes_N[at : at + size].clone().view(dtype).reshape(shape)
        at += size
    return found


def _adding_up(seen: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What of a microbatch adds up over a window, under its names: assignments, and how many were dropped."""
    found = {name: each for name, each in seen.items() if name.endswith(".counts")}
    return found | {name: each.sum() for name, each in seen.items() if name.endswith(".dropped")}

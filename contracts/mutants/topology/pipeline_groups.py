"""Mutants of `checks.topology.pipeline_groups`."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from contracts.contract import mutant
from contracts.mutants._support.pipeline import Staged
from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer


class _GroupOfItsOwn(PipelineTrainer):
    """Always makes a group of the pipeline's ranks, even when one exists."""

    made: Any = None

    @property
    def group(self) -> Any:
        if self.made is None:
            for members in self.mesh.topology.groups["pp"]:
                group = dist.new_group(list(members))
                self.made = group if self.mesh.rank in members else self.made
        return self.made


@mutant(of="TOPO-07f", case="the-world", says="a group of all 2 ranks besides the default group", bugs=("PG-09",))
class MakesAGroupBesideTheWorld(Staged):
    """The pipeline makes its own group, although the data-parallel group from before has the same ranks."""

    trains = _GroupOfItsOwn


@mutant(of="TOPO-07f", case="two-of-four", says="makes 2 groups of [0, 2]", bugs=("PG-09",))
class MakesAGroupBesideTheMesh(Staged):
    """The mesh has a group of the pipeline's ranks, and the pipeline makes another."""

    trains = _GroupOfItsOwn

"""Mutants of `checks.topology.pipeline_groups`."""

from typing import Any

import torch.distributed as dist

from contracts.law._bugs.broken import derived
from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer


@derived(
    "TOPO-07f[the-world]: a group of all 2 ranks besides the default group",
    "TOPO-07f[two-of-four]: makes 2 groups of [0, 2]",
    bugs=("PG-09",),
)
class MakesAGroupBesideTheWorld(PipelineTrainer):
    """The pipeline makes its own group, although the mesh or the data-parallel group has the same ranks."""

    made: Any = None

    @property
    def group(self) -> Any:
        if self.made is None:
            for members in self.mesh.topology.groups["pp"]:
                group = dist.new_group(list(members))
                self.made = group if self.mesh.rank in members else self.made
        return self.made

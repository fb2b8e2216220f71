"""Trainers whose refused run keeps its process groups, or destroys those of others."""

from contracts.instruments.ranks import torch_distributed
from contracts.law._bugs.broken import broken
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer


@broken(ParallelTrainer, "abandon", "TOPO-07g[borrowed-tp2-sp-ep2-etp1-fsdp]: is left with")
def keeps_the_groups_of_a_refused_run(abandon, self):
    """Closes the mesh on the last line of the run, which a refusal does not reach."""


@broken(ParallelTrainer, "abandon", "TOPO-07g[tp2-sp-beside-dp2]: is left with 1 groups")
def keeps_the_tensor_parallel_group(abandon, self):
    """Leaves out of the cleanup a group that a compiled region or a cache still names."""
    tp = self.mesh.place("tp")
    kept = self.mesh._made.pop(tp, None)
    abandon(self)
    if kept is not None:
        self.mesh._made[tp] = kept


@broken(ParallelTrainer, "abandon", "TOPO-07g[ep2-fsdp2]: has lost its group [0, 1]")
def takes_down_what_was_there_before(abandon, self):
    """Destroys every group but the world's, also those of other components in the process."""
    abandon(self)
    _, dist = torch_distributed()
    _, *others = list(dist.distributed_c10d._world.pg_group_ranks)
    for group in filter(lambda each: isinstance(each, dist.ProcessGroup), others):
        dist.destroy_process_group(group)

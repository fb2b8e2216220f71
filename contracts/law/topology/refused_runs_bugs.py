"""Trainers that send before they refuse, or whose refused run keeps its process groups or destroys those of others."""

from torch import Tensor

from contracts.instruments.ranks import torch_distributed
from contracts.law._bugs.numeric import Batch, ParallelTrainer, broken, derived
from contracts.spec import refuse


# idle ranks
@broken(ParallelTrainer, "own", "TOPO-10d[a-rank-without-a-sequence]: was accepted, expected a refusal")
def gives_an_idle_rank_the_first_row(own, self, rows):
    """A rank without a sequence gets the first one again, so that nothing hangs; its labels then count twice."""
    members = self.mesh.place("rows")
    each, at = -(-len(rows) // len(members)), members.index(self.mesh.rank)
    return rows[at * each : (at + 1) * each] or rows[:1]


@broken(
    ParallelTrainer,
    "cut",
    "TOPO-10d[a-rank-with-a-microbatch-less]: was accepted, expected a refusal",
    bugs=("PPS-13",),
)
def takes_as_many_microbatches_as_it_has(cut, self, batch):
    """Nobody compares the numbers of microbatches: a rank with fewer sequences takes fewer. Here nobody waits."""
    rows = len(batch.tokens_BT)
    return [Batch(*(None if each is None else each[row : row + 1] for each in batch)) for row in range(rows)]


@derived("TOPO-10d[a-rank-with-a-microbatch-less]: was accepted, expected a refusal", bugs=("PPS-13",))
class RefusesOnTheLightRankAlone(ParallelTrainer):
    """The rank that has too few sequences refuses; the others continue without it."""

    def cut(self, batch: Batch) -> list[Batch]:
        if len(batch.tokens_BT) < self.execution.microbatches:
            raise refuse("microbatches", self.execution.microbatches, "has too few sequences here", "cut fewer")
        return super().cut(batch) if self.shares[0] >= self.execution.microbatches else [batch]

    def over_rows(self, counts: dict[str, Tensor]) -> dict[str, Tensor]:
        return counts  # so that this mutant ends, instead of waiting for the rank that refused

    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        return values

    def reduce(self) -> None:
        pass

    def close(self) -> None:
        self.abandon()


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

"""Mutants of `checks.topology.refused_batches`."""

from torch import Tensor

from contracts.law._bugs.broken import broken, derived
from contracts.spec import refuse
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer
from contracts.stacks.reference.training.trainer import Batch


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

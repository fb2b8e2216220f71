"""Mutants of `checks.topology.refused_batches`."""

from __future__ import annotations

from collections.abc import Sequence

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer


# idle ranks
class _SharesByCeiling(ParallelTrainer):
    def own(self, rows: Sequence[int]) -> Sequence[int]:
        members = self.mesh.place("rows")
        each, at = -(-len(rows) // len(members)), members.index(self.mesh.rank)
        return rows[at * each : (at + 1) * each] or rows[:1]


@mutant(of="TOPO-10d", case="a-rank-without-a-sequence", says="was accepted, expected a refusal")
class GivesAnIdleRankTheFirstRow(Spread):
    """A rank without a sequence gets the first one again, so that nothing hangs; its labels then count twice."""

    trains = _SharesByCeiling

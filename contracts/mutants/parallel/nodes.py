"""Stacks that take a rank's place in its node for its place in the world."""

from __future__ import annotations

import os
from collections.abc import Sequence

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer


class _ReadsByLocalRank(ParallelTrainer):
    def own(self, rows: Sequence[int]) -> Sequence[int]:
        members = self.mesh.place("rows")
        at = int(os.environ["LOCAL_RANK"]) % len(members)
        each = len(rows) // len(members)
        return rows[at * each : (at + 1) * each]


@mutant(of="PAR-12", case="dp2", says="on nodes of 1: ", bugs=("PG-10",))
class TakesTheLocalRankForTheRank(Spread):
    """The rank is read from LOCAL_RANK: right on one node, and on two nodes all first ranks read the same rows."""

    trains = _ReadsByLocalRank


class _CountsTheNode(ParallelTrainer):
    def own(self, rows: Sequence[int]) -> Sequence[int]:
        if len(self.mesh.place("rows")) == 1:
            return super().own(rows)
        world, at = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
        return rows[at * len(rows) // world : (at + 1) * len(rows) // world]


@mutant(of="PAR-12", case="tp2-fsdp2", says="on nodes of 2: ", bugs=("PG-10",))
class TakesTheNodeForTheWorld(Spread):
    """The world is the number of devices that this node shows: the batch is dealt out once a node."""

    trains = _CountsTheNode

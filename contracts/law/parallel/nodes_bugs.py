"""Stacks that take a rank's place in its node for its place in the world."""

import os

from contracts.law._bugs.numeric import ParallelTrainer, broken


@broken(ParallelTrainer, "own", "PAR-12[dp2]: on nodes of 1: ", bugs=("PG-10",))
def takes_the_local_rank_for_the_rank(own, self, rows):
    """The rank is read from LOCAL_RANK: right on one node, and on two nodes all first ranks read the same rows."""
    members = self.mesh.place("rows")
    at = int(os.environ["LOCAL_RANK"]) % len(members)
    each = len(rows) // len(members)
    return rows[at * each : (at + 1) * each]


@broken(ParallelTrainer, "own", "PAR-12[tp2-fsdp2]: on nodes of 2: ", bugs=("PG-10",))
def takes_the_node_for_the_world(own, self, rows):
    """The world is the number of devices that this node shows: the batch is dealt out once a node."""
    if len(self.mesh.place("rows")) == 1:
        return own(self, rows)
    world, at = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    return rows[at * len(rows) // world : (at + 1) * len(rows) // world]

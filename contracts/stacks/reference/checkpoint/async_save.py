"""Forked ranks that save asynchronously while training continues, and then load the last save."""

import os
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from contracts.instruments import numerics
from contracts.spec import Loaded, Overtaken, Refused, Snapshot
from contracts.stacks.forked_ranks import DEADLINE_S, forked_ranks, join_process_group
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints, State
from contracts.stacks.reference.checkpoint.crash_during_save import sharded
from contracts.stacks.reference.checkpoint.filesystem import BlockedDisk, Disk
from contracts.stacks.reference.parallel.placements import full_tensors, placed_zeros

LATE_S = 0.5  # long beside a write, which takes 20 ms
Kept = Callable[[Disk, Any], Checkpoints]
"""Checkpoints on a disk, whose ranks are those of a group."""


def save_one_upon_the_other(kept: Kept, states: tuple[State, ...], ranks: int, late: int) -> tuple[Overtaken, ...]:
    """Save the states one after another from `ranks` processes. Returns each rank's result."""

    def work(rank: int, meeting: str, sending: Connection) -> None:
        _rank(kept, states, rank, ranks, late, meeting, sending)

    with forked_ranks(ranks, work) as started:
        return tuple(_told(rank, receiving) for rank, (_, receiving) in enumerate(started))


def _told(rank: int, receiving: Connection) -> Overtaken:
    if not receiving.poll(DEADLINE_S):
        raise RuntimeError(f"rank {rank} was not through with its saves within {DEADLINE_S:g} s")
    told: Overtaken = receiving.recv()  # an end of file goes on: the process died
    return told


def _rank(
    kept: Kept, states: tuple[State, ...], rank: int, ranks: int, late: int, meeting: str, sending: Connection
) -> None:
    join_process_group(rank, ranks, meeting)
    mesh, disk = init_device_mesh("cpu", (ranks,)), BlockedDisk()
    checkpoints = kept(disk, dist.new_group())
    shares = [{name: sharded(each, mesh) for name, each in state.tensors.items()} for state in states]
    live = {name: placed_zeros(each) for name, each in shares[0].items()}
    position: dict[str, int] = {}
    for state, own in zip(states, shares, strict=True):
        for name, each in own.items():
            live[name].copy_(each)
        position |= state.position
        checkpoints.save_later(State(step=state.step, tensors=live, position=position, recipe=state.recipe))
    time.sleep(LATE_S if rank == late else 0.0)
    disk.released.set()
    loaded = _loaded(checkpoints, {name: placed_zeros(each) for name, each in live.items()}, states[-1].recipe)
    checkpoints.wait()
    published = tuple(int(name.removeprefix("step-")) for name in disk.named)
    dist.barrier()  # a rank that ends takes its connections with it
    sending.send(Overtaken(published=published, loaded=loaded))
    sending.close()
    os._exit(0)


def _loaded(checkpoints: Checkpoints, target: Mapping[str, Tensor], recipe: str) -> Loaded:
    """The full tensors after a load into zeroed shards."""
    step, position, refused = -1, {}, ""
    try:
        state = checkpoints.load(target, recipe=recipe)
        step, position = state.step, dict(state.position)
    except Refused as declined:
        refused = str(declined)
    held = Snapshot(step=step, tensors=numerics.arrays(full_tensors(target)), position=position, recipe=recipe)
    return Loaded(state=held, refused=refused)

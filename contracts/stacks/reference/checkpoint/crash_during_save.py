"""Forked ranks that write one checkpoint together, with faults: a rank may crash or run out of space."""

import os
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from contracts.spec import Refused, WriteFault, Written
from contracts.stacks.forked_ranks import DEADLINE_S, forked_ranks, join_process_group
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints, State
from contracts.stacks.reference.checkpoint.filesystem import DEATH, CrashingDisk, Disk

Kept = Callable[[Disk], Checkpoints]


def save_with_faults(kept: Kept, state: State, ranks: int, faults: Mapping[int, WriteFault]) -> tuple[Written, ...]:
    """Save a state from `ranks` processes. Returns how the save ended on each rank."""

    def work(rank: int, meeting: str, sending: Connection) -> None:
        _rank(kept, state, rank, ranks, faults.get(rank, WriteFault()), meeting, sending)

    with forked_ranks(ranks, work) as started:
        deadline = time.monotonic() + DEADLINE_S
        for copy, _ in started:
            copy.join(max(0.0, deadline - time.monotonic()))
        return tuple(
            _ending(copy.exitcode, copy.is_alive(), receiving, faults.get(rank))
            for rank, (copy, receiving) in enumerate(started)
        )


def _ending(code: int | None, hung: bool, receiving: Connection, fault: WriteFault | None) -> Written:
    if hung:
        return Written(ending="hung", boundaries=0, words=f"time ran out: no end within {DEADLINE_S:g} s")
    if code == DEATH and fault is not None:
        return Written(ending="died", boundaries=fault.dies_after or 0)
    try:
        told: Written = receiving.recv()
    except EOFError:
        raise RuntimeError(f"a writing process ended with exit code {code}") from None
    return told


def _rank(
    kept: Kept, state: State, rank: int, ranks: int, fault: WriteFault, meeting: str, sending: Connection
) -> None:
    join_process_group(rank, ranks, meeting)
    mesh = init_device_mesh("cpu", (ranks,))
    held = replace(state, tensors={name: sharded(each, mesh) for name, each in state.tensors.items()})
    dist.barrier()  # after it whoever dies is missed, and not waited for at the beginning
    if fault.room is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault.room, hard))  # Python ignores the signal: EFBIG is raised
    disk = CrashingDisk(fault.dies_after)
    try:
        kept(disk).save(held)
    except Refused as refused:
        told = Written(ending="refused", boundaries=disk.boundaries, words=str(refused))
    except RuntimeError as error:  # gloo's word for a peer that is gone
        told = Written(ending="refused", boundaries=disk.boundaries, words=f"a rank is gone: {error}")
    else:
        told = Written(ending="done", boundaries=disk.boundaries)
    sending.send(told)
    sending.close()
    os._exit(0)  # a group of which a member is gone is not taken down in peace


def sharded(tensor: Tensor, mesh: DeviceMesh) -> Tensor:
    at = Shard(0) if tensor.dim() else Replicate()
    return distribute_tensor(tensor, mesh, [at], src_data_rank=None)

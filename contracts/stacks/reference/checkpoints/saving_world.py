"""A world of processes that write one checkpoint together and may die at it: copies of this process, not torchrun's.

A new interpreter would import torch for seconds, at every boundary of every rank.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from contracts.spec.checkpointing import WriteFault, Written
from contracts.spec.errors import Refused
from contracts.stacks.reference.checkpoints.checkpoint import Checkpoints, State
from contracts.stacks.reference.checkpoints.durable import DEATH, Disk, Mortal

DEADLINE_S = 40.0  # of the whole world; a write takes 0.2 s, and a peer's death is noticed at once
Kept = Callable[[Disk], Checkpoints]


def written(kept: Kept, state: State, ranks: int, faults: Mapping[int, WriteFault]) -> tuple[Written, ...]:
    """Let so many processes save a state, and say how it ended on each."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="meeting-") as meeting, warnings.catch_warnings():
        # Python 3.12 warns of a fork beside threads. The copies run none of theirs, and take none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        pipes = [context.Pipe(duplex=False) for _ in range(ranks)]
        copies = [
            context.Process(
                target=_rank, daemon=True,
                args=(kept, state, rank, ranks, faults.get(rank, WriteFault()), f"{meeting}/store", sending),
            )
            for rank, (_, sending) in enumerate(pipes)
        ]  # fmt: skip
        for copy, (_, sending) in zip(copies, pipes, strict=True):
            copy.start()
            sending.close()
        deadline = time.monotonic() + DEADLINE_S
        for copy in copies:
            copy.join(max(0.0, deadline - time.monotonic()))
        hung = [copy.is_alive() for copy in copies]
        for copy in copies:
            copy.kill()
            copy.join()
        return tuple(
            _ending(copy.exitcode, late, receiving, faults.get(rank))
            for rank, (copy, late, (receiving, _)) in enumerate(zip(copies, hung, pipes, strict=True))
        )


def _ending(code: int | None, hung: bool, receiving: Connection, fault: WriteFault | None) -> Written:
    if hung:
        return Written(ending="hung", boundaries=0)
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
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks, timeout=timedelta(seconds=2 * DEADLINE_S)
    )
    mesh = init_device_mesh("cpu", (ranks,))
    held = replace(state, tensors={name: share(each, mesh) for name, each in state.tensors.items()})
    dist.barrier()  # after it whoever dies is missed, and not waited for at the beginning
    if fault.room is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault.room, hard))  # Python ignores the signal: EFBIG is raised
    disk = Mortal(fault.dies_after)
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


def share(tensor: Tensor, mesh: DeviceMesh) -> Tensor:
    at = Shard(0) if tensor.dim() else Replicate()
    return distribute_tensor(tensor, mesh, [at], src_data_rank=None)

"""The place of this process among the ranks, and exchange of values between ranks.

Only this file reads the environment that torchrun gives a worker.
"""

from __future__ import annotations

import importlib
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contracts.spec.errors import Refusals

Group = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of a process in the world.

    Args:
        rank: in the world, from 0.
        world: number of ranks.
        node: number of the node, from 0: torchrun's GROUP_RANK.
        local_rank: within the node, from 0.
    """

    rank: int
    world: int
    node: int
    local_rank: int


ALONE = Place(rank=0, world=1, node=0, local_rank=0)


def here() -> Place:
    """The place that torchrun gave this process; `ALONE` outside torchrun."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    if not all(name in os.environ for name in names):
        return ALONE
    rank, world, local_rank = (int(os.environ[name]) for name in names)
    return Place(rank=rank, world=world, node=int(os.environ.get("GROUP_RANK", "0")), local_rank=local_rank)


LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
"""What a launcher gives each rank."""


def stated(environment: Mapping[str, str]) -> Place:
    """The place that a launcher states; `ALONE` where it states none.

    Raises:
        Refused: where a part of it is missing, is no number, or lies outside the world. A rank that took itself for a
            run of one process would train alone, and write where the others write.
    """
    found: dict[str, int] = {}
    refused = Refusals()
    if not any(name in environment for name in LAUNCHED[:2]):
        return ALONE
    for name in LAUNCHED:
        said = environment.get(name)
        number = said is not None and said.isascii() and said.isdigit()
        refused.unless(number, name, said, "is no number of a rank or of ranks", "start ranks by torchrun")
        found[name] = int(said) if said is not None and number else 0
    refused.raise_any()
    rank, world, local_rank = found.values()
    refused.unless(rank < world, "RANK", rank, f"is not below WORLD_SIZE, {world}", "start ranks by torchrun")
    refused.unless(local_rank <= rank, "LOCAL_RANK", local_rank, f"is above RANK, {rank}", "start ranks by torchrun")
    refused.raise_any()
    return Place(rank=rank, world=world, node=int(environment.get("GROUP_RANK", "0")), local_rank=local_rank)


def torch_distributed() -> tuple[Any, Any]:
    """`torch` and `torch.distributed`, imported only where they are used: they are heavy and may be absent."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Failed to initialize NumPy")  # torch warns once, without NumPy
        return importlib.import_module("torch"), importlib.import_module("torch.distributed")


def device() -> Any:
    """The device of tensors for collectives of the default group: the GPU of the local rank, or the CPU."""
    torch, dist = torch_distributed()
    return torch.device("cuda", here().local_rank) if dist.get_backend() == "nccl" else torch.device("cpu")


def gathered(value: Any, group: Any = None) -> tuple[Any, ...]:
    """The value of every rank of a group (the default group if None), in rank order. `value` must have a JSON form.

    `torch.distributed.all_gather_object` does the same with pickle, and needs NumPy.
    """
    torch, dist = torch_distributed()
    said = json.dumps(value).encode()
    length = torch.tensor([len(said)], device=device())
    dist.all_reduce(length, op=dist.ReduceOp.MAX, group=group)
    mine_L = torch.tensor(list(said.ljust(int(length.item()))), dtype=torch.uint8, device=device())  # L bytes
    every = [torch.empty_like(mine_L) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, mine_L, group=group)
    return tuple(json.loads(bytes(each.tolist())) for each in every)


def held_groups() -> tuple[Group, ...]:
    """The members of every process group that this process holds, the default group first, in order of creation.

    torch has no public list of them. `_world.pg_group_ranks` (group → {global rank: rank in the group}) is in every
    torch.distributed from 2.0 to 2.13, and only this function reads it. It also has the last group that the process is
    not a member of, under a key that is not a group.
    """
    _, dist = torch_distributed()
    every = dist.distributed_c10d._world.pg_group_ranks.items()
    return tuple(tuple(sorted(ranks, key=ranks.get)) for group, ranks in every if isinstance(group, dist.ProcessGroup))

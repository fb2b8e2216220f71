"""The place of this process among the ranks, and exchange of values between ranks.

Only this file reads the environment that torchrun gives a worker.
"""

import contextlib
import importlib
import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
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


LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
"""What a launcher gives each rank."""
_LEAST = {
    "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "RANK": 0, "LOCAL_RANK": 0, "GROUP_RANK": 0, "MASTER_PORT": 1,
    "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0,
}  # fmt: skip
"""The least value of each number that torchrun writes."""


def here() -> Place:
    """The place that torchrun gave this process; `ALONE` outside torchrun."""
    if not all(name in os.environ for name in LAUNCHED):
        return ALONE
    rank, world, local_rank = (int(os.environ[name]) for name in LAUNCHED)
    return Place(rank=rank, world=world, node=int(os.environ.get("GROUP_RANK", "0")), local_rank=local_rank)


def stated(environment: Mapping[str, str]) -> Place:
    """The place that a launcher states; `ALONE` where it states none.

    Raises:
        Refused: as by `launched`.
    """
    if not any(name in environment for name in LAUNCHED[:2]):
        return ALONE
    said = launched(environment)
    return Place(
        rank=said["RANK"], world=said["WORLD_SIZE"], node=said.get("GROUP_RANK", 0), local_rank=said["LOCAL_RANK"]
    )


def launched(environment: Mapping[str, str]) -> dict[str, int]:
    """The numbers that torchrun wrote into an environment, by variable: all of `LAUNCHED`, and others that are set.

    Raises:
        Refused: names every variable that is missing, is no such number, or lies outside its world. A rank that took
            itself for a run of one process would work by itself, and write where the others write.
    """
    found: dict[str, int] = {}
    refused, remedy = Refusals(), "start the ranks with torchrun, or unset WORLD_SIZE and RANK for one process"
    for name, least in _LEAST.items():
        said = environment.get(name)
        if said and said.strip().isdecimal() and int(said) >= least:
            found[name] = int(said)
        elif said or name in LAUNCHED:
            refused.add(name, said, f"is not a whole number of at least {least}" if said else "is not set", remedy)
    node = "LOCAL_WORLD_SIZE" if "LOCAL_WORLD_SIZE" in found else "WORLD_SIZE"
    for name, bound in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", node)):
        inside = not {name, bound} <= found.keys() or found[name] < found[bound]
        refused.unless(inside, name, environment.get(name), f"is not below {bound}, {environment.get(bound)}", remedy)
    refused.raise_any()
    return found


def torch_distributed() -> tuple[Any, Any]:
    """`torch` and `torch.distributed`, imported only where they are used: they are heavy and may be absent."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Failed to initialize NumPy")  # torch warns once, without NumPy
        return importlib.import_module("torch"), importlib.import_module("torch.distributed")


@contextlib.contextmanager
def excepthook_kept() -> Iterator[None]:
    """Around a world that begins and ends in this process: `sys.excepthook` as it was.

    `init_process_group` wraps it and `destroy_process_group` leaves it so: each such world would put one more
    "[rank0]: " before every line of a traceback.
    """
    hook = sys.excepthook
    try:
        yield
    finally:
        sys.excepthook = hook


_OF_CPUS = ("gloo", "mpi", "fake")
"""Backends that no group has for the sake of its GPUs."""
SHARE = ("staged", "nccl")
"""Backends whose ranks may share a device; of NCCL those since 2.30, on demand."""


def backend_of(kind: str) -> str:
    """The backend of the default group for tensors of a kind of device (`cpu`, `cuda`); empty if it has none."""
    _, dist = torch_distributed()
    pairs: Iterator[list[str]] = (each.split(":") for each in dist.get_backend_config().split(","))
    return dict(pairs).get(kind, "")


def device() -> Any:
    """The device of tensors for collectives of the default group: this rank's GPU if the group has a backend made for
    GPUs, else the CPU."""
    torch, _ = torch_distributed()
    of_gpus = backend_of("cuda") not in ("", "undefined", *_OF_CPUS)
    return torch.device("cuda", torch.cuda.current_device()) if of_gpus else torch.device("cpu")


def gathered(value: Any, group: Any = None) -> tuple[Any, ...]:
    """The value of every rank of a group (the default group if None), in rank order. `value` must have a JSON form.

    `torch.distributed.all_gather_object` does the same with pickle, and needs NumPy.
    """
    torch, dist = torch_distributed()
    said, where = json.dumps(value).encode(), "cpu" if backend_of("cpu") in _OF_CPUS else device()
    length = torch.tensor([len(said)], device=where)
    dist.all_reduce(length, op=dist.ReduceOp.MAX, group=group)
    mine_L = torch.tensor(list(said.ljust(int(length.item()))), dtype=torch.uint8, device=where)  # L bytes
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

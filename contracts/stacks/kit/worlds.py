"""What a stack does among running ranks, watched from outside: the groups of its meshes.

For stacks whose groups are torch's and live until the process ends, as those of a `DeviceMesh` do.
"""

import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from contracts.instruments import staged_group
from contracts.instruments.ranks import excepthook_kept, held_groups, here
from contracts.spec import Group, LiveMesh, Unreachable, refuse

CREATES = inspect.unwrap(dist.new_group).__code__  # what torch wraps in a logger


def live_mesh(build: Callable[[], Mapping[str, Any]], contribution: int) -> LiveMesh:
    """The groups of this rank on the axes of a mesh, and the sum of `contribution` over each.

    Args:
        build: makes the mesh; axis → its one-dimensional `DeviceMesh`, None if this rank is the only one on the axis.

    Nothing of the stack closes a mesh, so `after` is None; what was made is destroyed before the next question.
    """
    before, kept = held_groups(), set(_groups())
    try:
        with created() as made:
            groups = {axis: None if mesh is None else mesh.get_group() for axis, mesh in build().items()}
        sums = {axis: _total(group, contribution) for axis, group in groups.items()}
        alone = (here().rank,)
        members = {axis: tuple(dist.get_process_group_ranks(g)) if g else alone for axis, g in groups.items()}
        return LiveMesh(groups=members, sums=sums, calls=tuple(made), before=before, held=held_groups(), after=None)
    finally:
        dist.barrier()
        close_groups(kept)


def _total(group: Any, contribution: int) -> int:
    if group is None:
        return contribution
    value = torch.tensor(contribution)
    dist.all_reduce(value, group=group)
    return int(value.item())


@contextmanager
def created() -> Iterator[list[Group]]:
    """Members of each group that this thread creates inside, in order, whatever name it calls `new_group` by."""
    made: list[Group] = []
    former = sys.getprofile()

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is CREATES:
            ranks = frame.f_locals["ranks"]
            made.append(tuple(range(dist.get_world_size()) if ranks is None else ranks))

    sys.setprofile(look)
    try:
        yield made
    finally:
        sys.setprofile(former)


def close_groups(kept: set[Any] | None = None) -> None:
    """Destroy every group but the world and those that are `kept`.

    torch has no public list of groups; `_world.pg_map` is in 2.13.
    """
    for group in _groups():
        if group is not dist.group.WORLD and group not in (kept or ()):
            dist.destroy_process_group(group)


def _groups() -> list[Any]:
    return list(dist.distributed_c10d._world.pg_map)


def forget_meshes() -> None:
    """Let torch forget all meshes that it has seen, before a run makes its own.

    DTensor keeps what it worked out on a mesh, and two meshes of the same ranks are equal to it whatever groups they
    hold: an operation of a second run would go to the groups of the first, which are closed, or which other ranks no
    longer use. Nothing public clears these caches; they are in torch 2.13.
    """
    from torch.distributed.tensor import DTensor, _redistribute

    DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()  # type: ignore[no-untyped-call]
    _redistribute._gen_transform_infos.cache_clear()
    torch._C._clear_DTensor_sharding_propagator_cache()


@contextmanager
def pretended(world: int, rank: int) -> Iterator[None]:
    """A world on torch's fake backend, which forms groups of any size in one process and moves no data.

    Raises:
        Refused: for a world without ranks.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise Unreachable("the layout of a world is asked outside of a running one")
    if world < 1:
        raise refuse("world", world, "must be at least 1", "give the number of ranks")
    logging.getLogger().setLevel(logging.ERROR)
    with excepthook_kept():
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
        try:
            yield
        finally:
            dist.destroy_process_group()


@contextmanager
def of_one(device: str = "cpu") -> Iterator[None]:
    """A world in which this process is rank 0 of 1, for what asks for ranks; a world that runs continues after it.
    Tensors of another device than a CPU are staged.
    """
    of_torch = dist.distributed_c10d._world  # names of groups are counted there, alike on all ranks
    kept, count = set(_groups()), of_torch.group_count
    store = dist.HashStore()  # type: ignore[attr-defined]  # public, and left out of the stubs
    try:
        with excepthook_kept(), by_itself():
            words = "gloo" if device == "cpu" else staged_group.backend(device)
            dist.init_process_group(words, store=store, rank=0, world_size=1)
            try:
                yield
            finally:
                if not kept:  # torch counts its groups anew
                    dist.destroy_process_group()
    finally:
        if kept:
            close_groups(kept)
            of_torch.group_count = count


@contextmanager
def by_itself() -> Iterator[None]:
    """This rank as a process of its own, with which runs of several ranks are compared: torch has no default group.

    A stack that asks torch for its world would make a mesh of all ranks. torch has no public way out of a world;
    `_update_default_pg` is in 2.1 to 2.13.
    """
    world = dist.group.WORLD if dist.is_initialized() else None
    dist.distributed_c10d._update_default_pg(None)
    try:
        yield
    finally:
        dist.distributed_c10d._update_default_pg(world)

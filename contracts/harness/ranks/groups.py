"""The process group that all tests of a session share: made once, thrown away when a test has poisoned it.

Whoever holds a group of the session (a mesh in a fixture) is torn down with it. What is here for NCCL is written from
PyTorch's and NCCL's sources and has not been proved on a device.
"""

from __future__ import annotations

import datetime
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.harness.ranks.rank_environment import Place

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not in torch's `__all__`


def connection(place: Place, *, first: bool = False, seconds: float = 300.0) -> TCPStore:
    """A connection of its own to the job's store. Without torchrun's, rank 0 serves it, with its first connection."""
    # heavy, and only wanted under torchrun
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # as above

    return TCPStore(
        place.address,
        place.port,
        is_master=first and not place.agent_store and place.speaks,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=seconds),
    )


def backend_of(chosen: str) -> str:
    """The backend to use: `auto` is NCCL beside gloo where torch sees a device."""
    import torch

    if chosen != "auto":
        return chosen
    return "nccl" if torch.cuda.is_available() and torch.distributed.is_nccl_available() else "gloo"


class SessionGroup:
    """The default process group and everything derived from it.

    `timeout` bounds collectives and group creation, also of groups that code under test makes. It stands above every
    limit of a test: the watchdog is to find a hang, not the backend.
    """

    def __init__(self, place: Place, name: str, *, backend: str, timeout_s: float) -> None:
        self.place, self.name, self.backend = place, name, backend
        self.world = place.size  # the first so many ranks are its members
        self.timeout = datetime.timedelta(seconds=timeout_s)
        self.generation = -1  # counts the groups made, from 0
        self._keep: frozenset[int] = frozenset()
        self._store: TCPStore | None = None
        self._group: object = None

    def open(self) -> None:
        """Make the group of the first `world` ranks, or the next one. Every rank calls it at the same place; those
        beyond have no group then."""
        import torch
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # as above

        if self.generation < 0:
            self._keep = frozenset(_sockets())
        self.generation += 1
        _bound_new_groups(self.timeout)
        device = None
        if self.backend == "nccl":
            device = torch.device("cuda", self.place.local_rank)  # by index: devices are not renumbered for a rank
            torch.cuda.set_device(device)
        if self._store is None:  # a connection costs both its ends a look-up of names, and some resolvers are slow
            self._store = connection(self.place, seconds=self.timeout.total_seconds())
        self._group = None
        if self.place.rank < self.world:
            torch.distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if self.backend == "nccl" else self.backend,
                store=PrefixStore(f"{self.name}/group/{self.generation}", self._store),
                rank=self.place.rank,
                world_size=self.world,
                timeout=self.timeout,
                device_id=device,
            )
            self._group = torch.distributed.group.WORLD

    def resize(self, world: int) -> None:
        """Let the first `world` ranks have the group. Every rank calls it at the same place, with nothing under way."""
        import torch.distributed

        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        self.world = world
        self.open()

    def alive(self) -> bool:
        """Whether the default group is still the one that was made here: a test may have destroyed it."""
        import torch.distributed

        return self.generation >= 0 and torch.distributed.group.WORLD is self._group

    def synchronize(self) -> None:
        """Wait for the device, so that a kernel that never ends is charged to the test that started it."""
        if self.backend == "nccl" and self.generation >= 0:
            import torch

            torch.cuda.synchronize()

    def abort(self) -> None:
        """Free this rank from whatever collective or group creation it is in. May be called by another thread."""
        if self.backend == "nccl":
            drop_groups()
        for sock in _group_sockets(self._keep):
            sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Drop the group and those derived from it; nothing is sent and nobody waited for."""
        self.abort()
        drop_groups()
        self._store = self._group = None

    def count(self) -> int:
        """How many groups there are in this process, the default one among them."""
        return len(_world_groups())


def _sockets() -> Iterator[int]:
    """The descriptors of this process that are sockets, by inode (a number is given again; an inode is not)."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield int(target[8:-1])


def _group_sockets(keep: frozenset[int]) -> Iterator[socket.socket]:
    """Connected internet sockets younger than the session's own, each as a duplicate.

    gloo has no abort; what frees a rank that waits for another is the end of the connection between them. A listening
    socket is left alone: gloo's listener ends the process where it is shut down.
    """
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
            if not target.startswith("socket:[") or int(target[8:-1]) in keep:
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as sock:
                if sock.family in (socket.AF_INET, socket.AF_INET6) and not sock.getsockopt(
                    socket.SOL_SOCKET, socket.SO_ACCEPTCONN
                ):
                    sock.getpeername()
                    yield sock
        except OSError:
            continue  # closed meanwhile, or not connected


def drop_groups() -> None:
    """Abort what can be aborted and forget every group.

    Private in torch: nothing public drops groups without waiting for peers. Seen in 2.7 to 2.13.
    """
    import torch.distributed
    from torch.distributed.distributed_c10d import _abort_process_group

    if torch.distributed.is_initialized():
        _abort_process_group()


def _world_groups() -> dict[Any, Any]:
    """Every live group of this process. Private in torch: nothing public lists them. Seen in 2.0 to 2.13."""
    from torch.distributed.distributed_c10d import _world

    return dict(_world.pg_map)


def _bound_new_groups(timeout: datetime.timedelta) -> None:
    """Bound the groups that code under test makes: `new_group` does not take over the default group's timeout.

    A module value and no promise of torch's: seen in 2.0 to 2.13, and pinned by a test.
    """
    from torch.distributed import distributed_c10d

    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        if getattr(distributed_c10d, name, None) is not None:
            setattr(distributed_c10d, name, timeout)

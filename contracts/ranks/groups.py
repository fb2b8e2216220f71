"""The process group that all tests of a session share: made once, and replaced when a test has poisoned it.

Fixtures that hold a group of the session (a mesh) are torn down with it.
"""

from __future__ import annotations

import ctypes
import datetime
import gc
import importlib
import importlib.util
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.ranks.rank_environment import Place

if TYPE_CHECKING:
    import torch
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not in torch's `__all__`


def connection(place: Place, *, first: bool = False, seconds: float = 300.0) -> TCPStore:
    """A new connection to the job's store. Without a store of torchrun, rank 0 serves one on its first connection."""
    # heavy, and only wanted under torchrun
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # as above

    return TCPStore(
        place.address,
        place.port,
        is_master=first and not place.agent_store and place.speaks,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=seconds),
    )


CHOICES = ("auto", "gloo", "nccl", "staged")
STAGED = "contracts.instruments.staged_group:backend"
"""What registers the group that carries a device's tensors through host memory, and returns torch's words for it."""
SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"
"""With 1 here NCCL lets ranks share a device, since 2.30; without it, and before, it refuses them."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The backend that carries the tensors of the ranks, and the words about it."""

    name: str
    words: str = ""


def backend_of(chosen: str, ranks: int) -> Backend:
    """The backend for so many ranks of this node; `auto` is NCCL beside gloo where each has a device of its own, or
    NCCL lets them share one.

    Raises:
        ValueError: for NCCL with fewer devices than ranks that may not share, which it refuses itself after a minute.
    """
    devices = 0 if chosen == "gloo" else _devices()
    have = f"{ranks} ranks, {devices} device{'' if devices == 1 else 's'}"
    apart = devices >= ranks
    shared = not apart and devices > 0 and os.environ.get(SHARING) == "1" and _nccl() >= (2, 30)
    if chosen == "nccl" and not (apart or shared):
        remedy = f"give staged or gloo, or fewer ranks; NCCL 2.30 or later shares a device with {SHARING}=1"
        raise ValueError(f"takes one rank a device, and here are {have}: {remedy}")
    if chosen == "auto":
        chosen = "gloo" if not devices else "nccl" if apart or shared else "staged"
    if chosen == "staged":
        return Backend(name=chosen, words=f"{have}: staged through host memory; NCCL is not judged")
    return Backend(name=chosen, words=f"{have}: NCCL shares them" if chosen == "nccl" and shared else "")


def _nccl() -> tuple[int, ...]:
    """The version of the NCCL that torch has loaded, as it says itself; `torch.cuda.nccl.version` says which torch was
    built with. Empty without one."""
    import torch  # noqa: F401  # loads it

    try:
        loaded, found = ctypes.CDLL("libnccl.so.2"), ctypes.c_int()
    except OSError:
        return ()
    loaded.ncclGetVersion(ctypes.byref(found))
    return found.value // 10000, found.value // 100 % 100, found.value % 100


def _devices() -> int:
    """The CUDA devices that torch can use; NVML says it, so that no context is made."""
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count()


GROWN = 64
"""Descriptors more than after the last garbage collection, for which the next is worth its time."""


class SessionGroup:
    """The default process group and everything derived from it.

    `timeout` bounds collectives and group creation, also for groups that code under test makes. It is longer than every
    limit of a test, so that the watchdog finds a hang before the backend does.
    """

    def __init__(self, place: Place, name: str, *, backend: str, timeout_s: float) -> None:
        self.place, self.name, self.backend = place, name, backend
        self.world = place.size  # its members are the first `world` ranks
        self.timeout = datetime.timedelta(seconds=timeout_s)
        self.generation = -1  # counts the groups made, from 0
        self._keep: frozenset[int] = frozenset()
        self._descriptors = 1 << 30
        self._store: TCPStore | None = None
        self._group: object = None

    def open(self) -> None:
        """Make the group of the first `world` ranks, or its successor. Every rank calls it at the same point; the
        other ranks then have no group."""
        import torch
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # as above

        if self.generation < 0:
            self._keep = frozenset(_sockets())
        self.generation += 1
        _bound_new_groups(self.timeout)
        device = self._device()
        if self._store is None:  # each connection costs a name look-up at both ends, and some resolvers are slow
            self._store = connection(self.place, seconds=self.timeout.total_seconds())
        self._group = None
        if self.place.rank < self.world:
            torch.distributed.init_process_group(
                self._words(),
                store=PrefixStore(f"{self.name}/group/{self.generation}", self._store),
                rank=self.place.rank,
                world_size=self.world,
                timeout=self.timeout,
                device_id=device,
            )
            self._group = torch.distributed.group.WORLD

    def _device(self) -> torch.device | None:
        """The device that torch binds to the group: with NCCL this rank's, by index, as devices are not renumbered. A
        staged group may share a device, which it does not know."""
        import torch

        devices = 0 if self.backend == "gloo" else _devices()
        if not devices or (self.backend == "staged" and devices == 1):
            return None
        device = torch.device("cuda", self.place.local_rank % devices)
        torch.cuda.set_device(device)
        return device if self.backend == "nccl" else None

    def _words(self) -> str:
        """The arguments of `init_process_group`."""
        if self.backend != "staged":
            return "cpu:gloo,cuda:nccl" if self.backend == "nccl" else self.backend
        module, _, function = STAGED.partition(":")
        return str(getattr(importlib.import_module(module), function)("cuda" if _devices() else "cpu"))

    def resize(self, world: int) -> None:
        """Give the group to the first `world` ranks. Every rank calls it at the same point, with nothing under way."""
        import torch.distributed

        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        self.world = world
        self.open()

    def alive(self) -> bool:
        """Whether the default group is still the one made here; a test may have destroyed it."""
        import torch.distributed

        return self.generation >= 0 and torch.distributed.group.WORLD is self._group

    def let_go(self) -> None:
        """Free the sockets and threads of groups that a test has destroyed. torch refers to them in cycles, and the
        garbage collector counts only objects of Python: after some hundred tests a rank may open no more files."""
        there = _descriptors()
        if there > self._descriptors + GROWN:
            gc.collect()  # without what was imported, which is frozen (`Collection`)
            self._descriptors = _descriptors()
        else:
            self._descriptors = min(self._descriptors, there)

    def synchronize(self) -> None:
        """Wait for the device, so that a kernel that never ends is charged to the test that started it."""
        if self.backend != "gloo" and self.generation >= 0:
            import torch

            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.synchronize()

    def abort(self) -> None:
        """Free this rank from the collective or group creation it waits in. Another thread may call it."""
        if self.backend == "nccl":
            drop_groups()
        for sock in _group_sockets(self._keep):
            sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Drop the group and those derived from it, without sending or waiting."""
        self.abort()
        drop_groups()
        self._store = self._group = None

    def count(self) -> int:
        """The number of groups in this process, including the default one."""
        return len(_world_groups())


def _descriptors() -> int:
    """How many files and sockets this process has open; 0 where the system does not say, as on macOS."""
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # after each test, and iterdir makes a path of each
    except OSError:
        return 0


def _sockets() -> Iterator[int]:
    """The inodes of this process's sockets. (Descriptor numbers are reused, inodes are not.)"""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield int(target[8:-1])


def _group_sockets(keep: frozenset[int]) -> Iterator[socket.socket]:
    """Duplicates of the connected internet sockets that are younger than the session's own.

    gloo has no abort; a rank that waits for another is freed when the connection between them closes. Listening sockets
    stay open: gloo's listener ends the process when it is shut down.
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
    """Bound the groups that code under test makes: `new_group` does not inherit the default group's timeout.

    It sets a module attribute that torch does not guarantee: seen in 2.0 to 2.13, and pinned by a test.
    """
    from torch.distributed import distributed_c10d

    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        if getattr(distributed_c10d, name, None) is not None:
            setattr(distributed_c10d, name, timeout)

"""Records the collectives that this process issues, and compares each with those of the other ranks before it runs.

Ranks that do not issue the same collective hang, die by SIGABRT, or compute with the old contents of a buffer: gloo and
NCCL silently accept float32 for int32, and max for sum. Under `watched` the members of a group exchange descriptions
of their next collective over the store of the world. A rank that finds another description raises, before anything has
been sent. torch's own TORCH_DISTRIBUTED_DEBUG=DETAIL does not compare the reduction, and must be set before the world
is created.

Only eager collectives are seen, not those of a compiled graph.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from contracts.instruments.ranks import gathered

Group = tuple[int, ...]

NAMESPACES = ("c10d", "_c10d_functional", "_dtensor")
SILENT = ("wait_tensor", "_wrap_tensor_autograd", "check_for_nan", "monitored_barrier")
PAIRED = ("send", "recv", "isend", "irecv", "batch_p2p_ops", "recv_any_source")
MESSAGES = {"send": "send", "recv": "receive"}
INPUTS = (  # for a scatter the outputs are read, since only the root has inputs
    "input", "inputs", "input_tensor", "input_tensors", "input_list", "tensor", "tensors",
)  # fmt: skip
NAMES = {  # torch has several names for one collective; the descriptions of ranks must agree
    "_allgather_base": "all_gather", "all_gather_into_tensor": "all_gather", "all_gather_into_tensor_out": "all_gather",
    "allgather": "all_gather", "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather", "all_gather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter", "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "allreduce": "all_reduce", "allreduce_coalesced": "all_reduce", "all_reduce_coalesced": "all_reduce",
    "alltoall": "all_to_all", "alltoall_base": "all_to_all", "all_to_all_single": "all_to_all",
}  # fmt: skip
LIMIT_S = 20.0  # how long a rank waits for another's description; a rank that has ended says so at once
LOOK_UP = timedelta(seconds=0.25)  # how often a waiting rank checks whether the others have ended


class Diverged(Exception):
    """The ranks of a group are about to issue different collectives; the message says which."""


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective that a rank issued.

    Args:
        op: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast …
        members: of its group, by rank in the group.
        shapes, dtypes: of this rank's input.
        reduce: sum, max … for a reduction.
        sent, received: rows to and from each member, for a collective with split sizes.
    """

    op: str
    members: Group
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    reduce: str = ""
    root: int | None = None
    sent: tuple[int, ...] = ()
    received: tuple[int, ...] = ()

    @property
    def uneven(self) -> bool:
        """Whether ranks may contribute different lengths."""
        return self.op == "all_to_all"

    @property
    def bytes(self) -> int:
        """Bytes of this rank's input."""
        each = zip(self.shapes, self.dtypes, strict=True)
        return sum(math.prod(shape) * getattr(torch, dtype).itemsize for shape, dtype in each)

    def said(self) -> str:
        """A description of everything that must be equal on all members."""
        shapes = [shape[1:] if self.uneven else shape for shape in self.shapes]
        kept = f"{self.op}({self.reduce})" if self.reduce else self.op
        root = "" if self.root is None else f" from {self.root}"
        more = "rows of " if self.uneven else ""
        return f"{kept} {more}{', '.join(map(_shape, shapes))} {', '.join(self.dtypes)}{root}"


@dataclass
class Watch:
    """The collectives that a rank issued; `diverged` is the message if the ranks were about to diverge."""

    issued: list[Collective] = field(default_factory=list)
    diverged: str = ""

    def of(self, *ops: str) -> list[Collective]:
        return [each for each in self.issued if each.op in ops]


@contextmanager
def watched(*, limit_s: float = LIMIT_S) -> Iterator[Watch]:
    """Record the collectives of this rank. Every rank of the world must enter and leave, even after an error.

    If the members of a group do not agree on a collective, `Diverged` is raised inside, before the collective runs. The
    context swallows the exception, even if other code has converted it; `diverged` has the message, and no rank hangs.
    """
    watch = Watch()
    mode = _Compares(watch, _Words(limit_s))
    try:
        with mode:
            yield watch
    except Exception:
        if not watch.diverged:
            raise
    finally:
        mode.words.close()


_unrecorded: ContextVar[bool] = ContextVar("unrecorded", default=False)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Inside, nothing is recorded or compared: what an adapter gathers for its answer is not its stack's traffic."""
    token = _unrecorded.set(True)
    try:
        yield
    finally:
        _unrecorded.reset(token)


@contextmanager
def recorded() -> Iterator[list[Collective]]:
    """The collectives and messages of this process, in order; nothing is compared, so that no other rank takes part."""
    mode = _Records()
    with mode:
        yield mode.issued


class _Records(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Sees every call of an operator. torch has no public way to see a collective with its tensors. Dispatch modes have
    had this name since torch 1.13, and the public CommDebugMode is built on one."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.issued: list[Collective] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # its collectives are issued one level below
        if func.namespace in NAMESPACES and not _unrecorded.get():
            found = self.seen(func, args, kwargs or {})
            if found is not None:
                self.issued.append(found)
                self.compare(found)
        return func(*args, **(kwargs or {}))

    def seen(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Collective | None:
        return read(func, args, kwargs) or message(func, args, kwargs)

    def compare(self, found: Collective) -> None:
        """Nothing."""


class _Compares(_Records):  # type: ignore[no-untyped-call]  # torch's
    """Compares each collective with those of the other ranks. Messages are between two ranks, and not compared."""

    def __init__(self, watch: Watch, words: _Words) -> None:
        super().__init__()
        self.watch, self.words = watch, words
        self.issued = watch.issued

    def seen(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Collective | None:
        return read(func, args, kwargs)

    def compare(self, found: Collective) -> None:
        try:
            self.words.compare(found)
        except Diverged as diverged:
            self.watch.diverged = self.watch.diverged or str(diverged)
            raise


def read(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Collective | None:
    """The collective of a call, read by the names of its arguments; None for any other call."""
    name = _name(func)
    if name in SILENT or name in PAIRED:
        return None
    named = _named(func, args, kwargs)
    given = named["output_tensors"] if name == "scatter" else next(each for key, each in named.items() if key in INPUTS)
    tensors = list(_tensors(given))
    members = tuple(dist.get_process_group_ranks(_group(named)))
    return Collective(
        op=NAMES.get(name, name),
        members=members,
        shapes=tuple(tuple(each.shape) for each in tensors),
        dtypes=tuple(str(each.dtype).removeprefix("torch.") for each in tensors),
        reduce=_reduction(named.get("reduce_op")),
        root=named.get("root_rank", named.get("src")),
        sent=tuple(named.get("input_split_sizes", ())),
        received=tuple(named.get("output_split_sizes", ())),
    )


def message(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Collective | None:
    """A call of `c10d::send` or `c10d::recv_` as a collective of two ranks; `root` is the other's rank in the world."""
    name = _name(func)
    if func.namespace != "c10d" or name not in MESSAGES:
        return None
    named = _named(func, args, kwargs)
    tensors = list(_tensors(named["tensors"]))
    members = tuple(dist.get_process_group_ranks(_group(named)))
    return Collective(
        op=MESSAGES[name],
        members=members,
        shapes=tuple(tuple(each.shape) for each in tensors),
        dtypes=tuple(str(each.dtype).removeprefix("torch.") for each in tensors),
        root=members[named["dst" if name == "send" else "src"]],
    )


def _name(func: Any) -> str:
    return str(func._schema.name.split("::")[1].rstrip("_"))


def _named(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    return dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs


def _group(named: dict[str, Any]) -> Any:
    """The group of a call, as torch knows it: by its name, because one in Python may pass the call to one in C++."""
    held: Any = named.get("process_group", named.get("group_name"))
    if isinstance(held, torch.ScriptObject):
        held = dist.ProcessGroup.unbox(held)
    name = held if isinstance(held, str) else held.group_name
    return c10d._resolve_process_group(c10d.GroupName(name))  # type: ignore[attr-defined]


def _reduction(held: Any) -> str:
    if held is None:
        return ""
    return (held if isinstance(held, str) else dist.ReduceOp.RedOpType(held.op()).name).lower()


def _tensors(given: Any) -> Iterator[Tensor]:
    if isinstance(given, Tensor):
        yield given
    else:
        for each in given:
            yield from _tensors(each)


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "1"


class _Words:
    """Exchanges descriptions over the store of the world, which uses no collective."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s, self.rank = limit_s, dist.get_rank()
        store = c10d._get_default_store()  # private; the public ones need an address (torch 2.0 - 2.13)
        self.store = c10d.PrefixStore(f"rankproof/traffic/{_number(store, self.rank)}", store)
        self.issued: dict[Group, int] = {}

    def compare(self, found: Collective) -> None:
        """Publish this rank's next collective, and compare it with those of the other members."""
        index = self.issued[found.members] = self.issued.get(found.members, -1) + 1
        mine = json.dumps({"said": found.said(), "sent": found.sent, "received": found.received})
        keys = {other: _key(found.members, index, other) for other in found.members}
        at = f"{found.said()} over {list(found.members)}"
        self.store.multi_set([keys[self.rank], f"at/{self.rank}"], [mine, at])  # type: ignore[attr-defined]  # it has
        others = {other: key for other, key in keys.items() if other != self.rank}
        self.await_all(others, f"collective {index} over {list(found.members)} is {found.said()} on rank {self.rank}")
        every = zip(keys, self.store.multi_get(list(keys.values())), strict=True)
        _alike(found, {other: json.loads(word) for other, word in every}, index, self.rank)

    def await_all(self, keys: dict[int, str], mine: str) -> None:
        """Wait until the others have published their descriptions; `mine` is this rank's, for the error."""
        until = time.monotonic() + self.limit_s
        while True:
            try:
                return self.store.wait(list(keys.values()), LOOK_UP)
            except dist.DistStoreError:  # some are still missing
                silent = [other for other, key in keys.items() if not self.store.check([key])]
            for other in silent:
                if self.store.check([f"end/{other}"]) and not self.store.check([keys[other]]):
                    raise Diverged(f"{mine}; rank {other} has ended its step without one")
            if silent and time.monotonic() > until:
                raise Diverged(
                    f"{mine}; rank {silent[0]} {self.place(silent[0])} after {self.limit_s:g} s: time ran out"
                )

    def place(self, other: int) -> str:
        if not self.store.check([f"at/{other}"]):
            return "has issued none"
        return f"is at {self.store.get(f'at/{other}').decode()}"

    def close(self) -> None:
        self.store.set(f"end/{self.rank}", "")


def _alike(found: Collective, every: dict[int, dict[str, Any]], index: int, rank: int) -> None:
    """Compare all descriptions. Every member raises, even if only two others differ."""
    where = f"collective {index} over {list(found.members)}"
    for other, word in every.items():
        if word["said"] != found.said():
            raise Diverged(f"{where} is {found.said()} on rank {rank} and {word['said']} on rank {other}")
    for at, (taker, its) in enumerate(every.items()):
        for sender, rows in zip(every, its["received"], strict=False):
            sent = every[sender]["sent"]
            if sent and sent[at] != rows:
                raise Diverged(f"{where}: rank {taker} expects {rows} rows of rank {sender}, which sends {sent[at]}")


def _key(members: Group, index: int, rank: int) -> str:
    return f"{'-'.join(map(str, members))}/{index}/{rank}"


def _number(store: c10d.Store, rank: int) -> int:
    """A number that no earlier watch of this world had, the same on every rank, even after an aborted watch."""
    own = f"rankproof/traffic/{rank}"
    before = store.add(own, 0)
    number = 1 + max(gathered(before))
    store.add(own, number - before)
    return int(number)

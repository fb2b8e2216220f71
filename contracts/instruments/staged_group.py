"""A process group that carries the tensors of a device through host memory, by gloo.

NCCL refuses two ranks on one device. With this group many ranks share a card, or a CPU stands in for one. It is an
instrument: whoever uses it has not judged NCCL. `get_backend` says its name, `staged`.

A collective copies its tensors to the host, which waits for what the current stream was given before it, and hands the
copies to gloo. `Work.wait` copies the outputs back on the current stream. Until then they are untouched; so a work must
be waited for (`wait`, its future, or `is_completed`), and to synchronize the device is not enough. Outputs are copied
there too: what gloo does not write stays as it was. Two things are computed here, because gloo lacks them: PREMUL_SUM
scales the copy and sums, and `alltoall` is an `alltoall_base` of flat copies. Tensors of a collective must be
contiguous: NCCL refuses others, and gloo carries what lies between.

torch takes a group in Python (`register_backend`) only for every kind of device. So tensors of other devices, such as
the CPU, are handed to gloo as they are. `backend` names the device first: torch makes what it names in this order, and
would make a gloo and drop it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroup, ProcessGroupGloo, Work  # type: ignore[attr-defined]

from contracts.instruments import staged_copies as copies
from contracts.instruments.staged_copies import Pairs

NAME = "staged"
REDUCING = ("reduce", "allreduce", "_reduce_scatter_base")  # how the names begin of what computes
FLAT = (
    "_allgather_base", "all_gather_single", "allgather_into", "_reduce_scatter_base", "reduce_scatter_single",
    "reduce_scatter_tensor",
)  # fmt: skip
"""How the names begin of what joins or cuts tensors of any shapes: NCCL compares only their sizes, gloo the shapes."""
FIRST_IS_WRITTEN = (
    "allreduce", "allreduce_coalesced", "broadcast", "allgather", "_allgather_base", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "gather", "scatter", "reduce_scatter", "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced", "alltoall_base", "recv", "recv_anysource",
    "all_gather_single", "all_gather_single_coalesced", "reduce_scatter_single", "reduce_scatter_single_coalesced",
    "all_to_all_single",  # the second names of five of them, since torch 2.13
)  # fmt: skip
"""The calls that write their first argument; others are written out below."""
MESSAGES = ("send", "recv", "recv_anysource")


def register(device: str = "cuda", name: str = NAME) -> None:
    """Make the backend known to torch, for the tensors of a kind of device."""
    if name not in dist.Backend.backend_list:
        dist.Backend.register_backend(name, partial(_create, device), extended_api=True, devices=[device])


def backend(device: str = "cuda", name: str = NAME) -> str:
    """The words for `init_process_group` after `register`: gloo for the tensors of the CPU."""
    register(device, name)
    return name if device == "cpu" else f"{device}:{name},cpu:gloo"


def _create(device: str, asked: Any, _: object) -> StagedGroup:
    made = StagedGroup(device, asked.store, asked.group_rank, asked.group_size, asked.timeout)
    gloo = made._get_backend(torch.device("cpu"))  # as torch does for its own gloo: the flight recorder shows them
    gloo.options.global_ranks_in_group, gloo.options.group_name = asked.global_ranks_in_group, asked.group_id
    return made


class StagedWork(Work):
    """Works of gloo on copies, and the tensors to which the copies go back."""

    def __init__(self, works: Sequence[Work], outputs: Pairs) -> None:
        super().__init__()
        self._works, self._outputs = works, outputs
        self._lock, self._starting = threading.Lock(), threading.Lock()
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self.written = False

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        with self._lock:  # gloo's send and recv may be waited for only once
            if not self.written:
                for work in self._works:
                    work.wait(timeout)
                self._write()
                self.written = True
        return True

    def _write(self) -> None:
        for there, copy in self._outputs:
            there.data.copy_(copy.view(there.shape))  # .data: as with NCCL, autograd does not count this as a change

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:  # gloo does not say it of send and recv
        return self.written or self.get_future().done()

    def is_success(self) -> bool:
        return self.written

    def result(self) -> list[torch.Tensor]:
        return [there for there, _ in self._outputs]

    def _source_rank(self) -> int:
        return int(self._works[0]._source_rank())

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future that a thread fulfils: it may be asked for before the other side has begun."""
        with self._starting:
            if self._future is None:
                devices = {there.device for there in self.result() if there.device.type != "cpu"}
                self._future = torch.futures.Future(devices=sorted(devices, key=str))
                threading.Thread(target=self._fulfil, args=(self._future,), daemon=True).start()
        return self._future

    def _fulfil(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        try:
            self.wait()
        except Exception as error:
            future.set_exception(error)  # type: ignore[arg-type]  # torch's own annotation
        else:
            future.set_result(self.result())


class StagedGroup(ProcessGroup):
    """The group; `FIRST_IS_WRITTEN` are its methods too."""

    def __init__(self, device: str, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # with a store no class in Python can be made
        self._device, self._store, self._timeout = device, store, timeout
        gloo = ProcessGroupGloo(store, rank, size, timeout=timeout)
        self._host = ProcessGroup(store, rank, size)
        self._batch: list[Work] | None = None
        self._under_way: list[StagedWork] = []  # a sender may drop its work, and its copy is still being sent
        _carried_by(gloo, self._host, "cpu")
        for kind in dict.fromkeys(("cpu", device)):
            _carried_by(gloo, self, kind)

    def getBackendName(self) -> str:  # noqa: N802  # torch's word
        return NAME

    def _set_group_name(self, name: str) -> None:
        super()._set_group_name(name)  # type: ignore[arg-type]
        self._host._set_group_name(name)  # type: ignore[arg-type]

    def get_group_store(self) -> Any:
        return self._store

    def _is_ours(self, *given: object, message: bool = False) -> bool:
        """Whether the tensors of a call are to be staged.

        Raises:
            ValueError: where some are and some are not, or where NCCL would refuse one.
        """
        tensors = list(copies.tensors(given))
        kinds = {tensor.device.type for tensor in tensors}
        if self._device not in kinds:
            return False
        if len(kinds) > 1:
            raise ValueError(f"the tensors of one call are on {' and '.join(sorted(kinds))}: move them to one device")
        for each in tensors:
            if not message and not copies.contiguous(each):
                shape, strides = tuple(each.shape), each.stride()
                raise ValueError(f"Tensors must be contiguous, as for NCCL: shape {shape} has strides {strides}")
        return True

    def _start(self, works: Sequence[Work], outputs: Pairs) -> StagedWork:
        work = StagedWork(works, outputs)
        self._under_way = [each for each in self._under_way if not each.written] + [work]
        if self._batch is not None:
            self._batch.append(work)
        return work

    def carry(self, name: str, first: object, *rest: object, writes: bool = True, **named: object) -> Work:
        """Call `name` of the group of copies."""
        call = getattr(self._host, name)
        if not self._is_ours(first, *rest, *named.values(), message=name in MESSAGES):
            return call(first, *rest, **named)  # type: ignore[no-any-return]
        copied = partial(copies.copied, reduces=name.startswith(REDUCING), flat=name.startswith(FLAT))
        written: Pairs = []
        read: Pairs = []
        first, rest = copied(first, written), tuple(copied(each, read) for each in rest)
        named = {key: copied(each, read) for key, each in named.items()}
        rest = tuple(copies.scaled(each, [*written, *read]) for each in rest)
        return self._start([call(first, *rest, **named)], written if writes else [])

    def reduce(self, tensors: list[torch.Tensor], *rest: Any, **named: Any) -> Work:  # type: ignore[override]
        """Only the root has an outcome. gloo leaves sums of some ranks on the others, NCCL what was there."""
        root = rest[0] if rest else named.get("opts", named.get("root"))
        return self.carry("reduce", tensors, *rest, writes=getattr(root, "rootRank", root) == self.rank(), **named)

    def send(self, tensors: list[torch.Tensor], *to: int) -> Work:
        return self.carry("send", tensors, *to, writes=False)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], *options: object) -> Work:
        if not self._is_ours(outputs, inputs):
            return self._host.alltoall(outputs, inputs, *options)
        there, here = [each.numel() for each in outputs], [each.numel() for each in inputs]
        sent = torch.cat([copies.carriable(copies.host(each)).reshape(-1) for each in inputs])
        came = torch.cat([copies.carriable(copies.host(each)).reshape(-1) for each in outputs])
        work = self._host.alltoall_base(came, sent, there, here, *options)
        parts = [part.view(to.dtype).view(to.shape) for part, to in zip(came.split(there), outputs, strict=True)]  # type: ignore[no-untyped-call]
        return self._start([work], list(zip(outputs, parts, strict=True)))

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work:  # type: ignore[override]
        """A barrier of the ranks, after what the current stream was given before it."""
        if self._device != "cpu" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.current_stream().synchronize()
        asked = dist.BarrierOptions()  # of its own: opts may name a device
        limit = timeout or getattr(opts, "timeout", opts)
        if limit is not None:
            asked.timeout = limit
        return self._host.barrier(asked)

    def monitored_barrier(self, *options: Any, **named: Any) -> None:
        self._host.monitored_barrier(*options, **named)  # type: ignore[attr-defined]

    def _start_coalescing(self, device: torch.device) -> None:
        self._batch = []

    def _end_coalescing(self, device: torch.device) -> Work:
        works, self._batch = self._batch, None
        return StagedWork(works or [], [])

    def split_group(
        self, ranks: list[int], timeout: timedelta | None = None, opts: object = None, group_name: str | None = None,
        group_desc: str | None = None, device_types: object = None,
    ) -> StagedGroup | None:  # fmt: skip
        """The group of these ranks, on each of them; None on others."""
        ranks = sorted(ranks)
        if self.rank() not in ranks:
            return None
        name = group_name or f"{self.group_name}:split:{ranks}"
        store = PrefixStore(f"{name}/", self._store)
        part = StagedGroup(self._device, store, ranks.index(self.rank()), len(ranks), timeout or self._timeout)
        part._set_group_name(name)
        part._set_group_desc(group_desc or "undefined")
        return part


def _carried_by(gloo: Any, group: ProcessGroup, device: str) -> None:
    """What torch itself does with a backend of a group. Nothing public makes a group over a backend: 2.0 to 2.13."""
    group._set_default_backend(ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device(device), ProcessGroup.BackendType.GLOO, gloo)


for _name in FIRST_IS_WRITTEN:
    if hasattr(ProcessGroup, _name):
        setattr(StagedGroup, _name, lambda self, *given, _name=_name, **named: self.carry(_name, *given, **named))

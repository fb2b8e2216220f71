"""A script that only knows CUDA, on this CPU over gloo: what it asks of CUDA is answered by the CPU.

It needs no stack, and repairs nothing: tensors stay where they are, names of devices are read as `cpu`, and what CUDA
would measure (memory, time) is 0.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

LABEL = (
    'shimmed: "cuda" is the CPU; nccl is gloo, and a mean over ranks a sum of what was divided; no memory and no '
    "time is measured; what is pinned or in a stream is as it was"
)
_CPU = torch.device("cpu")
_ZERO = (
    "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "current_device",
    "power_draw", "temperature", "utilization", "memory_usage", "clock_rate",
)  # fmt: skip
_NOTHING = (
    "set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "reset_max_memory_allocated", "manual_seed",
    "manual_seed_all", "init", "ipc_collect", "set_stream", "reset_accumulated_memory_stats",
)  # fmt: skip
_REDUCED = {"all_reduce": 0, "reduce_scatter_tensor": 1}
_ARGUMENTS = {
    "all_reduce": ("tensor", "op", "group", "async_op"),
    "reduce_scatter_tensor": ("output", "input", "op", "group", "async_op"),
}
"""Functions of torch.distributed that may be asked for a mean: which argument is reduced, and what they are called."""


class _Here(TorchFunctionMode):
    """Functions of torch that name a device of CUDA compute here."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, named = getattr(func, "__name__", ""), dict(kwargs or {})
        if name in ("cuda", "pin_memory") and args and isinstance(args[0], Tensor):
            return args[0]
        if named.get("pin_memory"):
            named["pin_memory"] = False
        if "device" in named:
            named["device"] = here(named["device"], number=True)
        place = {"to": 1, "_parse_to": 0}.get(name)  # of a tensor, of a module: there a number is a device
        return func(*(here(each, number=at == place) for at, each in enumerate(args)), **named)


def here(device: Any, *, number: bool = False) -> Any:
    """The CPU, for a device of CUDA; anything else as it is. `number`: whether an int is a device."""
    if isinstance(device, str) and device.partition(":")[0] == "cuda":
        return "cpu"
    if isinstance(device, torch.device) and device.type in ("cuda", "cpu"):
        return _CPU  # also for cpu:0, which torch.load refuses: torch.device("cuda", 0) is that here
    return _CPU if number and isinstance(device, int) and not isinstance(device, bool) else device


class _Done:
    """A collective that has ended: gloo's has no future."""

    def wait(self, *_: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> _Done:
        return self


class _Event:
    """An event or a stream of CUDA, in which everything has happened already."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: 0.0 if name == "elapsed_time" else name == "query"

    def __enter__(self) -> _Event:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def cuda_is_the_cpu() -> Iterator[str]:
    """The shims, for a whole script; gives the label that its trace must show."""
    with contextlib.ExitStack() as undone:
        for owner, name, put in _replaced():
            before = getattr(owner, name, None)
            undo = (delattr, owner, name) if before is None else (setattr, owner, name, before)
            undone.callback(*undo)
            setattr(owner, name, put)
        undone.enter_context(_Here())
        yield LABEL


def _replaced() -> Iterator[tuple[Any, str, Any]]:
    count = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    for module in (torch.cuda, torch.accelerator):
        yield module, "is_available", lambda: True
        yield module, "device_count", lambda: count
    for name in ("set_device_index", "set_device_idx", "synchronize", "empty_cache"):
        yield torch.accelerator, name, lambda *_, **__: None
    for name in ("current_device_index", "current_device_idx"):
        yield torch.accelerator, name, lambda: 0
    yield torch.accelerator, "current_accelerator", lambda *_, **__: _CPU
    for name in _ZERO:
        yield torch.cuda, name, lambda *_, **__: 0
    for name in _NOTHING:
        yield torch.cuda, name, lambda *_, **__: None
    properties = SimpleNamespace(name="cpu", total_memory=1, major=0, minor=0, multi_processor_count=1)
    for name, put in (
        ("get_device_name", lambda *_: "cpu"), ("get_device_properties", lambda *_: properties),
        ("get_device_capability", lambda *_: (0, 0)), ("mem_get_info", lambda *_: (1, 1)),
        ("memory_stats", lambda *_: Counter()), ("is_bf16_supported", lambda *_, **__: True),
        ("get_rng_state", lambda *_: torch.get_rng_state()),
        ("set_rng_state", lambda state, *_: torch.set_rng_state(state)),
        ("get_rng_state_all", lambda: [torch.get_rng_state()]),
        ("set_rng_state_all", lambda states: torch.set_rng_state(states[0])),
        ("Event", _Event), ("Stream", _Event), ("current_stream", _Event), ("default_stream", _Event),
        ("stream", lambda *_: contextlib.nullcontext()), ("device", lambda *_: contextlib.nullcontext()),
    ):  # fmt: skip
        yield torch.cuda, name, put
    for name in ("range_push", "range_pop", "mark"):
        yield torch.cuda.nvtx, name, lambda *_: None
    yield torch.nn.Module, "cuda", lambda module, *_: module
    fork = torch.random.fork_rng
    yield torch.random, "fork_rng", lambda _=None, enabled=True, **__: fork((), enabled)  # the CPU's state always is
    yield torch, "load", _named("map_location", torch.load)
    yield torch, "set_default_device", _first(torch.set_default_device)
    for owner in (torch.autocast, torch.amp.GradScaler):
        yield owner, "__init__", _second(owner.__init__)
    yield DistributedDataParallel, "__init__", _without(DistributedDataParallel.__init__, "device_ids", "output_device")
    yield dist, "init_process_group", _over_gloo(dist.init_process_group)
    yield dist, "new_group", _over_gloo(dist.new_group)
    for package in (dist, dist.device_mesh):
        yield package, "init_device_mesh", _first(dist.device_mesh.init_device_mesh)
    for name, at in _REDUCED.items():
        yield dist, name, _averages(getattr(dist, name), at)


def _named(name: str, before: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given, **named: before(*given, **({**named, name: here(named[name])} if name in named else named))


def _first(before: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given, **named: before(*map(here, given), **{name: here(each) for name, each in named.items()})


def _second(before: Callable[..., Any]) -> Callable[..., Any]:
    def made(self: Any, device: Any = "cuda", *given: Any, **named: Any) -> None:
        before(self, here(named.pop("device_type", device)), *given, **named)

    return made


def _without(before: Callable[..., Any], *names: str) -> Callable[..., Any]:
    def made(self: Any, module: Any, *given: Any, **named: Any) -> None:
        left = {name: each for name, each in named.items() if name not in names}
        before(self, module, *(None for _ in given[: len(names)]), *given[len(names) :], **left)

    return made


def _over_gloo(before: Callable[..., Any]) -> Callable[..., Any]:
    def begin(*given: Any, **named: Any) -> Any:
        taken = ["gloo" if isinstance(each, str) and "nccl" in each else each for each in given]
        left = {name: each for name, each in named.items() if name != "device_id"}
        if not given and "nccl" in str(left.get("backend") or "nccl"):
            left["backend"] = "gloo"
        return before(*taken, **left)

    return begin


def _averages(before: Callable[..., Any], at: int) -> Callable[..., Any]:
    def reduce(*given: Any, **named: Any) -> Any:
        told = dict(zip(_ARGUMENTS[before.__name__], given, strict=False)) | named
        if told.get("op") == dist.ReduceOp.AVG:
            with torch.no_grad():
                told[_ARGUMENTS[before.__name__][at]].div_(dist.get_world_size(told.get("group")))
            told["op"] = dist.ReduceOp.SUM
        work = before(**told)
        if work is None:
            return None
        work.wait()
        return _Done()

    return reduce

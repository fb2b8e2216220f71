"""Checkpoints of a stack that knows of no faults: a fork of this process meets one, and a state becomes a module.

What is written passes through calls of Python, which are replaced only in the fork; there torch and safetensors write
their files through Python too.
"""

import builtins
import io
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor, nn

from contracts.instruments import accelerator
from contracts.spec import Refused, WriteFault, Written, codec
from contracts.stacks.forked_call import ForkDied, in_a_fork
from contracts.stacks.forked_ranks import DEADLINE_S, Work, forked_ranks

CHANGES = ("mkdir", "rename", "replace", "unlink", "remove", "rmdir", "truncate", "link", "symlink")


def changed(change: Callable[[], None], fault: WriteFault | None, errors: tuple[type[BaseException], ...]) -> Written:
    """How a change ended: in a fork of this process where it meets a fault.

    Args:
        errors: what the stack raises where it refuses, or where the disk does.
    """
    if fault is None:
        return under(WriteFault(), change, errors)
    try:
        said = in_a_fork(lambda: codec.dumps(_on_the_cpu(fault, change, errors)), own_group=True)
        return codec.loads(Written, said)
    except ForkDied:
        if fault.dies_after is None:
            raise
        return Written(ending="died", boundaries=fault.dies_after)


def _on_the_cpu(fault: WriteFault, change: Callable[[], None], errors: tuple[type[BaseException], ...]) -> Written:
    accelerator.hide()
    return under(fault, change, errors)


def under(fault: WriteFault, change: Callable[[], None], errors: tuple[type[BaseException], ...]) -> Written:
    """How a change ended in this process, which meets the fault and may die of it."""
    refusals: tuple[type[BaseException], ...] = (Refused, *errors)
    if fault.room is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault.room, hard))  # Python ignores the signal: EFBIG is raised
    counter = Boundaries(fault.dies_after) if fault.dies_after else None
    words = ""
    try:
        change()
    except refusals as error:
        words = f"{type(error).__name__}: {error}"
    return Written(ending="refused" if words else "done", boundaries=counter.passed if counter else 0, words=words)


def endings(ranks: int, work: Work, faults: Mapping[int, WriteFault]) -> tuple[Written, ...]:
    """How a save ended on each of several ranks, in forks of this process.

    Args:
        work: sends how it ended (`under`) where its rank has not died.
    """
    with forked_ranks(ranks, work) as started:
        deadline = time.monotonic() + DEADLINE_S
        for copy, _ in started:
            copy.join(max(0.0, deadline - time.monotonic()))
        return tuple(_ending(copy, told, faults.get(rank)) for rank, (copy, told) in enumerate(started))


def _ending(copy: BaseProcess, told: Connection, fault: WriteFault | None) -> Written:
    if copy.is_alive():
        return Written(ending="hung", boundaries=0, words=f"no end within {DEADLINE_S:g} s")
    if copy.exitcode == -signal.SIGKILL and fault is not None:
        return Written(ending="died", boundaries=fault.dies_after or 0)
    found: Written = told.recv()  # an end of file goes on: the process died of something else
    return found


class Boundaries:
    """Counts the boundaries that this process passes from now on, and kills it at one of them."""

    def __init__(self, dies_after: int) -> None:
        self.left, self.passed, self.opened = dies_after, 0, io.open
        builtins.open = io.open = self.open
        for name in CHANGES:
            setattr(os, name, self.counted(getattr(os, name)))
        torch.save = self.through_python(torch.save, lambda save, held, file: save(held, file))
        if held := sys.modules.get("safetensors.torch"):
            vars(held)["save_file"] = self.through_python(
                held.save, lambda save, tensors, file, **named: file.write(save(tensors, **named))
            )

    def reached(self) -> None:
        self.passed += 1
        if self.passed == self.left:
            os.kill(os.getpid(), signal.SIGKILL)

    def through_python(self, save: Callable[..., Any], write: Callable[..., Any]) -> Callable[..., Any]:
        def saving(held: Any, at: Any, *rest: Any, **named: Any) -> Any:
            if not isinstance(at, str | os.PathLike):
                return save(held, at, *rest, **named)
            with self.open(at, "wb") as file:
                return write(save, held, file, *rest, **named)

        return saving

    def counted(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any, **named: Any) -> Any:
            done = change(*given, **named)
            self.reached()
            return done

        return counting

    def open(self, file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **named: Any) -> Any:
        if not set(mode) & set("wax+") or isinstance(file, int):
            return self.opened(file, mode, buffering, *rest, **named)
        opener = named.pop("opener", None)  # tempfile gives one, and a folder
        raw = _Halved(self, file, mode.replace("b", "").replace("t", ""), opener=opener)
        self.reached()
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *rest, **named)


class _Halved(io.FileIO):
    """A file with a boundary in the middle of what is written to it, and one when it is closed."""

    def __init__(self, counter: Boundaries, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.counter, self.halved = counter, False

    def write(self, data: Any) -> int:
        bytes_ = memoryview(data).cast("B")
        if self.halved or len(bytes_) < 2:
            return super().write(bytes_) or 0
        self.halved = True
        written = super().write(bytes_[: len(bytes_) // 2]) or 0
        self.counter.reached()
        return written

    def close(self) -> None:
        if not self.closed:
            super().close()
            self.counter.reached()


def module_with(tensors: Mapping[str, Tensor], into: nn.Module | None = None) -> nn.Module:
    """A module whose tensors have these names; `into` is an empty one that gets them."""
    model = into or nn.Module()
    for name, each in tensors.items():
        path, _, last = name.rpartition(".")
        module = model
        for part in path.split(".") if path else ():
            if part not in dict(module.named_children()):
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        module.register_parameter(last, nn.Parameter(each.clone(), requires_grad=False))
    return model

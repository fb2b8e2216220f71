"""What the reference answers about checkpoints (spec/checkpointing.py)."""

from __future__ import annotations

import contextlib
import multiprocessing
import resource
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.instruments import accelerator, numerics
from contracts.spec import (
    Arrays,
    Element,
    Loaded,
    Naming,
    Overtaken,
    Recipe,
    Refused,
    Snapshot,
    WriteFault,
    Written,
    refuse,
)
from contracts.spec import storage as volumes
from contracts.spec.installation import Disks, StorageMap
from contracts.stacks.reference.answers.base import BuiltOfParts
from contracts.stacks.without_cuda import without_cuda

if TYPE_CHECKING:  # torch is loaded when a checkpoint is asked for, not when the stack is introduced
    from multiprocessing.connection import Connection

    from torch import Tensor

    from contracts.stacks.reference.checkpoint.checkpoint import State
    from contracts.stacks.reference.checkpoint.filesystem import Disk

DEADLINE_S = 60.0  # of a process that may die; a whole write takes 20 ms


class CheckpointAnswers(BuiltOfParts):
    """The answers of `Reference` on this subject."""

    @without_cuda
    def write_checkpoint(self, folder: str, state: Snapshot, file_bytes: int, fault: WriteFault | None) -> Written:
        held = _held(state)

        def write(disk: Disk) -> None:
            self.parts().checkpoints(folder, disk=disk, file_bytes=file_bytes).save(held)

        return _upset(write, fault)

    @without_cuda
    def write_on_ranks(
        self, folder: str, state: Snapshot, ranks: int, faults: Mapping[int, WriteFault]
    ) -> tuple[Written, ...]:
        from contracts.stacks.reference.checkpoint.crash_during_save import save_with_faults

        held = _held(state)
        return save_with_faults(lambda disk: self.parts().checkpoints(folder, disk=disk), held, ranks, faults)

    @without_cuda
    def retire_checkpoints(self, folder: str, keep: int, durable: frozenset[int], fault: WriteFault | None) -> Written:
        def retire(disk: Disk) -> None:
            self.parts().checkpoints(folder, disk=disk).retire(keep, durable)

        return _upset(retire, fault)

    def write_in_background(self, folder: str, states: tuple[Snapshot, ...]) -> Overtaken:
        import torch

        from contracts.stacks.reference.checkpoint.checkpoint import State
        from contracts.stacks.reference.checkpoint.filesystem import BlockedDisk

        disk = BlockedDisk()
        kept = self.parts().checkpoints(folder, disk=disk)
        live = {name: torch.zeros_like(numerics.tensor(each)) for name, each in states[0].tensors.items()}
        position: dict[str, int] = {}
        try:
            for state in states:
                for name, each in numerics.tensors(state.tensors).items():
                    live[name].copy_(each)
                position |= state.position
                kept.save_later(State(step=state.step, tensors=live, position=position, recipe=state.recipe))
        finally:
            disk.released.set()  # a thread that waits for it would never end
        blank = numerics.arrays({name: torch.zeros_like(each) for name, each in live.items()})
        loaded = _loaded(kept.load, None, Snapshot(step=0, tensors=blank, recipe=states[-1].recipe))
        with contextlib.suppress(Refused):
            kept.wait()
        return Overtaken(published=tuple(int(name.removeprefix("step-")) for name in disk.named), loaded=loaded)

    @without_cuda
    def write_in_background_on_ranks(
        self, folder: str, states: tuple[Snapshot, ...], ranks: int, late: int
    ) -> tuple[Overtaken, ...]:
        from contracts.stacks.reference.checkpoint.async_save import save_one_upon_the_other

        held = tuple(map(_held, states))
        return save_one_upon_the_other(
            lambda disk, group: self.parts().checkpoints(folder, disk=disk, group=group), held, ranks, late
        )

    def latest_checkpoint(self, folder: str) -> int | None:
        return self.parts().checkpoints(folder).latest()

    def load_checkpoint(self, folder: str, step: int | None, target: Snapshot) -> Loaded:
        return _loaded(self.parts().checkpoints(folder).load, step, target)

    def rename_weights(self, tensors: Arrays, naming: Naming) -> Arrays:
        return numerics.arrays(self.parts().weight_names().rename(numerics.tensors(tensors), naming))

    @without_cuda
    def export_weights(self, tensors: Arrays, dtype: Element) -> Arrays:
        import torch

        from contracts.stacks.reference.checkpoint.checkpoint import State

        given = self.parts().weight_names().exported(numerics.tensors(tensors), getattr(torch, dtype))
        into = {name: torch.zeros_like(each) for name, each in given.items()}
        with tempfile.TemporaryDirectory() as folder:
            kept = self.parts().checkpoints(folder)
            kept.save(State(step=1, tensors=given, position={}, recipe=""))
            kept.load(into, recipe="", step=1)
        return numerics.arrays(into)

    def export_model(self, folder: str, recipe: Recipe, weights: Arrays, files: int) -> str:
        names = self.parts().weight_names()
        names.written(Path(folder), names.rename(numerics.tensors(weights), "per_expert"), files)
        return folder

    def checkpoint_folder(self, save: str | None, run: str, storage: StorageMap, disks: Disks) -> str:
        findings = [each for each in volumes.storage_findings(storage, disks) if each.field == "durable"]
        if findings:
            raise refuse("storage.durable", storage.durable, findings[0].problem, findings[0].remedy)
        durable = volumes.resolved(storage.durable, disks.links)
        if save is None:
            volumes.cache_directories(storage, run)  # refuses a run that names no directory
            return f"{storage.durable.rstrip('/')}/{run}"
        place = volumes.resolved(save, disks.links)
        if not volumes.within(place, durable) or place == durable:
            problem = f"leads to {place}, which is no directory below {durable}"
            raise refuse("checkpoint.save", save, problem, f"use {storage.durable}/{run}")
        return save


def _held(state: Snapshot) -> State:
    from contracts.stacks.reference.checkpoint.checkpoint import State

    return State(step=state.step, tensors=numerics.tensors(state.tensors), position=state.position, recipe=state.recipe)


def _loaded(load: Callable[..., State], step: int | None, target: Snapshot) -> Loaded:
    """The target after a load into it, refused or not."""
    into: dict[str, Tensor] = numerics.tensors(target.tensors)
    number, position, refused = target.step, target.position, ""
    try:
        state = load(into, recipe=target.recipe, step=step)
        number, position = state.step, state.position
    except Refused as declined:
        refused = str(declined)
    after = Snapshot(step=number, tensors=numerics.arrays(into), position=dict(position), recipe=target.recipe)
    return Loaded(state=after, refused=refused)


def _upset(change: Callable[[Disk], None], fault: WriteFault | None) -> Written:
    """Change a folder under a fault: in a copy of this process, of which nothing comes back but words."""
    from contracts.stacks.reference.checkpoint.filesystem import DEATH

    if fault is None:
        return _changed(change, None)
    context = multiprocessing.get_context("fork")  # a new interpreter would import torch for 2 s at each boundary
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=_change_and_tell, args=(change, fault, sending), daemon=True)
    with warnings.catch_warnings():
        # Python 3.12 warns of a fork beside threads. The copy runs none of theirs, and takes none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    sending.close()
    child.join(DEADLINE_S)
    if child.is_alive():
        child.kill()
        child.join()
    if child.exitcode == DEATH:
        return Written(ending="died", boundaries=fault.dies_after or 0)
    try:
        told: Written = receiving.recv()
    except EOFError:
        raise RuntimeError(f"the writing process ended with exit code {child.exitcode}") from None
    return told


def _change_and_tell(change: Callable[[Disk], None], fault: WriteFault, sending: Connection) -> None:
    accelerator.hide()
    if fault.room is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault.room, hard))  # Python ignores the signal: EFBIG is raised
    sending.send(_changed(change, fault.dies_after))


def _changed(change: Callable[[Disk], None], dies_after: int | None) -> Written:
    from contracts.stacks.reference.checkpoint.filesystem import CrashingDisk

    disk = CrashingDisk(dies_after)
    try:
        change(disk)
    except Refused as refused:
        return Written(ending="refused", boundaries=disk.boundaries, words=str(refused))
    return Written(ending="done", boundaries=disk.boundaries)

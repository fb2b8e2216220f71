"""OLMo-core's Checkpointer by itself, for olmo_lane.py: what it writes, finds and loads."""


import contextlib
import os
import pickle
import tempfile
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from olmo_core.distributed.checkpoint.filesystem import RemoteFileSystemWriter
from olmo_core.train import Checkpointer
from olmo_core.train.train_module import BasicTrainModule
from olmo_core.utils import wait_for
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from contracts.instruments import numerics
from contracts.spec import Loaded, NotOffered, Overtaken, Snapshot, WriteFault, Written
from contracts.stacks.forked_ranks import join_process_group
from contracts.stacks.kit import worlds
from contracts.stacks.kit.checkpoints import changed, endings, module_with, under

ERRORS = (
    CheckpointException, OSError, RuntimeError, ValueError, KeyError, AttributeError, EOFError, pickle.UnpicklingError,
)  # fmt: skip
LATE_S, WRITE = 0.3, RemoteFileSystemWriter.write_data


class Kept(BasicTrainModule):
    """The tensors of a state as the parameters of a module, which its Checkpointer saves and loads."""

    def __init__(self, state: Snapshot, mesh: DeviceMesh | None = None) -> None:
        self.names = tuple(state.tensors)
        tensors = {name: _cut(each, mesh) for name, each in numerics.tensors(state.tensors).items()}
        super().__init__(module_with(tensors), torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]), 1)

    def state_dict_to_load(self, *given: Any, **named: Any) -> dict[str, Any]:
        return self.state_dict(optim=False)

    state_dict_to_save = state_dict_to_load

    @torch.no_grad()
    def take(self, state: Snapshot) -> None:
        held = dict(self.model.named_parameters())
        for name, each in numerics.tensors(state.tensors).items():
            held[name].copy_(each)

    def snapshot(self, step: int, position: Mapping[str, int]) -> Snapshot:
        held = self.model.state_dict()
        return Snapshot(step=step, tensors=numerics.arrays({n: held[n] for n in self.names}), position=position)


def _cut(tensor: Tensor, mesh: DeviceMesh | None) -> Tensor:
    if mesh is None:
        return tensor
    return distribute_tensor(tensor, mesh, [Shard(0) if tensor.dim() else Replicate()], src_data_rank=None)


@contextlib.contextmanager
def _saver(**named: Any) -> Iterator[Checkpointer]:
    with tempfile.TemporaryDirectory() as work:
        yield Checkpointer(work_dir=Path(work), save_overwrite=True, **named)


def _trainer(state: Snapshot) -> dict[str, Any]:
    """What a Trainer would save of itself."""
    return {"step": state.step, "position": dict(state.position), "recipe": state.recipe}


def _save(folder: str, state: Snapshot, kept: Kept) -> None:
    with _saver() as saver:
        saver.save(f"{folder}/step{state.step}", kept, _trainer(state))


def _late(self: RemoteFileSystemWriter, *given: Any, **named: Any) -> Any:
    time.sleep(LATE_S)
    return WRITE(self, *given, **named)


class Checkpoints:
    """Its answers about checkpoints."""

    def write_checkpoint(self, folder: str, state: Snapshot, file_bytes: int, fault: WriteFault | None) -> Written:
        """A save. It writes one file of tensors a rank and thread, however large."""
        return changed(lambda: _save(folder, state, Kept(state)), fault, ERRORS)

    def write_on_ranks(
        self, folder: str, state: Snapshot, ranks: int, faults: Mapping[int, WriteFault]
    ) -> tuple[Written, ...]:
        """A save on several ranks, in forks of this process."""

        def work(rank: int, meeting: str, sending: Connection) -> None:
            for name in ("save_plan", "all_plans", "global_plan", "final_save_plan", "metadata"):
                getattr(SavePlanner, f"_cached_{name}").clear()  # of worlds of one: these are other processes
            join_process_group(rank, ranks, meeting)
            kept = Kept(state, init_device_mesh("cpu", (ranks,)))
            dist.barrier()  # after it whoever dies is missed, and not waited for at the beginning
            sending.send(under(faults.get(rank, WriteFault()), lambda: _save(folder, state, kept), ERRORS))
            sending.close()
            os._exit(0)  # a group of which a member is gone is not taken down in peace

        return endings(ranks, work, faults)

    def write_in_background(self, folder: str, states: tuple[Snapshot, ...]) -> Overtaken:
        """Asynchronous saves, each after the one before, as `CheckpointerCallback` has them."""
        slow = patch.object(RemoteFileSystemWriter, "write_data", _late)
        with worlds.of_one(), slow, _saver(process_group=dist.new_group()) as saver:
            kept, saving, place = Kept(states[0]), None, ""
            for state in states:
                kept.take(state)
                if saving is not None:
                    saving.result()
                    wait_for(lambda place=place: saver.dir_is_checkpoint(place), "its file of metadata")
                place = f"{folder}/step{state.step}"
                saving = saver.save_async(place, kept, _trainer(state))
            loaded = self.load_checkpoint(folder, None, states[-1])
            saving.result()
        complete = sorted(Path(folder).glob("step*/.metadata.json"), key=lambda each: each.stat().st_mtime_ns)
        return Overtaken(published=tuple(int(each.parent.name[4:]) for each in complete), loaded=loaded)

    def latest_checkpoint(self, folder: str) -> int | None:
        try:
            return int(Path(Checkpointer.latest_checkpoint(folder)).name.removeprefix("step"))
        except FileNotFoundError:
            return None

    def load_checkpoint(self, folder: str, step: int | None, target: Snapshot) -> Loaded:
        """A load, of the latest if no step is given.

        Raises:
            NotOffered: if only the recipe differs, which it does not compare.
        """
        kept = Kept(target)
        try:
            with _saver() as saver:
                found = f"{folder}/step{step}" if step else saver.latest_checkpoint(folder)
                told = saver.load(found, kept, load_trainer_state=True)
        except ERRORS as error:
            now = kept.snapshot(target.step, target.position)
            return Loaded(state=now, refused=f"{type(error).__name__}: {error}")
        if told["recipe"] != target.recipe:
            raise NotOffered("OLMo-core: it compares no configuration with a checkpoint's", "stack")
        return Loaded(state=kept.snapshot(told["step"], told["position"]))

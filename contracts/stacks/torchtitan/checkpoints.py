"""torchtitan's checkpoint manager by itself, in one process: what it writes, finds, loads and removes.

A state of the law is handed to it as a trainer hands over its own: parameters and buffers in a model, moments where the
optimizers stand, counters as bytes where the data loader stands, the step in the state of training.
"""

import contextlib
import importlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from contracts.instruments import numerics
from contracts.spec import (
    Arrays,
    Element,
    Execution,
    Loaded,
    NotOffered,
    Overtaken,
    Recipe,
    Snapshot,
    WriteFault,
    Written,
    refuse,
)
from contracts.stacks.forked_ranks import join_process_group
from contracts.stacks.kit import worlds
from contracts.stacks.kit.checkpoints import changed, endings, module_with, under
from contracts.stacks.kit.runs import put
from contracts.stacks.torchtitan import shims, symbols, weight_mapping
from contracts.stacks.torchtitan.abilities import ABILITIES
from contracts.stacks.torchtitan.configuration import declined
from contracts.stacks.torchtitan.model import config_of

ERRORS = (CheckpointException, OSError, RuntimeError, ValueError)
"""What it raises where it does not save or load."""
OF_OPTIMIZERS = "optimizer/"
LATE_S = 0.3
"""Long beside a write, which takes some milliseconds."""


class Held:
    """A part of a state: tensors and numbers by name, which its manager reads and puts back."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        return dict(self.values)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.values = dict(state_dict)


class Kept:
    """One state, and a manager that has it."""

    def __init__(
        self, folder: str, state: Snapshot, keep: int = 0, mode: str = "disabled", mesh: DeviceMesh | None = None,
        **config: Any,
    ) -> None:  # fmt: skip
        tensors = {name: _cut(each, mesh) for name, each in numerics.tensors(state.tensors).items()}
        self.names = tuple(tensors)
        self.model = module_with({n: each for n, each in tensors.items() if not n.startswith(OF_OPTIMIZERS)})
        self.optimizers = Held(**{n: each for n, each in tensors.items() if n.startswith(OF_OPTIMIZERS)})
        self.data = Held(position=json.dumps(dict(state.position)).encode())
        self.training = Held(step=state.step, recipe=state.recipe)
        manager = symbols.checkpoint_manager()
        self.manager = manager(
            manager.Config(enable=True, folder=folder, interval=1, keep_latest_k=keep, async_mode=mode, **config),
            dataloader=self.data, model_parts=[self.model], optimizers=self.optimizers, lr_schedulers=Held(),
            states={"train_state": self.training}, sd_adapter=None,
        )  # fmt: skip

    @torch.no_grad()
    def take(self, state: Snapshot) -> None:
        """Give what is held the values of another state, in place as a step does it."""
        held = {**dict(self.model.named_parameters()), **self.optimizers.values}
        for name, each in numerics.tensors(state.tensors).items():
            held[name].copy_(each)
        self.data.values["position"] = json.dumps(dict(state.position)).encode()
        self.training.values |= {"step": state.step, "recipe": state.recipe}

    def state(self) -> Snapshot:
        position = json.loads(self.data.values["position"])
        held = {**self.model.state_dict(), **self.optimizers.values}
        tensors = numerics.arrays({name: held[name] for name in self.names})
        return Snapshot(step=self.training.values["step"], tensors=tensors, position=position)


def _cut(tensor: Tensor, mesh: DeviceMesh | None) -> Tensor:
    """This rank's rows of a tensor, as a DTensor; all of it without a mesh."""
    if mesh is None:
        return tensor
    return distribute_tensor(tensor, mesh, [Shard(0) if tensor.dim() else Replicate()], src_data_rank=None)


def write_checkpoint(folder: str, state: Snapshot, file_bytes: int, fault: WriteFault | None) -> Written:
    """A save of its manager. It writes one file of tensors a rank, however large."""

    def write() -> None:
        with shims.quiet():
            Kept(folder, state).manager.save(state.step)

    return changed(write, fault, ERRORS)


def write_on_ranks(folder: str, state: Snapshot, ranks: int, faults: Mapping[int, WriteFault]) -> tuple[Written, ...]:
    """A save of its manager on several ranks, in forks of this process."""

    def work(rank: int, meeting: str, sending: Connection) -> None:
        join_process_group(rank, ranks, meeting)
        with shims.quiet():
            kept = Kept(folder, state, mesh=init_device_mesh("cpu", (ranks,)))
            dist.barrier()  # after it whoever dies is missed, and not waited for at the beginning
            sending.send(under(faults.get(rank, WriteFault()), lambda: kept.manager.save(state.step), ERRORS))
        sending.close()
        os._exit(0)  # a group of which a member is gone is not taken down in peace

    return endings(ranks, work, faults)


def write_in_background(folder: str, states: tuple[Snapshot, ...]) -> Overtaken:
    """Asynchronous saves of its manager, over a slow disk. A save waits for the one before, so none can be held up."""
    with shims.quiet(), worlds.of_one(), _slow_disk():
        kept = Kept(folder, states[0], mode="async")
        for state in states:
            kept.take(state)
            kept.manager.save(state.step)
        tensors = {name: torch.zeros_like(each) for name, each in numerics.tensors(states[0].tensors).items()}
        kept.take(Snapshot(step=0, tensors=numerics.arrays(tensors), recipe=states[-1].recipe))
        try:
            found, words = kept.manager.load(-1), ""
        except ERRORS as error:
            found, words = False, said(error)
        loaded = Loaded(state=kept.state(), refused=words if found or words else "its manager found no checkpoint")
        try:
            kept.manager.maybe_wait_for_saving()
        except ERRORS as error:
            loaded = replace(loaded, refused=said(error))
        kept.manager.close()
    complete = sorted(Path(folder).glob("step-*/.metadata"), key=lambda each: each.stat().st_mtime_ns)
    return Overtaken(published=tuple(int(each.parent.name[5:]) for each in complete), loaded=loaded)


@contextlib.contextmanager
def _slow_disk() -> Iterator[None]:
    """Files of tensors are written a while after their save was called."""
    write = FileSystemWriter.write_data

    def late(*given: Any, **named: Any) -> Any:
        time.sleep(LATE_S)
        return write(*given, **named)

    FileSystemWriter.write_data = late  # type: ignore[method-assign]
    try:
        yield
    finally:
        FileSystemWriter.write_data = write  # type: ignore[method-assign]


def latest_checkpoint(folder: str) -> int | None:
    """The step that its manager would load.

    Private in torchtitan: nothing public says it without a load. Seen in 0.3.0.
    """
    with shims.quiet():
        found = Kept(folder, Snapshot(step=0, tensors={})).manager._find_load_step()
    return None if found == -1 else found


def said(error: BaseException) -> str:
    """What it raised on this rank, without the traceback that torch adds."""
    inside = [each for each, _ in error.failures.values()] if isinstance(error, CheckpointException) else [error]
    return "; ".join(f"{type(each).__name__}: {each}" for each in inside)


def load_checkpoint(folder: str, step: int | None, target: Snapshot) -> Loaded:
    """A load of its manager into a model and a state of training.

    Raises:
        NotOffered: if only the recipe differs, which it does not save.
    """
    with shims.quiet():
        kept = Kept(folder, target)
        try:
            found, words = kept.manager.load(-1 if step is None else step), ""
        except ERRORS as error:
            found, words = False, said(error)
    if not found:
        return Loaded(state=kept.state(), refused=words or "its manager found no checkpoint, and says so")
    if kept.training.values["recipe"] != target.recipe:
        raise NotOffered("torchtitan 0.3.0: it compares no configuration with a checkpoint's", "stack")
    return Loaded(state=kept.state())


def export_weights(tensors: Arrays, dtype: Element) -> Arrays:
    """What its manager saves after the last step of a run: the model only, in a dtype for export."""
    with tempfile.TemporaryDirectory() as folder, shims.quiet():
        kept = Kept(folder, Snapshot(step=1, tensors=tensors), export_dtype=dtype, last_save_model_only=True)
        kept.manager.save(1, last_step=True)
        reader = FileSystemReader(Path(folder, "step-1"))
        held = reader.read_metadata().state_dict_metadata
        found = {
            name: torch.empty(each.size, dtype=each.properties.dtype)
            for name, each in held.items()
            if isinstance(each, TensorStorageMetadata)
        }
        load(found, storage_reader=reader)
        kept.manager.close()
    return numerics.arrays(found)


def export_model(folder: str, recipe: Recipe, weights: Arrays, files: int) -> str:
    """What its manager saves after the last step of a run for Hugging Face, by the state-dict adapter of the model. It
    takes the file of each name from the index of the model's assets, and such an index has the output projection,
    whether or not it is tied."""
    declined(recipe, Execution(), "export_model", "torchtitan 0.3.0", ABILITIES)
    name, ours = ("qwen3" if recipe.mla is None else "deepseek_v3"), weight_mapping.links(recipe)
    registered = importlib.import_module(f"torchtitan.models.{name}").model_registry("debugmodel").state_dict_adapter
    with shims.quiet(), worlds.of_one():
        config = config_of(recipe)
        model = config.build()
        model.to_empty(device="cpu")
        put("weights", weights, dict(model.named_parameters()), ours)
        held = [*registered(config, None).to_hf(model.state_dict()), "lm_head.weight"]
        assets = Path(folder, "assets")
        assets.mkdir()
        places = {each: f"model-{at % files + 1:05d}-of-{files:05d}.safetensors" for at, each in enumerate(held)}
        if files > 1:
            (assets / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}), encoding="utf-8")
        kind, kept = symbols.checkpoint_manager(), {"folder": folder, "keep_latest_k": 0}
        manager = kind(
            kind.Config(enable=True, last_save_model_only=True, last_save_in_hf=True, **kept),
            dataloader=Held(), model_parts=[model], optimizers=Held(), lr_schedulers=Held(),
            states={"train_state": Held(step=1)}, sd_adapter=registered(config, str(assets)),
        )  # fmt: skip
        manager.save(1, last_step=True)
        manager.close()
    return str(Path(folder, "step-1"))


def retire_checkpoints(folder: str, keep: int, durable: frozenset[int], fault: WriteFault | None) -> Written:
    """What its manager purges after a save. Private in torchtitan: a save of its own would purge as well, and write.
    Seen in 0.3.0.

    Raises:
        NotOffered: for a durable copy, of which it knows nothing, and where it keeps one checkpoint or, with 0, all.
    """
    if keep in (0, 1):
        raise NotOffered("torchtitan 0.3.0: it keeps at least two checkpoints, or with 0 all of them", "stack")
    if not {int(each.name[5:]) for each in Path(folder).glob("step-*") if each.name[5:].isdecimal()} <= durable:
        raise NotOffered("torchtitan 0.3.0: it knows no copy of its checkpoints on other storage", "stack")

    def retire() -> None:
        with shims.quiet(), worlds.of_one():
            try:
                manager = Kept(folder, Snapshot(step=0, tensors={}), keep).manager
            except ValueError as error:
                raise refuse("keep", keep, str(error), "keep two at least") from None
            manager._purge_stale_checkpoints()
            manager.close()

    return changed(retire, fault or WriteFault(), ERRORS)

"""NeMo AutoModel's checkpoints by themselves, for nemo_lane.py: what its BaseRecipe writes, finds and loads."""

import contextlib
import io
import os
import pickle
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from nemo_automodel.components.checkpoint.config import CheckpointingConfig
from nemo_automodel.components.checkpoint.utils import find_latest_checkpoint
from nemo_automodel.components.config.loader import ConfigNode
from nemo_automodel.recipes.base_recipe import BaseRecipe
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from contracts.instruments import numerics
from contracts.spec import Loaded, NotOffered, Snapshot, WriteFault, Written
from contracts.stacks.forked_ranks import join_process_group
from contracts.stacks.kit.checkpoints import changed, endings, module_with, under

UNREADABLE = (CheckpointException, OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, AttributeError,
              pickle.UnpicklingError)  # fmt: skip


class Kept(BaseRecipe):
    """A recipe whose model has the tensors of a state as its parameters."""

    def __init__(self, folder: str, state: Snapshot, mesh: DeviceMesh | None = None) -> None:
        self.cfg, self.peft_config, self.device_mesh = ConfigNode({}), None, None
        config = CheckpointingConfig(checkpoint_dir=folder, save_consolidated=False)
        self.checkpointer = config.build(dist.get_rank() if mesh else 0, 0, 0)
        tensors = dict(numerics.tensors(state.tensors))
        for name, each in tensors.items() if mesh else ():
            tensors[name] = distribute_tensor(each, mesh, [Shard(0) if each.dim() else Replicate()], src_data_rank=None)
        self.model = module_with(tensors)
        self.optimizer = torch.optim.SGD(self.model.parameters())
        self.held = {"step": state.step, "position": dict(state.position), "recipe": state.recipe}
        self.position = SimpleNamespace(state_dict=lambda: self.held, load_state_dict=self.held.update)

    def save(self) -> None:
        self.save_checkpoint(0, self.held["step"], 1.0)



class Checkpoints:
    """Its answers about checkpoints."""

    def write_checkpoint(self, folder: str, state: Snapshot, file_bytes: int, fault: WriteFault | None) -> Written:
        """A save. It writes one file of tensors a rank, however large."""
        return changed(lambda: Kept(folder, state).save(), fault, UNREADABLE)

    def latest_checkpoint(self, folder: str) -> int | None:
        found = find_latest_checkpoint(folder)
        return None if found is None else int(Path(found).resolve().name.rpartition("_")[2])

    def load_checkpoint(self, folder: str, step: int | None, target: Snapshot) -> Loaded:
        kept, refused = Kept(folder, target), ""
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                kept.load_checkpoint(f"epoch_0_step_{step}" if step else "LATEST")
        except UNREADABLE as error:
            refused = f"{type(error).__name__}: {error}"
        if kept.held["recipe"] != target.recipe:
            raise NotOffered("NeMo AutoModel: a checkpoint of another recipe is loaded with a warning", "stack")
        tensors = {name: each for name, each in kept.model.state_dict().items() if name in target.tensors}
        return Loaded(state=Snapshot(tensors=numerics.arrays(tensors), **kept.held), refused=refused)

    def write_on_ranks(
        self, folder: str, state: Snapshot, ranks: int, faults: Mapping[int, WriteFault]
    ) -> tuple[Written, ...]:
        def work(rank: int, meeting: str, sending: Connection) -> None:
            join_process_group(rank, ranks, meeting)
            kept = Kept(folder, state, init_device_mesh("cpu", (ranks,)))
            dist.barrier()  # after it whoever dies is missed, and not waited for at the beginning
            sending.send(under(faults.get(rank, WriteFault()), kept.save, UNREADABLE))
            sending.close()
            os._exit(0)  # a group of which a member is gone is not taken down in peace

        return endings(ranks, work, faults)

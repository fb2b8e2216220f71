"""Checkpoints of a run, written and read by Megatron's `dist_checkpointing`: any layout reads what another wrote.

Megatron-Core saves one folder and loads one; which of several is the latest its training script says, which 0.16.1 does
not ship. Here each stands below its step, as that script names them, and the latest is the newest that Megatron finds
complete on every rank: its `metadata.json` is written last.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from contracts.spec.errors import refuse
from contracts.stacks.megatron.shims import mcore

NAMED = re.compile(r"iter_(\d{7,})")


class HasState(Protocol):
    """What a checkpoint is taken of: the chunks of the model without wrappers, optimizer, rate, number of the step."""

    number: int
    bare: list[Any]
    optimizer: Any
    rate: Any


def save(trainer: HasState, folder: str) -> None:
    """Write the state of all ranks after the step that was just taken."""
    at = Path(folder) / f"iter_{trainer.number:07d}"
    if dist.get_rank() == 0:
        at.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    mcore("dist_checkpointing").save(_state(trainer, loading=False), str(at))


def load(trainer: HasState, folder: str) -> None:
    """Put the latest checkpoint of a folder in the place of what the trainer holds.

    Raises:
        Refused: when there is none that every rank sees, or Megatron refuses it, in its words.
    """
    at = Path(folder) / f"iter_{_latest(folder):07d}"
    checkpointing = mcore("dist_checkpointing")
    failures = (mcore("dist_checkpointing.core").CheckpointingException, CheckpointException)
    try:
        found = checkpointing.load(_state(trainer, loading=True), str(at))
        for key, chunk in zip(_keys(trainer), trainer.bare, strict=True):
            chunk.load_state_dict(found[key])
        trainer.optimizer.load_state_dict(found["optimizer"])
        trainer.rate.num_steps = 0  # what is loaded is added to what was counted
        trainer.rate.load_state_dict(found["opt_param_scheduler"])
    except (*failures, AssertionError, KeyError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise refuse("load", str(at), _words(error), "load what a run of this recipe saved") from None
    trainer.number = int(found["iteration"])


def _words(error: BaseException) -> str:
    """What a failure says; of one that torch gathered over ranks, what the first rank says and not where."""
    if isinstance(error, CheckpointException):
        (rank, (error, _)) = min(error.failures.items(), key=lambda failure: failure[0])
        return f"rank {rank}: {_words(error)}"
    return " ".join(str(error).split())[:600] or type(error).__name__


def _state(trainer: HasState, *, loading: bool) -> dict[str, Any]:
    """What is saved and what is to be loaded, as Megatron's training script puts it together.

    Layers of unequal kinds are named one by one; `chained_optim_avoid_prefix` names a moment by its weight alone and
    not by the optimizer that holds it.
    """
    metadata = {
        "non_homogeneous_layers": True,
        "singleton_local_shards": False,
        "chained_optim_avoid_prefix": True,
        "dp_cp_group": mcore("parallel_state").get_data_parallel_group(with_context_parallel=True),
    }
    state = {
        key: chunk.sharded_state_dict(metadata=metadata)
        for key, chunk in zip(_keys(trainer), trainer.bare, strict=True)
    }
    optimizer = trainer.optimizer.sharded_state_dict(dict(state), is_loading=loading, metadata=metadata)
    return state | {
        "optimizer": optimizer,
        "opt_param_scheduler": trainer.rate.state_dict(),
        "iteration": trainer.number,
    }


def _keys(trainer: HasState) -> list[str]:
    """Under what each chunk of this rank stands: `model`, and `model0`, `model1` where there are several."""
    several = len(trainer.bare) > 1
    return [f"model{number}" if several else "model" for number in range(len(trainer.bare))]


def _latest(folder: str) -> int:
    """The newest step that lies complete before every rank."""
    complete = mcore("dist_checkpointing").check_is_distributed_checkpoint
    mine = {
        int(named[1])
        for path in Path(folder).glob("iter_*")
        if (named := NAMED.fullmatch(path.name)) and complete(str(path))
    }
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    steps: set[int] = set.intersection(*every)
    if not steps:
        words = f"holds no complete checkpoint that all {len(every)} ranks see"
        raise refuse("load", folder, words, "name a folder that a run saved to")
    return max(steps)

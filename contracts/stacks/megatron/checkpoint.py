"""Checkpoints of a run, written and read by Megatron's `dist_checkpointing`: any layout can load another's.

Megatron-Core saves one folder and loads one. Its training script, which 0.16.1 does not ship, decides which of several
is the latest. Here each checkpoint is in a folder named by its step, as in that script. The latest is the newest that
Megatron finds complete on every rank; its `metadata.json` is written last.
"""

import pickle
import re
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from contracts.spec import refuse
from contracts.stacks.megatron.distributed_optimizer import Pieces, weights_gathered
from contracts.stacks.megatron.shims import mcore

NAMED = re.compile(r"iter_(\d{7,})")


class HasState(Protocol):
    """The state of a checkpoint: chunks of the model without wrappers and with them, optimizer, schedule, number of the
    step; `pieces` of a distributed optimizer."""

    number: int
    bare: list[Any]
    chunks: list[Any]
    pieces: Pieces | None
    optimizer: Any
    rate: Any


def save(trainer: HasState, folder: str) -> None:
    """Write the state of all ranks after the last step.

    Raises:
        Refused: when Megatron's state lacks what it is to write.
    """
    at = Path(folder) / f"iter_{trainer.number:07d}"
    if dist.get_rank() == 0:
        at.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    with weights_gathered(trainer.chunks):
        try:
            state = _state(trainer, loading=False)
        except KeyError as error:
            raise refuse("save", str(at), f"its state has no {error}", "save after a step that was taken") from None
        mcore("dist_checkpointing").save(state, str(at))


def load(trainer: HasState, folder: str) -> None:
    """Load the latest checkpoint of a folder into the trainer.

    Raises:
        Refused: when no complete checkpoint is visible to every rank, or Megatron refuses it, in its words.
    """
    at = Path(folder) / f"iter_{_latest(folder):07d}"
    checkpointing = mcore("dist_checkpointing")
    failures = (mcore("dist_checkpointing.core").CheckpointingException, CheckpointException)
    try:
        found = checkpointing.load(_state(trainer, loading=True), str(at))
        for key, chunk in zip(keys(trainer), trainer.bare, strict=True):
            chunk.load_state_dict(found[key])
        trainer.optimizer.load_state_dict(found["optimizer"])
        trainer.rate.num_steps = 0  # Megatron adds the loaded number to it
        trainer.rate.load_state_dict(found["opt_param_scheduler"])
    except (*failures, AssertionError, KeyError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise refuse("load", str(at), _words(error), "load what a run of this recipe saved") from None
    trainer.number = int(found["iteration"])


def _words(error: BaseException) -> str:
    """The message of a failure; of one that torch gathered over ranks, the first rank's message without traceback."""
    if isinstance(error, CheckpointException):
        (rank, (error, _)) = min(error.failures.items(), key=lambda failure: failure[0])
        return f"rank {rank}: {_words(error)}"
    return " ".join(str(error).split())[:600] or type(error).__name__


def _state(trainer: HasState, *, loading: bool) -> dict[str, Any]:
    """The state dict to save or to load into, as in Megatron's training script.

    Layers of different kinds are named one by one; `chained_optim_avoid_prefix` names a moment only by its weight, not
    by its optimizer.
    """
    metadata = {
        "non_homogeneous_layers": True,
        "singleton_local_shards": False,
        "chained_optim_avoid_prefix": True,
        "dp_cp_group": mcore("parallel_state").get_data_parallel_group(with_context_parallel=True),
    }
    if trainer.pieces is not None:  # its --dist-ckpt-optim-fully-reshardable
        metadata |= {"distrib_optim_sharding_type": "fully_reshardable"}
    state = {
        key: chunk.sharded_state_dict(metadata=metadata) for key, chunk in zip(keys(trainer), trainer.bare, strict=True)
    }
    optimizer = trainer.optimizer.sharded_state_dict(dict(state), is_loading=loading, metadata=metadata)
    return state | {
        "optimizer": optimizer,
        "opt_param_scheduler": trainer.rate.state_dict(),
        "iteration": trainer.number,
    }


def keys(trainer: HasState) -> list[str]:
    """The key of each chunk of this rank: `model`, or `model0`, `model1` … if there are several."""
    several = len(trainer.bare) > 1
    return [f"model{number}" if several else "model" for number in range(len(trainer.bare))]


def _latest(folder: str) -> int:
    """The newest step whose checkpoint is complete on every rank."""
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

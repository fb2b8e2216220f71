"""Megatron's checkpoints by themselves: what its training script writes, finds and loads, without a model.

A state of the law is handed to `megatron.training.checkpointing` as a model hands over its own: tensors by name, cut by
rows over ranks, and what is no tensor beside them. The training script ships with 0.17 and later.
"""

import argparse
import contextlib
import functools
import importlib
import io
import os
import pickle
import traceback
import typing
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from contracts.instruments import numerics
from contracts.spec import Degrees, Loaded, NotOffered, Refused, Snapshot, WriteFault, Written, refuse
from contracts.stacks.forked_ranks import join_process_group
from contracts.stacks.kit.checkpoints import changed, endings, under
from contracts.stacks.megatron.process_groups import parallel
from contracts.stacks.megatron.shims import Shim, mcore, running_on

ARGV = (
    "--ckpt-format", "torch_dist", "--verify-integrity", "--dist-ckpt-strictness", "raise_all",
    "--exit-on-missing-checkpoint", "--no-save-optim", "--no-load-optim", "--no-save-rng", "--no-load-rng",
)  # fmt: skip
"""Its own flags: with a hash of each file, and strict about names; the state that is saved is all in the model."""
LABEL = f"; its training script's checkpoints under {' '.join(ARGV[2:5])}, of which no file has a largest size"
_GENERATOR = Shim(
    at="torch:cuda.get_rng_state", put=lambda *_: torch.zeros(0, dtype=torch.uint8), why="the generator of CUDA"
)


def training(module: str) -> Any:
    """A module of its training script; Python 3.11 lacks `typing.override`, which it names."""
    if not hasattr(typing, "override"):
        typing.override = lambda method: method  # type: ignore[attr-defined]
    return importlib.import_module(f"megatron.training.{module}")


class Held:
    """A state as the model of a checkpoint: this rank's rows of each tensor, and beside them what is no tensor."""

    def __init__(self, state: Snapshot, rank: int, ranks: int) -> None:
        self.whole, self.rank, self.ranks = numerics.tensors(state.tensors), rank, ranks
        self.beside: dict[str, Any] = {"position": dict(state.position), "recipe": state.recipe}

    def sharded_state_dict(self, metadata: Any = None) -> dict[str, Any]:
        own = {name: self._rows(name, each) for name, each in self.whole.items()}
        return {name: each for name, each in own.items() if each is not None} | self.beside

    def _rows(self, name: str, tensor: Tensor) -> Any:
        sharded = mcore("dist_checkpointing.mapping").ShardedTensor
        if not tensor.dim():
            return sharded.from_rank_offsets(name, tensor, replica_id=self.rank)
        parts = tensor.chunk(self.ranks)
        if len(tensor) % self.ranks == 0 and tensor.numel():
            return sharded.from_rank_offsets(name, parts[self.rank], (0, self.rank, self.ranks))
        if self.rank >= len(parts):
            return None
        mine, before = parts[self.rank], sum(len(part) for part in parts[: self.rank])
        offset = (before, *(0 for _ in tensor.shape[1:]))  # of parts of unequal size, or of none, there is no grid
        return sharded(name, mine, mine.dtype, tuple(mine.shape), tuple(tensor.shape), offset, axis_fragmentations=None)

    def load_state_dict(self, found: Mapping[str, Any], strict: bool = True) -> None:
        for name, each in self.whole.items():
            each.copy_(found[name])
        self.beside = {name: found[name] for name in self.beside}


def write_checkpoint(folder: str, state: Snapshot, file_bytes: int, fault: WriteFault | None) -> Written:
    """A save of its training script. The size of its files follows from the number of its writers."""

    def write() -> None:
        with _running(folder):
            _save(folder, state)

    return changed(write, fault, ())


def write_on_ranks(folder: str, state: Snapshot, ranks: int, faults: Mapping[int, WriteFault]) -> tuple[Written, ...]:
    """A save of its training script on several ranks, in forks of this process."""
    training("checkpointing")  # once, and not on each rank

    def work(rank: int, meeting: str, sending: Connection) -> None:
        join_process_group(rank, ranks, meeting)
        fault = faults.get(rank, WriteFault())
        with _running(folder, ranks):
            dist.barrier()  # after it whoever dies is missed, and not waited for at the beginning
            sending.send(under(fault, lambda: _save(folder, state), ()))
        sending.close()
        os._exit(0)  # a group of which a member is gone is not taken down in peace

    return endings(ranks, work, faults)


def latest_checkpoint(folder: str) -> int | None:
    """The step that its training script would load: what its tracker file says.

    Raises:
        Refused: where it ends because it cannot read that file.
    """
    checkpointing = training("checkpointing")
    with _running(folder), _ended(folder):
        tracker = checkpointing.get_checkpoint_tracker_filename(folder)
        return int(checkpointing.read_metadata(tracker)[0]) if checkpointing.checkpoint_exists(folder) else None


def load_checkpoint(folder: str, step: int | None, target: Snapshot) -> Loaded:
    """A load of its training script.

    Raises:
        NotOffered: if only the recipe differs: it compares its arguments for layers, hidden size and heads.
    """
    held, found, words = Held(target, 0, 1), target.step, ""
    with _running(folder, step=step):
        try:
            with _ended(folder):
                found, _ = training("checkpointing").load_checkpoint([held], None, None)
        except Refused as refused:
            words = str(refused)
    if not words and held.beside["recipe"] != target.recipe:
        raise NotOffered("Megatron-Core: of a checkpoint's arguments it compares layers, width and heads", "stack")
    state = Snapshot(
        step=found, tensors=numerics.arrays(held.whole), position=held.beside["position"], recipe=target.recipe
    )
    return Loaded(state=state, refused=words)


def _save(folder: str, state: Snapshot) -> None:
    with _ended(folder):
        held = Held(state, dist.get_rank(), dist.get_world_size())
        training("checkpointing").save_checkpoint(state.step, [held], None, None, 0)


@contextlib.contextmanager
def _ended(folder: str) -> Iterator[None]:
    """What it raises where it does not save or load, as a refusal; its last line if it ends the process.

    Raises:
        Refused: in its words.
    """
    failures = (mcore("dist_checkpointing.core").CheckpointingException, CheckpointException)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            yield
    except SystemExit:
        lines = [line for line in said.getvalue().splitlines() if line.strip()]
        raise refuse("folder", folder, "ends the process: " + " ".join(lines[-2:]), "see its words") from None
    except (*failures, AssertionError, KeyError, ValueError, OSError, RuntimeError, EOFError, NotImplementedError,
            pickle.UnpicklingError) as error:  # fmt: skip
        raise refuse("folder", folder, f"{type(error).__name__}: {_words(error)}", "see its words") from None
    except (TypeError, AttributeError, IndexError) as error:
        if not traceback.extract_tb(error.__traceback__)[-1].filename.endswith("_weights_only_unpickler.py"):
            raise
        # a damaged pickle can make torch's reader raise any of these
        raise refuse("folder", folder, f"{type(error).__name__}: {_words(error)}", "see its words") from None


def _words(error: BaseException) -> str:
    """The message of a failure; of one that torch gathered over ranks, each rank's without traceback."""
    if isinstance(error, CheckpointException):
        return "; ".join(f"rank {rank}: {_words(cause)}" for rank, (cause, _) in sorted(error.failures.items()))
    return " ".join(str(error).split())[:2000] or type(error).__name__


@contextlib.contextmanager
def _running(folder: str, ranks: int = 1, step: int | None = None) -> Iterator[None]:
    """Its training script's globals, as after its initialisation, with groups over these ranks."""
    variables, counting = training("global_vars"), mcore("num_microbatches_calculator")
    args = argparse.Namespace(**vars(defaults()))
    args.save = args.load = folder
    args.ckpt_step = step
    training("utils").update_use_dist_ckpt(args)
    args.rank, args.world_size, args.async_strategy = 0, ranks, "mcore"  # as validated without asynchronous saves
    with running_on(besides=(_GENERATOR,)), parallel(Degrees(), ranks):
        variables.set_args(args)
        counting.init_num_microbatches_calculator(0, None, ranks, 1, ranks)
        training("checkpointing")._CHECKPOINT_VERSION = None
        try:
            yield
        finally:
            counting.unset_num_microbatches_calculator()
            variables.set_args(None)


@functools.cache
def defaults() -> argparse.Namespace:
    """What its own parser makes of the flags."""
    parser = training("arguments").add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    made: argparse.Namespace = parser.parse_args([*ARGV])
    return made

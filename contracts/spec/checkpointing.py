"""Questions about checkpoints: atomic writes, the latest complete one, loading, retention.

A folder holds the checkpoints of one run. Its layout is the stack's own: a check sees steps, states, and files that it
may damage. Every folder that a question names exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from contracts.spec.array import Arrays, Element
from contracts.spec.installation import Disks, StorageMap
from contracts.spec.party import Party
from contracts.spec.recipe import Recipe

Ending = Literal["done", "died", "refused", "hung"]
Naming = Literal["stacked", "per_expert"]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What one checkpoint holds.

    Args:
        step: the optimizer step after which it was taken.
        tensors: weights, optimizer state, buffers, random generators, by name.
        position: counters that are not tensors: data position, tokens seen. They may exceed 2³¹.
        recipe: digest of the recipe, or empty. A state may be loaded only into the recipe under which it was saved.
    """

    step: int
    tensors: Arrays
    position: Mapping[str, int] = field(default_factory=dict)
    recipe: str = ""


@dataclass(frozen=True, kw_only=True)
class WriteFault:
    """A fault that is injected into a write.

    Args:
        dies_after: the process ends, as by SIGKILL, after this many boundaries (1-based). There is a boundary after
            each operation that changes the file system, and one in the middle of each file's content.
        room: bytes after which a file cannot grow, as on a full disk.
    """

    dies_after: int | None = None
    room: int | None = None


@dataclass(frozen=True, kw_only=True)
class Written:
    """How a write or a removal ended; `hung` is a process that was still waiting at its deadline.

    Args:
        boundaries: how many boundaries it passed, the last one included.
        words: the reason of a refusal, or how long the process waited.
    """

    ending: Ending
    boundaries: int
    words: str = ""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The target of a load, after the load.

    Args:
        state: the target. `step` is the step of the loaded checkpoint.
        refused: why nothing was loaded, in which case `state` is unchanged; empty when everything was loaded.
    """

    state: Snapshot
    refused: str = ""


@dataclass(frozen=True, kw_only=True)
class Overtaken:
    """The result of asynchronous saves.

    Args:
        published: steps in the order in which their checkpoints became complete.
        loaded: the result of a load that was requested right after the last save had started.
    """

    published: tuple[int, ...]
    loaded: Loaded


class Checkpointing(Party, Protocol):
    """How a stack writes, finds, loads and retires checkpoints."""

    def write_checkpoint(self, folder: str, state: Snapshot, file_bytes: int, fault: WriteFault | None) -> Written:
        """Write one checkpoint, in a separate process if a fault is given.

        No file holds more than about `file_bytes` bytes of tensors; larger tensors are cut along their first dimension.
        A stack whose files have no such bound writes them as it always does.
        """
        ...

    def write_in_background(self, folder: str, states: tuple[Snapshot, ...]) -> Overtaken:
        """Save several states asynchronously, without waiting for any save.

        One set of live tensors takes the values of the first state and a save starts; it takes the values of the second
        state and a save starts; and so on. The disk is so slow that nothing is written before the last save has
        started. Then the latest checkpoint is loaded.
        """
        ...

    def write_on_ranks(
        self, folder: str, state: Snapshot, ranks: int, faults: Mapping[int, WriteFault]
    ) -> tuple[Written, ...]:
        """Write one checkpoint from `ranks` processes. Returns how it ended on each rank.

        Every tensor is sharded by rows over the ranks, in rank order; when there are fewer rows than ranks, the last
        ranks hold none. Every rank holds the scalars. `faults` maps a rank to its fault. Surviving ranks get time to
        notice a rank that died.
        """
        ...

    def write_in_background_on_ranks(
        self, folder: str, states: tuple[Snapshot, ...], ranks: int, late: int
    ) -> tuple[Overtaken, ...]:
        """`write_in_background` on `ranks` processes, with states sharded as in `write_on_ranks`. One result a rank.

        The disk of rank `late` starts to write after the disks of the other ranks. Every rank loads full tensors.
        """
        ...

    def latest_checkpoint(self, folder: str) -> int | None:
        """The step of the newest complete checkpoint; None when there is none."""
        ...

    def load_checkpoint(self, folder: str, step: int | None, target: Snapshot) -> Loaded:
        """Load a step, or the latest (None), into a target that has the expected names, shapes and dtypes.

        A checkpoint that is damaged or does not fit the target is refused as a whole (`Loaded.refused`).
        """
        ...

    def retire_checkpoints(self, folder: str, keep: int, durable: frozenset[int], fault: WriteFault | None) -> Written:
        """Remove checkpoints older than the newest `keep` complete ones, as far as that is safe.

        `durable` are the steps whose copies are known to be complete on durable storage.
        """
        ...

    def checkpoint_folder(self, save: str | None, run: str, storage: StorageMap, disks: Disks) -> str:
        """The folder of a run's checkpoints: `save` if it lies on the durable volume, or the stack's choice for None.

        Raises `Refused` for a folder that is not on the durable volume.
        """
        ...

    def rename_weights(self, tensors: Arrays, naming: Naming) -> Arrays:
        """Weights under the names of one file format.

        `stacked` holds the experts of a layer in one tensor (experts, …) named `layers.1.mixer.experts.w1`;
        `per_expert` holds one tensor an expert, `layers.1.mixer.experts.11.w1`. The prefixes of torch.compile, DDP and
        Megatron (`_orig_mod.`, `module.`) are removed.
        """
        ...

    def export_weights(self, tensors: Arrays, dtype: Element) -> Arrays:
        """The weights of a model as the stack's export writes them in a dtype, for others than its own training; read
        back from its files.

        `tensors` may have several dtypes. Whole numbers keep theirs.
        """
        ...

    def export_model(self, folder: str, recipe: Recipe, weights: Arrays, files: int) -> str:
        """Write the weights of a recipe's model as safetensors, under the names that others know, in about `files`
        files with an index if `files` exceeds 1; returns the folder that has them, `folder` or one below it.
        """
        ...

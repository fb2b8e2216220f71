"""What is asked of checkpoints: that one is written whole or not at all, found, read back, and thrown away in time.

A folder holds the checkpoints of one run. How they lie in it is the stack's own affair: a check sees steps, states, and
files that it may break. A folder that a question names exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from contracts.spec.array import Arrays
from contracts.spec.installation import Disks, StorageMap
from contracts.spec.party import Party

Ending = Literal["done", "died", "refused", "hung"]
Naming = Literal["stacked", "per_expert"]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What one checkpoint holds.

    Args:
        step: the optimizer step after which it was taken.
        tensors: weights, optimizer state, buffers, generators, by name.
        position: counters that are no tensors: data position, tokens seen. They may exceed 2³¹.
        recipe: digest of the recipe, or nothing; a state is loaded into the recipe it was saved under and no other.
    """

    step: int
    tensors: Arrays
    position: Mapping[str, int] = field(default_factory=dict)
    recipe: str = ""


@dataclass(frozen=True, kw_only=True)
class WriteFault:
    """How a write is upset.

    Args:
        dies_after: the process ends, as by SIGKILL, after this many boundaries (1-based). A boundary lies after each
            operation that changes the file system, and in the middle of each file's content.
        room: bytes after which a file can grow no more, as on a full disk.
    """

    dies_after: int | None = None
    room: int | None = None


@dataclass(frozen=True, kw_only=True)
class Written:
    """How a write or a removal ended; `hung` is a process that was still waiting at its deadline.

    Args:
        boundaries: how many boundaries it passed, the last one included.
        words: why it was refused, or how long was waited.
    """

    ending: Ending
    boundaries: int
    words: str = ""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The target of a load as it stands afterwards.

    Args:
        state: the target. `step` is that of the checkpoint that was loaded.
        refused: why nothing was loaded; empty when all of it was. `state` is then what it was before.
    """

    state: Snapshot
    refused: str = ""


@dataclass(frozen=True, kw_only=True)
class Overtaken:
    """What became of saves in the background.

    Args:
        published: steps in the order in which they became complete.
        loaded: what a load gave that was asked for at once after the last save was started.
    """

    published: tuple[int, ...]
    loaded: Loaded


class Checkpointing(Party, Protocol):
    """How a stack keeps state on a disk."""

    def write_checkpoint(self, folder: str, state: Snapshot, file_bytes: int, fault: WriteFault | None) -> Written:
        """Write one checkpoint, in a process of its own if a fault is given. No file holds more than about
        `file_bytes` of tensors: larger ones are cut along their first dimension."""
        ...

    def write_in_background(self, folder: str, states: tuple[Snapshot, ...]) -> Overtaken:
        """Train through the states and save each in the background, none of them waited for.

        One set of live tensors becomes the first state, a save is started, becomes the second, and so on. The disk is
        so slow that nothing is written before the last save has been started; then a load of the latest is asked for.
        """
        ...

    def write_on_ranks(
        self, folder: str, state: Snapshot, ranks: int, faults: Mapping[int, WriteFault]
    ) -> tuple[Written, ...]:
        """Write one checkpoint from so many ranks, each a process of its own; how it ended on each of them.

        Every rank holds a run of the rows of each tensor, ranks behind the last row none, and of a scalar the whole.
        `faults` are by rank. Ranks that outlive one that died are given time to notice.
        """
        ...

    def write_in_background_on_ranks(
        self, folder: str, states: tuple[Snapshot, ...], ranks: int, late: int
    ) -> tuple[Overtaken, ...]:
        """`write_in_background` on so many ranks, which share the states as in `write_on_ranks`; by rank.

        The disk of the rank `late` takes up its work after those of the others. A rank loads whole tensors.
        """
        ...

    def latest_checkpoint(self, folder: str) -> int | None:
        """The step of the newest complete checkpoint."""
        ...

    def load_checkpoint(self, folder: str, step: int | None, target: Snapshot) -> Loaded:
        """Load a step, or the latest, into a target that has the names, shapes and dtypes that are expected."""
        ...

    def retire_checkpoints(self, folder: str, keep: int, durable: frozenset[int], fault: WriteFault | None) -> Written:
        """Remove what is older than the newest `keep` complete checkpoints, as far as that is safe.

        `durable` are the steps whose copy is known to have reached the durable storage.
        """
        ...

    def checkpoint_folder(self, save: str | None, run: str, storage: StorageMap, disks: Disks) -> str:
        """Where a run's checkpoints go: `save` if it lies on the durable volume, the stack's own choice there for
        None. Anything else is refused."""
        ...

    def rename_weights(self, tensors: Arrays, naming: Naming) -> Arrays:
        """Weights under the names of one file format.

        `stacked` holds the experts of a layer in one tensor, (experts, …), `layers.1.mixer.experts.w1`; `per_expert`
        one by one, `layers.1.mixer.experts.11.w1`. What torch.compile, DDP and Megatron put before a name
        (`_orig_mod.`, `module.`) is taken off.
        """
        ...

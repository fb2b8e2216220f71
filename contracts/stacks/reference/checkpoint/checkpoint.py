"""Checkpoints of one run: written whole or not at all, found by number, loaded whole or not at all, retired in time.

A checkpoint is a folder, `step-00000010`. It is written under another name, synced, and gets its own by one rename, so
whatever bears the name is complete; there is no pointer to it that could be stale. Tensors go through
`torch.distributed.checkpoint` (DCP), everything else through the manifest.

    kept = Checkpoints("/mnt/data/checkpoints/run-1")
    kept.save(State(step=10, tensors=tensors, position={"sample": 640}))
    state = kept.load(tensors)         # in place, into the names, shapes and dtypes that are expected
    kept.retire(keep=3)
"""

import hashlib
import uuid
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from contracts.spec import Checkpoint, Element, Recipe, Refusals, Refused, codec, refuse
from contracts.stacks.reference.checkpoint import manifest as manifests
from contracts.stacks.reference.checkpoint.coordination import CheckpointRanks, plain_errors
from contracts.stacks.reference.checkpoint.dcp_storage import ShardReader, ShardWriter
from contracts.stacks.reference.checkpoint.filesystem import Disk
from contracts.stacks.reference.checkpoint.manifest import Manifest, StoredFile, StoredTensor
from contracts.stacks.reference.checkpoint.retention import CheckpointFolder
from contracts.stacks.reference.parallel.placements import local_part, placed_zeros


@dataclass(frozen=True, kw_only=True)
class State:
    """The state that one rank saves or has loaded: tensors by name (DTensors where they are sharded), counters, the
    recipe.
    """

    step: int
    tensors: Mapping[str, Tensor]
    position: Mapping[str, int] = field(default_factory=dict)
    recipe: str = ""


def recipe_digest(recipe: Recipe) -> str:
    """What a state may be loaded into: everything of the recipe but where its checkpoints lie."""
    return hashlib.sha256(codec.dumps(replace(recipe, checkpoint=Checkpoint())).encode("ascii")).hexdigest()


class Checkpoints(CheckpointFolder):
    """The checkpoints in one folder, of which this process is the only writer (or one rank of it).

    In a running world every rank saves and loads at the same time: each writes what only it holds, the first one
    publishes when all have synced theirs, and each reads what it needs, whoever wrote it.

    Args:
        file_bytes: no file holds more than about this many bytes of tensors.
        group: the ranks that save and load together; None is all of them. Saves in the background need one of their
            own, since their collectives run beside those of the training.
        alone: whether this process saves by itself, whatever world it lives in.
        of_ranks: how names begin of which each rank loads its own and leaves those of the others; empty for none.
    """

    reader: type[ShardReader] = ShardReader

    def __init__(
        self,
        folder: str | Path,
        *,
        disk: Disk | None = None,
        file_bytes: int = 2**30,
        group: ProcessGroup | None = None,
        alone: bool = False,
        of_ranks: tuple[str, ...] = (),
    ) -> None:
        super().__init__(folder, disk)
        self.file_bytes = file_bytes
        self.group = group
        self.ranks = CheckpointRanks(group=group, alone=alone)
        self.of_ranks = of_ranks
        self.writer = ThreadPoolExecutor(max_workers=1)  # one: saves become complete in the order of their calls
        self.pending: list[Future[None]] = []

    # writing
    def save(self, state: State) -> None:
        """Write a checkpoint and return when it is durable.

        Raises:
            Refused: when it cannot be written, or the step is there already; what was there before is untouched.
        """
        final = self.folder / self.name_of(state.step)
        self.ranks.refuse_together(self.unsavable(state, final))
        unfinished = self.unfinished(final)

        def publish(drawn: str, tensors: Mapping[str, StoredTensor], files: Mapping[str, StoredFile]) -> None:
            manifest = Manifest(
                step=state.step, save=drawn, recipe=state.recipe, position=dict(state.position),
                tensors=tensors, files=files,
            )  # fmt: skip
            self.publish(unfinished, final, manifest)

        sink = ShardWriter(unfinished, self.disk, step=state.step, file_bytes=self.file_bytes, publish=publish)
        try:
            with plain_errors(self.folder):
                save(
                    dict(state.tensors), storage_writer=sink, planner=DefaultSavePlanner(flatten_state_dict=False),
                    process_group=self.group, no_dist=self.ranks.single,
                )  # fmt: skip
        except BaseException:
            self.abandon(unfinished)
            raise

    def unsavable(self, state: State, final: Path) -> Refusals:
        """Why this rank cannot save a state under a name."""
        found = Refusals()
        steps = self.ranks.all_gather(state.step)
        same = f"differs over the ranks, which say {list(steps)}"
        found.unless(len(set(steps)) == 1, "step", steps[0], same, "save on all ranks after the same step")
        found.unless(state.step >= 0, "step", state.step, "must not be negative", "count optimizer steps from 1")
        found.unless(not final.exists(), "step", state.step, f"is in {final.parent} already", "use a folder of its own")
        for name, each in state.tensors.items():
            dtype = str(each.dtype).removeprefix("torch.")
            found.unless(dtype in get_args(Element), name, dtype, "has no form on the disk", "save another dtype")
        return found

    def unfinished(self, final: Path) -> Path:
        """Another name for each attempt: what a dead writer left is in nobody's way."""
        return final.with_name(f"{final.name}.tmp-{uuid.uuid4().hex}")

    def abandon(self, unfinished: Path) -> None:
        """Give the room back that a failed save took."""
        self.disk.discard(unfinished)

    def publish(self, unfinished: Path, final: Path, manifest: Manifest) -> None:
        """Everything that makes it complete first, the name last."""
        self.disk.write(unfinished / manifests.NAME, [manifests.to_text(manifest)])
        self.disk.sync(unfinished)
        self.disk.rename(unfinished, final)
        self.disk.sync(self.folder)

    def save_later(self, state: State) -> None:
        """Save the state as it is now, and return before it is written.

        The copy costs the memory of the state. A failure is raised by the next `wait`, or by a load, which waits.
        """
        self.pending.append(self.writer.submit(self.save, self.snapshot(state)))

    def snapshot(self, state: State) -> State:
        """The state in memory of its own, on the host: training continues in the old one."""
        copies = {name: each.detach().to("cpu", copy=True) for name, each in state.tensors.items()}
        return replace(state, tensors=copies, position=dict(state.position))

    def wait(self) -> None:
        """Until every save that was started is durable.

        Raises:
            Refused: when one could not be written.
        """
        pending, self.pending = self.pending, []
        for each in pending:
            each.exception()  # waits for all of them, then tells of the first
        for each in pending:
            each.result()

    # loading
    def load(self, target: Mapping[str, Tensor], *, recipe: str = "", step: int | None = None) -> State:
        """Fill the target in place with a step, or the latest: all of it or nothing.

        Raises:
            Refused: every reason at once: what is missing, foreign, misshapen, of another dtype, damaged.
        """
        self.wait()
        manifest = self.opened(step)
        found = self.damages(self.folder_of(manifest), manifest)
        if recipe != manifest.recipe:
            found.add("recipe", recipe, f"is not the one it was saved under, {manifest.recipe!r}", "load into that one")
        found.merge(self.misfits(manifest, target))
        self.ranks.refuse_together(found)
        self.fill(target, self.read(self.folder_of(manifest), manifest, target))
        return State(step=manifest.step, tensors=target, position=manifest.position, recipe=recipe)

    def folder_of(self, manifest: Manifest) -> Path:
        return self.folder / self.name_of(manifest.step)

    def opened(self, step: int | None = None) -> Manifest:
        """The manifest of a step, or of the latest: the same one on every rank.

        Which is the latest the first rank says. One that sees another folder, a disk of its own node say, finds
        nothing of that step there, or a save that is not the same; both are refused by all.

        Raises:
            Refused: when there is none, or a rank cannot read it.
        """
        chosen, *_ = self.ranks.all_gather(self.latest() if step is None else step)
        if chosen is None:
            raise refuse("folder", str(self.folder), "holds no complete checkpoint", "start without one")
        folder, found, save = self.folder / self.name_of(chosen), Refusals(), ""
        try:
            manifest = manifests.read(folder)
            save = manifest.save
            told = f"is of step {manifest.step}, the folder of {chosen}"
            found.unless(manifest.step == chosen, manifests.NAME, str(folder), told, manifests.REMEDY)
        except Refused as refused:
            found.extend(refused)
        self.ranks.refuse_together(found)
        saves = self.ranks.all_gather(save)
        other = f"leads to another save than on rank 0: {saves[0]}"
        found.unless(save == saves[0], "folder", str(folder), other, "give a folder that all ranks see")
        self.ranks.refuse_together(found)
        return manifest

    def misfits(self, manifest: Manifest, target: Mapping[str, Tensor]) -> Refusals:
        """Tensors that one side lacks, or that are not what is expected. DCP itself casts without a word."""
        found = Refusals()
        where = f"the checkpoint of step {manifest.step}"
        for name in sorted(target.keys() - manifest.tensors.keys()):
            found.add(name, _kind(target[name]), f"is missing from {where}", "load into the model it was saved from")
        for name in self.unexpected(manifest, target):
            found.add(name, manifest.tensors[name].shape, f"is in {where}, and nothing expects it", "expect it")
        for name in sorted(target.keys() & manifest.tensors.keys()):
            held = manifest.tensors[name]
            saved = f"{held.dtype} {list(held.shape)}"
            found.unless(
                _kind(target[name]) == saved, name, _kind(target[name]), f"was saved as {saved}", "expect that"
            )
        return found

    def unexpected(self, manifest: Manifest, target: Mapping[str, Tensor]) -> list[str]:
        """Names of the checkpoint that no rank expects; in a pipeline each expects those of its own stages."""
        left = [name for name in manifest.tensors if name not in target and not self.is_of_ranks(name)]
        first, *others = (set(each) for each in self.ranks.all_gather(left))
        return sorted(first.intersection(*others))

    def is_of_ranks(self, name: str) -> bool:
        return name.startswith(self.of_ranks)

    def read(self, folder: Path, manifest: Manifest, target: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """New tensors, each like its target. They cost the memory of the state, so that a load that fails half way
        leaves the target as it was."""
        fresh = {name: placed_zeros(each) for name, each in target.items()}
        with plain_errors(folder):
            load(
                fresh, storage_reader=self.reader(folder, manifest), process_group=self.group,
                no_dist=self.ranks.single,
                planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            )  # fmt: skip
        return fresh

    def fill(self, target: Mapping[str, Tensor], fresh: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, each in target.items():
                local_part(each).copy_(local_part(fresh[name]))


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"

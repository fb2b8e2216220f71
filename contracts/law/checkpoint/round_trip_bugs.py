"""Checkpoints that return something other than what was saved, or accept what does not fit."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from contracts.law._bugs.numeric import Checkpoints, Manifest, broken, derived, mutant
from contracts.law._bugs.numeric import manifest as manifests
from contracts.spec import Refusals, Refused
from contracts.stacks.reference.checkpoint.checkpoint import State


@broken(Checkpoints, "read", "CKPT-04a[a-long-tensor-in-many-files]: the state w differs", bugs=("RSM-49",))
def joins_files_as_text(read, self, folder, manifest, target):
    """Joins a tensor's shards in the text order of their file names, in which the tenth stands before the second."""
    fresh = read(self, folder, manifest, target)
    for name, held in manifest.tensors.items():
        as_text = sorted(held.pieces, key=lambda piece: str(int(piece.file.removesuffix(".bin").split("-")[-1])))
        if len(as_text) > 1:
            rows = [fresh[name][piece.offsets[0] :][: piece.sizes[0]] for piece in as_text]
            fresh[name] = torch.cat(rows)
    return fresh


@broken(Checkpoints, "save", "CKPT-04a[counters-past-32-bits]: its position is {'tokens': 0", bugs=("RSM-42",))
def counts_in32_bits(save, self, state):
    """Counters go through an int32 tensor, so a run of a trillion tokens resumes at none."""
    wrapped = {name: (count + 2**31) % 2**32 - 2**31 for name, count in state.position.items()}
    save(self, replace(state, position=wrapped))


@derived("CKPT-04b[float64]: the bits of float64 came back as", bugs=("RSM-11",))
class SavesInOneDtype(Checkpoints):
    """Writes every number as float32 and casts it back: ordinary bfloat16 and float32 states do not show it."""

    def save(self, state: State) -> None:
        tensors = {n: each.float() if each.is_floating_point() else each for n, each in state.tensors.items()}
        super().save(replace(state, tensors=tensors))

    def misfits(self, manifest: Manifest, target: Mapping[str, Tensor]) -> Refusals:
        return Refusals()


@broken(Checkpoints, "save", "CKPT-04b[bfloat16]: the bits of bfloat16 came back as")
def zeroes_what_is_not_finite(save, self, state):
    """Replaces NaN and infinity before the save, so a run that had diverged resumes as if it had not."""
    tensors = {n: each.nan_to_num() if each.is_floating_point() else each for n, each in state.tensors.items()}
    save(self, replace(state, tensors=tensors))


@broken(
    Checkpoints,
    "misfits",
    "CKPT-04d[narrower-dtype]: does not fit what was saved, and was loaded",
    "CKPT-04d[moment-in-bfloat16]: does not fit what was saved, and was loaded",
)
def casts_in_silence(misfits, self, manifest, target):
    """Leaves the dtype to `copy_`, as DCP does: float32 experts become bfloat16 at the first resume."""
    same = {
        name: each.to(getattr(torch, manifest.tensors[name].dtype)) if name in manifest.tensors else each
        for name, each in target.items()
    }
    return misfits(self, manifest, same)


@mutant(of="CKPT-04d", case="extra", says="does not fit what was saved, and was loaded", bugs=("EXB-09",))
@derived("CKPT-04d[missing]: does not fit what was saved, and was loaded", bugs=("RSM-41",))
class LoadsWhatItFinds(Checkpoints):
    """Loads with strict=False: what the checkpoint lacks keeps its initial values, and a bias that is registered after
    the load stays in the file.
    """

    def load(self, target: Mapping[str, Tensor], *, recipe: str = "", step: int | None = None) -> State:
        chosen = self.latest() if step is None else step
        held = manifests.read(self.folder / self.name_of(chosen or 0)).tensors
        known = {n: each for n, each in target.items() if n in held and held[n].shape == tuple(each.shape)}
        return super().load(known, recipe=recipe, step=step)

    def misfits(self, manifest: Manifest, target: Mapping[str, Tensor]) -> Refusals:
        return Refusals()


@derived("CKPT-04d[would-broadcast]: does not fit what was saved, and was loaded")
class Broadcasts(Checkpoints):
    """Lets `copy_` broadcast one saved number over a whole vector."""

    def misfits(self, manifest: Manifest, target: Mapping[str, Tensor]) -> Refusals:
        spread = {
            name: each.flatten()[:1].reshape(manifest.tensors[name].shape)
            if name in manifest.tensors and not manifest.tensors[name].shape
            else each
            for name, each in target.items()
        }
        return super().misfits(manifest, spread)

    def read(self, folder: Path, manifest: Manifest, target: Mapping[str, Tensor]) -> dict[str, Tensor]:
        like = {name: each.new_empty(manifest.tensors[name].shape) for name, each in target.items()}
        return super().read(folder, manifest, like)


@broken(Checkpoints, "misfits", "CKPT-04d[everything-at-once]: the refusal does not name")
def stops_at_the_first(misfits, self, manifest, target):
    """Names only the first tensor that does not fit; the user finds the next one after another hour in the queue."""
    found, every = Refusals(), misfits(self, manifest, target)
    try:
        every.raise_any()
    except Refused as refused:
        found.extend(Refused(refused.refusals[:1]))
    return found


@broken(Checkpoints, "misfits", "CKPT-04d[fewer-experts]: the load was refused, but the target is not what it was")
def fills_as_it_reads(misfits, self, manifest, target):
    """Copies tensor by tensor and refuses halfway: a caller that catches the error trains a mixture of two states."""
    every = misfits(self, manifest, target)
    fits = {n: each for n, each in target.items() if n in manifest.tensors}
    fits = {n: each for n, each in fits.items() if tuple(each.shape) == manifest.tensors[n].shape}
    self.fill(fits, self.read(self.folder / self.name_of(manifest.step), manifest, fits))
    return every


@broken(
    Checkpoints,
    "load",
    "CKPT-04e[another-recipe]: a state of recipe 'r1' was loaded into recipe 'r2'",
    bugs=("PRV-06",),
)
def asks_no_recipe(load, self, target, *, recipe="", step=None):
    """Compares shapes and nothing else."""
    chosen = self.latest() if step is None else step
    if chosen in self.steps():
        recipe = manifests.read(self.folder / self.name_of(chosen or 0)).recipe
    return load(self, target, recipe=recipe, step=step)


@broken(Checkpoints, "load", "CKPT-04f[no-such-step]: step 3 of [2, 4] was loaded as step 4")
def takes_the_next(load, self, target, *, recipe="", step=None):
    """Loads the next higher step instead of the one that is missing."""
    steps = self.steps()
    if step is not None and step not in steps:
        step = min((each for each in steps if each > step), default=None)
    return load(self, target, recipe=recipe, step=step)


@broken(Checkpoints, "load", "CKPT-04f[empty-folder]: the latest of [] was loaded as step 0")
def begins_anew(load, self, target, *, recipe="", step=None):
    """Takes a missing checkpoint for a first start, also where a resume was asked for."""
    if step is None and self.latest() is None:
        return State(step=0, tensors=target, recipe=recipe)
    return load(self, target, recipe=recipe, step=step)

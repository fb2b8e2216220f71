"""Checkpoints that return something other than what was saved, or accept what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.spec.errors import Refusals, Refused
from contracts.stacks.reference.checkpoint import manifest as manifests
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints, State
from contracts.stacks.reference.checkpoint.manifest import Manifest


class _JoinsFilesAsText(Checkpoints):
    def read(self, folder: Path, manifest: Manifest, target: Mapping[str, Tensor]) -> dict[str, Tensor]:
        fresh = super().read(folder, manifest, target)
        for name, held in manifest.tensors.items():
            as_text = sorted(held.pieces, key=lambda piece: str(int(piece.file.removesuffix(".bin").split("-")[-1])))
            if len(as_text) > 1:
                rows = [fresh[name][piece.offsets[0] :][: piece.sizes[0]] for piece in as_text]
                fresh[name] = torch.cat(rows)
        return fresh


@mutant(of="CKPT-04a", case="a-long-tensor-in-many-files", says="the state w differs", bugs=("RSM-49",))
class JoinsFilesAsText(Exchanged):
    """Joins a tensor's shards in the text order of their file names, in which the tenth stands before the second."""

    exchange = {"checkpoints": _JoinsFilesAsText}


class _CountsIn32Bits(Checkpoints):
    def save(self, state: State) -> None:
        wrapped = {name: (count + 2**31) % 2**32 - 2**31 for name, count in state.position.items()}
        super().save(replace(state, position=wrapped))


@mutant(of="CKPT-04a", case="counters-past-32-bits", says="its position is {'tokens': 0", bugs=("RSM-42",))
class CountsIn32Bits(Exchanged):
    """Counters go through an int32 tensor, so a run of a trillion tokens resumes at none."""

    exchange = {"checkpoints": _CountsIn32Bits}


class _SavesInOneDtype(Checkpoints):
    def save(self, state: State) -> None:
        tensors = {n: each.float() if each.is_floating_point() else each for n, each in state.tensors.items()}
        super().save(replace(state, tensors=tensors))

    def misfits(self, manifest: Manifest, target: Mapping[str, Tensor]) -> Refusals:
        return Refusals()


@mutant(of="CKPT-04b", case="float64", says="the bits of float64 came back as", bugs=("RSM-11",))
class SavesInOneDtype(Exchanged):
    """Writes every number as float32 and casts it back: ordinary bfloat16 and float32 states do not show it."""

    exchange = {"checkpoints": _SavesInOneDtype}


class _ZeroesWhatIsNotFinite(Checkpoints):
    def save(self, state: State) -> None:
        tensors = {n: each.nan_to_num() if each.is_floating_point() else each for n, each in state.tensors.items()}
        super().save(replace(state, tensors=tensors))


@mutant(of="CKPT-04b", case="bfloat16", says="the bits of bfloat16 came back as")
class ZeroesWhatIsNotFinite(Exchanged):
    """Replaces NaN and infinity before the save, so a run that had diverged resumes as if it had not."""

    exchange = {"checkpoints": _ZeroesWhatIsNotFinite}


class _CastsInSilence(Checkpoints):
    def misfits(self, manifest: Manifest, target: Mapping[str, Tensor]) -> Refusals:
        same = {
            name: each.to(getattr(torch, manifest.tensors[name].dtype)) if name in manifest.tensors else each
            for name, each in target.items()
        }
        return super().misfits(manifest, same)


@mutant(of="CKPT-04d", case="narrower-dtype", says="does not fit what was saved, and was loaded")
class CastsInSilence(Exchanged):
    """Leaves the dtype to `copy_`, as DCP does: float32 experts become bfloat16 at the first resume."""

    exchange = {"checkpoints": _CastsInSilence}


@mutant(of="CKPT-04d", case="moment-in-bfloat16", says="does not fit what was saved, and was loaded")
class CastsMoments(Exchanged):
    """Casts float32 moments into a bfloat16 optimizer, whose variances then stand still."""

    exchange = {"checkpoints": _CastsInSilence}


class _LoadsWhatItFinds(Checkpoints):
    def load(self, target: Mapping[str, Tensor], *, recipe: str = "", step: int | None = None) -> State:
        chosen = self.latest() if step is None else step
        held = manifests.read(self.folder / self.name_of(chosen or 0)).tensors
        known = {n: each for n, each in target.items() if n in held and held[n].shape == tuple(each.shape)}
        return super().load(known, recipe=recipe, step=step)

    def misfits(self, manifest: Manifest, target: Mapping[str, Tensor]) -> Refusals:
        return Refusals()


@mutant(of="CKPT-04d", case="missing", says="does not fit what was saved, and was loaded", bugs=("RSM-41",))
class LoadsWhatItFinds(Exchanged):
    """Loads with strict=False: what the checkpoint lacks keeps its initial values."""

    exchange = {"checkpoints": _LoadsWhatItFinds}


@mutant(of="CKPT-04d", case="extra", says="does not fit what was saved, and was loaded", bugs=("EXB-09",))
class DropsWhatNobodyAskedFor(Exchanged):
    """Leaves in the file a router's bias that is registered after the load or under another name."""

    exchange = {"checkpoints": _LoadsWhatItFinds}


class _Broadcasts(Checkpoints):
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


@mutant(of="CKPT-04d", case="would-broadcast", says="does not fit what was saved, and was loaded")
class Broadcasts(Exchanged):
    """Lets `copy_` broadcast one saved number over a whole vector."""

    exchange = {"checkpoints": _Broadcasts}


class _StopsAtTheFirst(Checkpoints):
    def misfits(self, manifest: Manifest, target: Mapping[str, Tensor]) -> Refusals:
        found, every = Refusals(), super().misfits(manifest, target)
        try:
            every.raise_any()
        except Refused as refused:
            found.extend(Refused(refused.refusals[:1]))
        return found


@mutant(of="CKPT-04d", case="everything-at-once", says="the refusal does not name")
class StopsAtTheFirst(Exchanged):
    """Names only the first tensor that does not fit; the user finds the next one after another hour in the queue."""

    exchange = {"checkpoints": _StopsAtTheFirst}


class _FillsAsItReads(Checkpoints):
    def misfits(self, manifest: Manifest, target: Mapping[str, Tensor]) -> Refusals:
        every = super().misfits(manifest, target)
        fits = {n: each for n, each in target.items() if n in manifest.tensors}
        fits = {n: each for n, each in fits.items() if tuple(each.shape) == manifest.tensors[n].shape}
        self.fill(fits, self.read(self.folder / self.name_of(manifest.step), manifest, fits))
        return every


@mutant(of="CKPT-04d", case="fewer-experts", says="the load was refused, but the target is not what it was")
class FillsAsItReads(Exchanged):
    """Copies tensor by tensor and refuses halfway: a caller that catches the error trains a mixture of two states."""

    exchange = {"checkpoints": _FillsAsItReads}


class _AsksNoRecipe(Checkpoints):
    def load(self, target: Mapping[str, Tensor], *, recipe: str = "", step: int | None = None) -> State:
        chosen = self.latest() if step is None else step
        if chosen in self.steps():
            recipe = manifests.read(self.folder / self.name_of(chosen or 0)).recipe
        return super().load(target, recipe=recipe, step=step)


@mutant(of="CKPT-04e", case="another-recipe", says="a state of recipe 'r1' was loaded into recipe 'r2'",
        bugs=("PRV-06",))  # fmt: skip
class AsksNoRecipe(Exchanged):
    """Compares shapes and nothing else."""

    exchange = {"checkpoints": _AsksNoRecipe}


class _TakesTheNext(Checkpoints):
    def load(self, target: Mapping[str, Tensor], *, recipe: str = "", step: int | None = None) -> State:
        steps = self.steps()
        if step is not None and step not in steps:
            step = min((each for each in steps if each > step), default=None)
        return super().load(target, recipe=recipe, step=step)


@mutant(of="CKPT-04f", case="no-such-step", says="step 3 of [2, 4] was loaded as step 4")
class TakesTheNext(Exchanged):
    """Loads the next higher step instead of the one that is missing."""

    exchange = {"checkpoints": _TakesTheNext}


class _BeginsAnew(Checkpoints):
    def load(self, target: Mapping[str, Tensor], *, recipe: str = "", step: int | None = None) -> State:
        if step is None and self.latest() is None:
            return State(step=0, tensors=target, recipe=recipe)
        return super().load(target, recipe=recipe, step=step)


@mutant(of="CKPT-04f", case="empty-folder", says="the latest of [] was loaded as step 0")
class BeginsAnew(Exchanged):
    """Takes a missing checkpoint for a first start, also where a resume was asked for."""

    exchange = {"checkpoints": _BeginsAnew}

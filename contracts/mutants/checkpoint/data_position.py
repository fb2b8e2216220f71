"""Trainers that resume at another place in their data, under another recipe, or from nothing."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.mutants._support.trainer import Trained
from contracts.spec.devices import Started
from contracts.spec.errors import refuse
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.checkpoint import manifest as manifests
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints, State
from contracts.stacks.reference.data import DataOrder
from contracts.stacks.reference.stack import Reference
from contracts.stacks.reference.training.trainer import Trainer

Position = Mapping[str, int]


class _Skipping(DataOrder):
    offset, since = 0, 0

    def order(self, epoch: int, index: int) -> int:
        return super().order(epoch, (index + self.offset) % self.size if epoch > self.since else index)


class _SkipsInEveryEpoch(Trainer):
    data_order_class = _Skipping

    def load(self, state: Mapping[str, Tensor], position: Position) -> None:
        super().load(state, position)
        assert isinstance(self.data_order, _Skipping)
        self.data_order.since, self.data_order.offset = divmod(self.consumed, self.data_order.size)


@mutant(of="CKPT-01f", case="resumed-in-the-second-and-third", says="the samples are", bugs=("RSM-25",))
class SkipsInEveryEpoch(Trained):
    """What a resume skips in its epoch is skipped in every later epoch too."""

    trains = _SkipsInEveryEpoch


class _PlaceInMicrobatches(Trainer):
    def position(self) -> dict[str, int]:
        return super().position() | {"passes": self.number * self.execution.microbatches}

    def load(self, state: Mapping[str, Tensor], position: Position) -> None:
        super().load(state, position)
        self.consumed = position["passes"] * self.recipe.batch.total // self.execution.microbatches


@mutant(of="CKPT-01m", case="more-and-fewer", says="samples is")
@mutant(of="CKPT-01m", case="fewer", says="samples is")
class KeepsItsPlaceInMicrobatches(Trained):
    """The place in the data is a number of microbatches, of whatever size they are when it is loaded."""

    trains = _PlaceInMicrobatches


class _StepsInMicrobatches(_PlaceInMicrobatches):
    def load(self, state: Mapping[str, Tensor], position: Position) -> None:
        Trainer.load(self, state, position)
        self.number = position["passes"] // self.execution.microbatches


@mutant(of="CKPT-01m", case="fewer", says="number is 11, expected 3")
class CountsStepsInMicrobatches(Trained):
    """The step is the number of backward passes by the microbatches of the new run: its schedule jumps ahead."""

    trains = _StepsInMicrobatches


class _Recounting(DataOrder):
    first = 0

    def order(self, epoch: int, index: int) -> int:
        return super().order(epoch - self.first, index)


class CountsEpochs(Trainer):
    data_order_class = _Recounting

    def load(self, state: Mapping[str, Tensor], position: Position) -> None:
        super().load(state, position)
        assert isinstance(self.data_order, _Recounting)
        self.data_order.first = self.consumed // self.data_order.size


@mutant(of="CKPT-01f", case="resumed-in-the-second-and-third", says="the samples are", bugs=("RSM-26", "DAT-02"))
class CountsEpochsAnew(Trained):
    """Resumes at the right place, but in the first epoch's order."""

    trains = CountsEpochs


class _DropsTheRest(Trainer):
    def position(self) -> dict[str, int]:
        size = len(self.corpus)
        return super().position() | {"consumed": -(-self.consumed // size) * size}


@mutant(of="CKPT-01f", case="resumed-after-one-step", says="the samples are", bugs=("DAT-04",))
class DropsTheRest(Trained):
    """Saves only the number of the epoch, and resumes with the next one."""

    trains = _DropsTheRest


class CountsAnEpochTwice(Trainer):
    """Where an epoch has just ended, a load goes on to the next one, and so does whoever reads first."""

    def load(self, state: Mapping[str, Tensor], position: Position) -> None:
        super().load(state, position)
        if self.consumed and self.consumed % len(self.corpus) == 0:
            self.consumed += len(self.corpus)


@mutant(of="CKPT-01f", case="resumed-where-epochs-end", says="the samples are")
class LeavesAnEpochOut(Trained):
    """The number of the epoch rises at the load, and once more when the loader finds its epoch at the end."""

    trains = CountsAnEpochTwice


class _AsksNoRecipe(Checkpoints):
    def load(self, target: Mapping[str, Tensor], *, recipe: str = "", step: int | None = None) -> State:
        latest = self.latest()
        if latest is not None:
            recipe = manifests.read(self.folder / self.name_of(latest)).recipe
        return super().load(target, recipe=recipe, step=step)


@mutant(
    of="CKPT-01c", case="rope", says="the run of short went on after step 1", bugs=("PRV-06",),
    leanest="the run of short@dense went on after step 1",
)  # fmt: skip
@mutant(of="CKPT-01c", case="rate", says="the run of short went on after step 1", leanest="")
@mutant(of="CKPT-01c", case="batch", says="the run of short went on after step 1", leanest="")
@mutant(of="CKPT-01c", case="balance", says="the run of short went on after step 1", leanest="")
class AsksNoRecipe(Exchanged):
    """Compares no recipe: every tensor fits, so the run goes on with another rope base."""

    exchange = {"checkpoints": _AsksNoRecipe}


class _AsksTheProcess(Trainer):
    def resume(self, folder: str) -> None:
        raise refuse("recipe", hash(self), "is not the one it was saved under", "resume in the process that saved")


@mutant(of="CKPT-01c", case="top-k", says="a legal input was refused")
class AsksTheProcess(Trained):
    """Over-correction: the recipe's digest is Python's salted hash, new in each process, so no run can be resumed."""

    trains = _AsksTheProcess


class _BeginsAnew(Trainer):
    def resume(self, folder: str) -> None:
        if self.parts.checkpoints(folder).latest() is not None:
            super().resume(folder)


@mutant(of="CKPT-01d", case="empty-folder", says="there is no checkpoint, and the run began after step 0")
class BeginsAnew(Trained):
    """Resumes if there is a checkpoint, and otherwise starts anew."""

    trains = _BeginsAnew


@mutant(of="CKPT-01j", case="twice", says="start 2 took 1 steps and exit code 2")
class StartsTheSameCommand(Reference):
    """The script that restarts a run leaves the load out, which its first start could not have."""

    def started(self, recipe: Recipe, environment: Mapping[str, str], steps: int) -> Started:
        return super().started(replace(recipe, checkpoint=replace(recipe.checkpoint, load=None)), environment, steps)


@mutant(of="CKPT-01j", case="from-nothing", says="there is no checkpoint, and it took 2 steps")
class LoadsOnlyWhatIsThere(Reference):
    """Looks whether the folder is there, and otherwise starts as if nobody had asked for a load."""

    def started(self, recipe: Recipe, environment: Mapping[str, str], steps: int) -> Started:
        load = recipe.checkpoint.load
        there = load is not None and Path(load).exists()
        kept = replace(recipe.checkpoint, load=load if there else None)
        return super().started(replace(recipe, checkpoint=kept), environment, steps)


@mutant(of="CKPT-01l", case="every-third", says="left checkpoints of steps [7], expected [7, 6, 3]")
class SavesAtTheEndAlone(Reference):
    """The interval is that of the log: what dies before its last step has saved nothing."""

    def started(self, recipe: Recipe, environment: Mapping[str, str], steps: int) -> Started:
        seldom = replace(recipe.checkpoint, interval=steps + 1)
        return super().started(replace(recipe, checkpoint=seldom), environment, steps)


@mutant(of="CKPT-01l", case="ends-on-one", says="left checkpoints of steps [4, 3, 2, 1], expected [4, 2]")
class SavesBehindEveryStep(Reference):
    """Over-correction: every step is saved, and the volume is full before the run is over."""

    def started(self, recipe: Recipe, environment: Mapping[str, str], steps: int) -> Started:
        each = replace(recipe.checkpoint, interval=1)
        return super().started(replace(recipe, checkpoint=each), environment, steps)


@mutant(of="CKPT-01l", case="longer-than-the-run", says="left checkpoints of steps [], expected [2]")
class ForgetsTheLastStep(Reference):
    """Saves where the interval divides the step, and not where the run ends."""

    def started(self, recipe: Recipe, environment: Mapping[str, str], steps: int) -> Started:
        ended = super().started(recipe, environment, steps)
        if steps % recipe.checkpoint.interval and recipe.checkpoint.save is not None:
            shutil.rmtree(Path(recipe.checkpoint.save, "checkpoints", f"step-{steps:08d}"))
        return ended

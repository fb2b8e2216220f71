"""Trainers that resume at another place in their data, under another recipe, or from nothing."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from contracts.law._bugs.numeric import (
    Checkpoints,
    DataOrder,
    Reference,
    Trainer,
    broken,
    derived,
    mutant,
    trainer,
    with_attributes,
)
from contracts.law._bugs.numeric import manifest as manifests
from contracts.spec import Data, refuse
from contracts.spec.devices import Started

Position = Mapping[str, int]


class _Skipping(DataOrder):
    offset, since = 0, 0

    def order(self, epoch: int, index: int) -> int:
        return super().order(epoch, (index + self.offset) % self.size if epoch > self.since else index)


@derived("CKPT-01f[resumed-in-the-second-and-third]: the samples are", bugs=("RSM-25",))
class SkipsInEveryEpoch(Trainer):
    """Sequences that a resume skips in its epoch are skipped in every later epoch too."""

    data_order_class = _Skipping

    def load(self, state: Mapping[str, Tensor], position: Position) -> None:
        super().load(state, position)
        assert isinstance(self.data_order, _Skipping)
        self.data_order.since, self.data_order.offset = divmod(self.consumed, self.data_order.size)


class _PlaceInMicrobatches(Trainer):
    def position(self) -> dict[str, int]:
        return super().position() | {"passes": self.number * self.execution.microbatches}

    def load(self, state: Mapping[str, Tensor], position: Position) -> None:
        super().load(state, position)
        self.consumed = position["passes"] * self.recipe.batch.total // self.execution.microbatches


with_attributes(
    "KeepsItsPlaceInMicrobatches",
    "The place in the data is a number of microbatches, of whatever size they are when it is loaded.",
    "CKPT-01m[fewer]: samples is",
    "CKPT-01m[more-and-fewer]: samples is",
    owner=_PlaceInMicrobatches,
)


@broken(_PlaceInMicrobatches, "load", "CKPT-01m[fewer]: number is 11, expected 3")
def counts_steps_in_microbatches(load, self, state, position):
    """The step is the number of backward passes by the microbatches of the new run: its schedule jumps ahead."""
    Trainer.load(self, state, position)
    self.number = position["passes"] // self.execution.microbatches


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


with_attributes(
    "CountsEpochsAnew",
    "Resumes at the right place, but in the first epoch's order.",
    "CKPT-01f[resumed-in-the-second-and-third]: the samples are",
    owner=CountsEpochs,
    bugs=("RSM-26", "DAT-02"),
)


@broken(Trainer, "position", "CKPT-01f[resumed-after-one-step]: the samples are", bugs=("DAT-04",))
def drops_the_rest(position, self):
    """Saves only the number of the epoch, and resumes with the next one."""
    size = len(self.corpus)
    return position(self) | {"consumed": -(-self.consumed // size) * size}


class CountsAnEpochTwice(Trainer):
    """If an epoch has just ended, a load continues with the next one, and so does whoever reads first."""

    def load(self, state: Mapping[str, Tensor], position: Position) -> None:
        super().load(state, position)
        if self.consumed and self.consumed % len(self.corpus) == 0:
            self.consumed += len(self.corpus)


with_attributes(
    "LeavesAnEpochOut",
    "The number of the epoch rises at the load, and once more when the loader finds its epoch at the end.",
    "CKPT-01f[resumed-where-epochs-end]: the samples are",
    owner=CountsAnEpochTwice,
)


@mutant(
    of="CKPT-01c",
    case="rope",
    says="the run of short continued after step 1",
    bugs=("PRV-06",),
    leanest="the run of short@dense continued after step 1",
)
@broken(
    Checkpoints,
    "load",
    "CKPT-01c[balance]: the run of short continued after step 1",
    "CKPT-01c[batch]: the run of short continued after step 1",
    "CKPT-01c[rate]: the run of short continued after step 1",
    leanest="",
)
def asks_no_recipe(load, self, target, *, recipe="", step=None):
    """Compares no recipe: every tensor fits, so the run continues with another rope base."""
    latest = self.latest()
    if latest is not None:
        recipe = manifests.read(self.folder / self.name_of(latest)).recipe
    return load(self, target, recipe=recipe, step=step)


@broken(trainer, "recipe_digest", "CKPT-01c[tokenizer]: continued after step 1",
        "CKPT-01c[text]: continued after step 1")  # fmt: skip
def takes_data_for_no_part_of_a_recipe(recipe_digest, recipe):
    """The digest leaves the data out beside the checkpoints: a run continues with the tokens of another tokenizer."""
    return recipe_digest(replace(recipe, data=Data()))


@broken(Trainer, "resume", "CKPT-01c[top-k]: a legal input was refused")
def asks_the_process(resume, self, folder):
    """Over-correction: the recipe's digest is Python's salted hash, new in each process, so no run can be resumed."""
    raise refuse("recipe", hash(self), "is not the one it was saved under", "resume in the process that saved")


@broken(Trainer, "resume", "CKPT-01d[empty-folder]: there is no checkpoint, and the run began after step 0")
def begins_anew(resume, self, folder):
    """Resumes if there is a checkpoint, and otherwise starts anew."""
    if self.parts.checkpoints(folder).latest() is not None:
        resume(self, folder)


@broken(Reference, "started", "CKPT-01j[twice]: start 2 took 1 steps and exit code 2")
def starts_the_same_command(started, self, recipe, environment, steps, options):
    """The script that restarts a run leaves the load out, which its first start could not have."""
    return started(self, replace(recipe, checkpoint=replace(recipe.checkpoint, load=None)), environment, steps, options)


@broken(Reference, "started", "CKPT-01j[from-nothing]: there is no checkpoint, and it took 2 steps")
def loads_only_what_is_there(started, self, recipe, environment, steps, options):
    """Looks whether the folder is there, and otherwise starts as if nobody had asked for a load."""
    load = recipe.checkpoint.load
    there = load is not None and Path(load).exists()
    kept = replace(recipe.checkpoint, load=load if there else None)
    return started(self, replace(recipe, checkpoint=kept), environment, steps, options)


@broken(Reference, "started", "CKPT-01q[two-and-two]: started for 4 steps it ended with 2",
        "CKPT-01q[one-and-two]: started for 3 steps it ended with 2")  # fmt: skip
def ends_the_schedule_where_it_stops(started, self, recipe, environment, steps, options):
    """The steps of this start become those of the recipe, which a later start finds to be another."""
    return started(self, replace(recipe, optim=replace(recipe.optim, steps=steps)), environment, steps, options)


@broken(Reference, "started", "CKPT-01q[two-and-two]: stopped after 2 of 4 steps: the weight")
def reads_another_text_after_a_restart(started, self, recipe, environment, steps, options):
    """A restart prepares its data anew, and the path has another text."""
    text = Path(recipe.data.path or "")
    if recipe.checkpoint.load is None or not text.exists():
        return started(self, recipe, environment, steps, options)
    whole = text.read_bytes()
    text.write_bytes(bytes((each + 1) % 59 for each in whole))
    try:
        return started(self, recipe, environment, steps, options)
    finally:
        text.write_bytes(whole)


@broken(Reference, "started", "CKPT-01l[every-third]: left checkpoints of steps [7], expected [7, 6, 3]")
def saves_at_the_end_alone(started, self, recipe, environment, steps, options):
    """The interval equals the log's: what dies before its last step has saved nothing."""
    seldom = replace(recipe.checkpoint, interval=steps + 1)
    return started(self, replace(recipe, checkpoint=seldom), environment, steps, options)


@broken(Reference, "started", "CKPT-01l[started-again]: left checkpoints of steps [7, 5, 2], expected [7, 6, 3, 2]")
def counts_saves_from_the_restart(started, self, recipe, environment, steps, options):
    """Saves every interval-th step of those that this process took."""
    kept = recipe.checkpoint
    if kept.load is None:
        return started(self, recipe, environment, steps, options)
    at = Path(kept.load, "checkpoints")
    begun = max(int(each.name.removeprefix("step-")) for each in at.iterdir())
    ended = started(self, replace(recipe, checkpoint=replace(kept, interval=1)), environment, steps, options)
    for step in range(begun + 1, steps):
        if (step - begun) % kept.interval:
            shutil.rmtree(at / f"step-{step:08d}")
    return ended


@broken(Reference, "started", "CKPT-01l[no-step]: it took 50 steps")
def takes_0_for_none(started, self, recipe, environment, steps, options):
    """Tests the number for truth, so 0 is as if it was not given."""
    return started(self, recipe, environment, steps or recipe.optim.steps, options)


@broken(Reference, "started", "CKPT-01l[no-step]: it took 0 steps and exit code 1: Traceback")
def divides_by_its_steps(started, self, recipe, environment, steps, options):
    """Crashes where there is no step to take: it reports a mean time."""
    if steps:
        return started(self, recipe, environment, steps, options)
    words = "Traceback (most recent call last):\n    mean = seconds / 0 steps\nZeroDivisionError: division by zero"
    return Started(exit_code=1, steps=0, words=words)


@broken(Reference, "started", "CKPT-01l[ends-on-one]: left checkpoints of steps [4, 3, 2, 1], expected [4, 2]")
def saves_behind_every_step(started, self, recipe, environment, steps, options):
    """Over-correction: every step is saved, and the volume is full before the run is over."""
    each = replace(recipe.checkpoint, interval=1)
    return started(self, replace(recipe, checkpoint=each), environment, steps, options)


@broken(Reference, "started", "CKPT-01l[longer-than-the-run]: left checkpoints of steps [], expected [2]")
def forgets_the_last_step(started, self, recipe, environment, steps, options):
    """Saves where the interval divides the step, and not where the run ends."""
    ended = started(self, recipe, environment, steps, options)
    if steps % recipe.checkpoint.interval and recipe.checkpoint.save is not None:
        shutil.rmtree(Path(recipe.checkpoint.save, "checkpoints", f"step-{steps:08d}"))
    return ended


@broken(
    Reference,
    "started",
    "CKPT-01l[resumed]: it took 7 steps and exit code 0",
    "CKPT-01l[another-folder-beside-a-load]: it took",
)
def drops_the_resume(started, self, recipe, environment, steps, options):
    """The script that builds the command has no word for a resume: each start begins anew."""
    return started(self, recipe, environment, steps, replace(options, resume=False))


@broken(
    Reference, "started", "CKPT-01l[another-folder-beside-a-load]: left checkpoints of steps [], expected [4, 3, 2, 1]"
)
def saves_where_the_recipe_says(started, self, recipe, environment, steps, options):
    """The folder of the recipe goes before the one that the command is given."""
    return started(self, recipe, environment, steps, replace(options, save=recipe.checkpoint.save or options.save))


@broken(Reference, "started", "CKPT-01l[the-newest-two]: left checkpoints of steps [5, 4, 3, 2, 1], expected [5, 4]")
def keeps_all(started, self, recipe, environment, steps, options):
    """Reads how many checkpoints to keep, and hands it to nobody."""
    return started(self, recipe, environment, steps, replace(options, keep=None))


@broken(
    Reference, "started", "CKPT-01l[copied-after-the-first-start]: left checkpoints of steps [4], expected [4, 3, 2]"
)
def takes_its_own_folder_for_durable(started, self, recipe, environment, steps, options):
    """Retention of the command knows of no other folder: what was never copied is removed."""
    return started(self, recipe, environment, steps, replace(options, durable=None))


@broken(
    Reference, "started", "CKPT-01l[copied-after-the-first-start]: left checkpoints of steps [4, 3, 2, 1], expected"
)
def removes_nothing_beside_a_durable_folder(started, self, recipe, environment, steps, options):
    """Over-correction: if there is a durable folder, retention is left to whoever copies."""
    return started(self, recipe, environment, steps, replace(options, keep=None if options.durable else options.keep))


@broken(Reference, "started", "CKPT-01l[another-folder-beside-a-load]: it took 1 steps and exit code 2")
def loads_what_the_recipe_says_at_each_start(started, self, recipe, environment, steps, options):
    """The load of the recipe goes before the resume: each restart goes back to where the run once began."""
    resume = options.resume and recipe.checkpoint.load is None
    return started(self, recipe, environment, steps, replace(options, resume=resume))

"""Starts that fail open: what is not understood is left out, and the exit code is somebody else's."""

from dataclasses import replace
from pathlib import Path

from contracts.law._bugs.broken import broken
from contracts.spec import Data
from contracts.stacks.reference.stack import Reference

PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


@broken(Reference, "started", "ENV-09[a-world-without-ranks]: under WORLD_SIZE='2' it took 1 steps")
def takes_half_a_place_for_none(started, self, recipe, environment, steps, options):
    """Asks whether all three variables are there: if one is missing, each process trains by itself."""
    whole = all(name in environment for name in PLACE)
    left = {name: each for name, each in environment.items() if whole or name not in PLACE}
    return started(self, recipe, left, steps, options)


@broken(
    Reference,
    "started",
    "ENV-09[rank-is-beyond-a-world-of-one]: it took 1 steps",
    "ENV-09[a-world-of-one-without-ranks]: it took 1 steps",
)
def takes_a_world_of_one_for_no_launcher(started, self, recipe, environment, steps, options):
    """Asks whether WORLD_SIZE is above 1, and looks at no rank where it is not."""
    alone = environment.get("WORLD_SIZE") == "1"
    left = {name: each for name, each in environment.items() if not alone or name not in PLACE}
    return started(self, recipe, left, steps, options)


@broken(Reference, "started", "ENV-09a[no-data]: with missing data it ended after 0 steps, exit code 0")
def pipes_into_a_log(started, self, recipe, environment, steps, options):
    """The launcher writes through a pipe, and the shell exits with the code of the last command in it."""
    return replace(started(self, recipe, environment, steps, options), exit_code=0)


@broken(Reference, "started", "ENV-09a[no-data]: with missing data it took 1 steps")
def trains_on_made_up_data_after_all(started, self, recipe, environment, steps, options):
    """Without data to read, the run takes the text that comes with the stack."""
    there = recipe.data.path is not None and Path(recipe.data.path).exists()
    return started(self, recipe if there else replace(recipe, data=Data()), environment, steps, options)


@broken(Reference, "started", "ENV-09b[a-file-for-a-folder]: cannot be written it ended after 1 steps, exit code 0")
def records_the_failure_and_returns(started, self, recipe, environment, steps, options):
    """The handler around the run writes down what went wrong, and the command returns."""
    ended = started(self, recipe, environment, steps, options)
    return replace(ended, exit_code=0) if ended.steps else ended


@broken(Reference, "started", "ENV-09b[a-file-for-a-folder]: cannot be written it ended after 2 steps, exit code 0")
def goes_on_without_saving(started, self, recipe, environment, steps, options):
    """Over-correction: a save that fails is no reason to stop, nor is the next one."""
    save = recipe.checkpoint.save
    kept = replace(recipe.checkpoint, save=None if save and Path(save).is_file() else save)
    return started(self, replace(recipe, checkpoint=kept), environment, steps, options)


@broken(Reference, "started", "ENV-09c[a-step]: finds memory it ended after 0 steps, exit code 0")
def leaves_out_what_does_not_fit(started, self, recipe, environment, steps, options):
    """The loop catches what an allocator raises, empties its cache and continues with the next batch."""
    ended = started(self, recipe, environment, steps, options)
    return replace(ended, exit_code=0) if "memory" in ended.words else ended


@broken(Reference, "started", "ENV-09c[a-step]: its end does not say so, after 0 steps, exit code 1")
def fails_without_a_reason(started, self, recipe, environment, steps, options):
    """Over-correction: the handler ends the process at once, and nobody hears why."""
    ended = started(self, recipe, environment, steps, options)
    return replace(ended, words="a rank failed") if "memory" in ended.words else ended

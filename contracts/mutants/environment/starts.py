"""Starts that fail open: what is not understood is left out, and the exit code is somebody else's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from contracts.contract import mutant
from contracts.spec.devices import Started
from contracts.spec.recipe import Data, Recipe
from contracts.stacks.reference.stack import Reference

PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


@mutant(of="ENV-09", case="a-world-without-ranks", says="under WORLD_SIZE='2' it took 1 steps")
class TakesHalfAPlaceForNone(Reference):
    """Asks whether all three variables are there: where one is missing, each process trains alone."""

    def started(self, recipe: Recipe, environment: Mapping[str, str], steps: int) -> Started:
        whole = all(name in environment for name in PLACE)
        left = {name: each for name, each in environment.items() if whole or name not in PLACE}
        return super().started(recipe, left, steps)


@mutant(of="ENV-09a", case="no-data", says="with missing data it ended after 0 steps, exit code 0")
class PipesIntoALog(Reference):
    """The launcher writes through a pipe, and the shell's exit code is that of the last command in it."""

    def started(self, recipe: Recipe, environment: Mapping[str, str], steps: int) -> Started:
        return replace(super().started(recipe, environment, steps), exit_code=0)


@mutant(of="ENV-09a", case="no-data", says="with missing data it took 1 steps")
class TrainsOnMadeUpDataAfterAll(Reference):
    """Where there is no data to read, the run takes the text that comes with the stack."""

    def started(self, recipe: Recipe, environment: Mapping[str, str], steps: int) -> Started:
        there = recipe.data.path is not None and Path(recipe.data.path).exists()
        return super().started(recipe if there else replace(recipe, data=Data()), environment, steps)


@mutant(of="ENV-09b", case="a-file-for-a-folder", says="cannot be written it ended after 1 steps, exit code 0")
class RecordsTheFailureAndReturns(Reference):
    """The handler around the run writes down what went wrong, and the command returns."""

    def started(self, recipe: Recipe, environment: Mapping[str, str], steps: int) -> Started:
        ended = super().started(recipe, environment, steps)
        return replace(ended, exit_code=0) if ended.steps else ended


@mutant(of="ENV-09b", case="a-file-for-a-folder", says="cannot be written it ended after 2 steps, exit code 0")
class GoesOnWithoutSaving(Reference):
    """Over-correction: a save that fails is no reason to stop, nor is the next one."""

    def started(self, recipe: Recipe, environment: Mapping[str, str], steps: int) -> Started:
        save = recipe.checkpoint.save
        kept = replace(recipe.checkpoint, save=None if save and Path(save).is_file() else save)
        return super().started(replace(recipe, checkpoint=kept), environment, steps)

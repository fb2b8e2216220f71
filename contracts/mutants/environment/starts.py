"""Starts that fail open: what is not understood is left out, and the exit code is somebody else's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.devices import Started
from contracts.spec.recipe import Data, Recipe
from contracts.stacks.reference.stack import Reference

PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


@mutant(of="ENV-09", case="a-world-without-ranks", says="under WORLD_SIZE='2' it took 1 steps")
class TakesHalfAPlaceForNone(Reference):
    """Asks whether all three variables are there: where one is missing, each process trains alone."""

    def started(self, recipe: Recipe, environment: Mapping[str, str]) -> Started:
        whole = all(name in environment for name in PLACE)
        return super().started(
            recipe, environment if whole else {k: v for k, v in environment.items() if k not in PLACE}
        )


@mutant(of="ENV-09", case="rank-is-no-number", says="it took 1 steps")
class TakesWhatIsNoNumberForNone(Reference):
    """A number that cannot be read is the default: rank 0 of 1."""

    def started(self, recipe: Recipe, environment: Mapping[str, str]) -> Started:
        kept = all(environment.get(name, "0").isdigit() for name in PLACE)
        return super().started(recipe, environment if kept else {})


@mutant(of="ENV-09a", case="no-data", says="with missing data it ended after 0 steps, exit code 0")
class PipesIntoALog(Reference):
    """The launcher writes through a pipe, and the shell's exit code is that of the last command in it."""

    def started(self, recipe: Recipe, environment: Mapping[str, str]) -> Started:
        return replace(super().started(recipe, environment), exit_code=0)


@mutant(of="ENV-09a", case="empty-data", says="with empty data it took 1 steps")
class TrainsOnMadeUpDataAfterAll(Reference):
    """Where there is no data to read, the run takes the text that comes with the stack."""

    def started(self, recipe: Recipe, environment: Mapping[str, str]) -> Started:
        ended = super().started(recipe, environment)
        return super().started(replace(recipe, data=Data()), environment) if ended.exit_code else ended

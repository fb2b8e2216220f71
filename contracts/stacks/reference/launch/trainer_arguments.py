"""The command line of our own trainer: written by the launch, read by `train.py`, each the inverse of the other.

A recipe travels as the name of its preset and the fields that differ from it, so that a log line says what was run.
"""

import argparse
from collections import Counter
from dataclasses import dataclass

from contracts.spec import Degrees, Lane, Mode, Recipe, Refused, presets, refuse
from contracts.stacks.reference.launch import overrides

LAUNCHER = "rankproof-reference"
VERSION = "0.1.0"


@dataclass(frozen=True, kw_only=True)
class TrainerArguments:
    """What the trainer read out of its argv."""

    recipe: Recipe
    mode: Mode
    degrees: Degrees
    compile: str
    run: str


def write(recipe: Recipe, lane: Lane, degrees: Degrees) -> tuple[str, ...]:
    """The argv of the trainer for a recipe: `read(write(…))` is what went in."""
    base = _nearest(recipe)
    # `=` keeps a name that begins with - from being taken for a flag.
    words = ["--recipe", base.name, "--mode", lane.mode, f"--run={lane.run}"]
    for key, value in overrides.difference(base, recipe).items():
        words += ["--set", f"{key}={value}"]
    words += ["--tp", str(degrees.tp), "--pp", str(degrees.pp), "--cp", str(degrees.cp)]
    words += ["--ep", str(degrees.ep), "--etp", str(degrees.etp)]
    if degrees.sp:
        words.append("--sp")
    return (*words, "--compile", lane.compile)


def _nearest(recipe: Recipe) -> Recipe:
    """The preset from which a recipe differs in the fewest fields, its own and its family's before others."""
    known = presets.PRESETS
    family = [preset for preset in known.values() if preset.family == recipe.family]
    return known.get(recipe.name) or min(
        family or known.values(), key=lambda preset: len(overrides.difference(preset, recipe))
    )


MOST_WORDS = 4096  # argparse takes time quadratic in the flags that it does not know


def read(argv: tuple[str, ...]) -> TrainerArguments:
    """Read the trainer's argv.

    Raises:
        Refused: for a flag that does not exist, a value of another type, or a recipe that is not legal.
    """
    if len(argv) > MOST_WORDS:
        raise refuse("argv", f"{len(argv)} words", f"has more than {MOST_WORDS}", "give what `rankproof emit` prints")
    read = parser().parse_args(argv)
    for flag, times in Counter(word.partition("=")[0] for word in argv if word.startswith("--")).items():
        if times > 1 and flag != "--set":
            raise refuse(flag, times, "is given more than once", "give it once")
    changes = dict(_split(change) for change in read.set)
    if len(changes) != len(read.set):
        raise refuse("--set", read.set, "sets a field twice", "give each field once")
    degrees = Degrees(tp=read.tp, pp=read.pp, cp=read.cp, ep=read.ep, etp=read.etp, sp=read.sp)
    base = presets.resolve(read.recipe)
    recipe, mode = overrides.apply(base, changes), read.mode or base.modes[0]
    return TrainerArguments(recipe=recipe, mode=mode, degrees=degrees, compile=read.compile, run=read.run)


def parser() -> argparse.ArgumentParser:
    """The options that a launch writes."""
    words = _Parser(prog="train", allow_abbrev=False, add_help=False)
    words.add_argument("--recipe", required=True)
    words.add_argument("--mode", choices=("nemo_native", "author_dp"), help="by default the recipe's first")
    words.add_argument("--run", default="run")
    words.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    for axis in ("tp", "pp", "cp", "ep"):
        words.add_argument(f"--{axis}", type=int, default=1)
    words.add_argument("--etp", type=int, default=0, help="0 follows tp")
    words.add_argument("--sp", action="store_true")
    words.add_argument("--compile", choices=("none", "regional"), default="none")
    return words


def _split(change: str) -> tuple[str, str]:
    key, equals, value = change.partition("=")
    if not equals:
        raise refuse("--set", change, "has no =", "write field=value")
    return key, value


class _Parser(argparse.ArgumentParser):
    """argparse that raises our refusal instead of leaving the interpreter."""

    def error(self, message: str) -> Refused:  # type: ignore[override]  # it raises, where argparse exits
        raise refuse("argv", self.prog, message, "see contracts/stacks/reference/launch/trainer_arguments.py")

r"""The trainer as a command, on one rank or on several:

    python -m contracts.stacks.reference.train --recipe tiny-nam56r --steps 50 --save runs/first
    torchrun --nproc-per-node=4 -m contracts.stacks.reference.train --recipe tiny-nam56r --steps 50 --save runs/first \
        --tp 2 --ep 2 --resume

A run goes on where it was left, on as many ranks as it is given.

Its words are those that a launch writes (`arguments.py`) and six of its own:

    --steps N       the step to stop after, counted over the whole run; the recipe's optim.steps if not given, which
                    the schedule follows in any case
    --save DIR      checkpoints in DIR/checkpoints, every `checkpoint.interval` steps and after the last; a receipt in
                    DIR from every rank. Without it the recipe's checkpoint.save, and without that nothing is kept
    --resume        go on after the latest checkpoint of DIR; begins anew where there is none
    --keep N        of the checkpoints the newest N stay, once the last was written; all, if it is not given
    --durable DIR   where somebody copies DIR/checkpoints to: none goes that has no newer one there, whole. Without it
                    DIR itself is the place that lasts
    --log-every N   a line every N steps where there is no terminal

What `LANEGATE_TELEMETRY` names is appended to (docs/receipts.md); then the launcher writes the receipt.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.instruments import provenance
from contracts.instruments.ranks import ALONE
from contracts.spec import codec, evidence, presets
from contracts.spec.errors import NotOffered, Refused, refuse
from contracts.spec.evidence import (
    Backend,
    Ending,
    Figure,
    RankMemory,
    ReportedStep,
)
from contracts.stacks.reference import started
from contracts.stacks.reference.answers.training import TrainingSide
from contracts.stacks.reference.launching import arguments
from contracts.stacks.reference.launching.arguments import TrainerArguments
from contracts.stacks.reference.run_receipt import Record, keep_receipt, now
from contracts.stacks.reference.showing import shown
from contracts.stacks.reference.told import Ranks, Told

if TYPE_CHECKING:  # torch is loaded after the provenance of the run is taken
    from contracts.stacks.reference.trainer import Trainer

TELEMETRY, HOST = "LANEGATE_TELEMETRY", "LANEGATE_HOST"
USAGE_ERROR = 2
NARROW = 512
"""Width below which one thread computes: on a CPU several wait for each other longer than they work."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run was asked for. `argv` are its words, for the receipt; `telemetry` and `host` come from outside."""

    asked: TrainerArguments
    argv: tuple[str, ...]
    steps: int
    save: Path | None
    resume: bool
    log_every: int
    keep: int | None = None
    durable: str | None = None
    telemetry: Path | None = None
    host: str | None = None


def read(argv: tuple[str, ...], environment: Mapping[str, str]) -> Settings:
    """The settings of a run from its words and its environment.

    Raises:
        Refused: for words that nobody reads, an illegal recipe, a resume from nowhere.
    """
    own = argparse.ArgumentParser(prog="train", allow_abbrev=False, add_help=False)
    own.add_argument("--steps", type=int)
    own.add_argument("--save", type=Path)
    own.add_argument("--resume", action="store_true")
    own.add_argument("--keep", type=int)
    own.add_argument("--durable")
    own.add_argument("--log-every", type=int, default=10)
    said, rest = own.parse_known_args(argv)
    asked = arguments.read(_with_mode(tuple(rest)))
    recipe = asked.recipe
    save = said.save or (Path(recipe.checkpoint.save) if recipe.checkpoint.save else None)
    resume = said.resume or recipe.checkpoint.load is not None
    if resume and save is None and recipe.checkpoint.load is None:
        raise refuse("--resume", True, "needs the folder of a run", "give --save")
    if said.keep is not None and said.keep < 1:
        raise refuse("--keep", said.keep, "must be at least 1", "keep the checkpoint that a resume needs")
    return Settings(
        asked=asked,
        argv=argv,
        steps=recipe.optim.steps if said.steps is None else said.steps,
        save=save,
        resume=resume,
        log_every=max(1, said.log_every),
        keep=said.keep,
        durable=said.durable,
        telemetry=Path(environment[TELEMETRY]) if environment.get(TELEMETRY) else None,
        host=environment.get(HOST),
    )


def _with_mode(words: tuple[str, ...]) -> tuple[str, ...]:
    """A run by hand may leave the mode out: the recipe's first."""
    if "--mode" in words or "--recipe" not in words[:-1]:
        return words
    return (*words, "--mode", presets.resolve(words[words.index("--recipe") + 1]).modes[0])


def train(settings: Settings, record: Record, ranks: Ranks | None = None) -> Trainer:
    """Train up to the last step asked for; each step is told, shown, recorded and, in its turn, saved.

    The first rank alone shows and tells of steps; every rank tells where it stands and what it held.

    Raises:
        Refused: for a checkpoint that is not of this recipe. NotOffered: for what no trainer here does.
    """
    import torch

    from contracts.stacks.reference.parts import PARTS

    if settings.asked.recipe.hidden < NARROW and not torch.cuda.is_available():
        torch.set_num_threads(1)
    asked, recipe = settings.asked, settings.asked.recipe
    if asked.compile != "none":
        raise NotOffered(f"this trainer runs uncompiled, --compile {asked.compile} is not for it")
    ranks = ranks or Ranks(ALONE)
    record.place, record.mark = ranks.place, ranks.mark
    execution = started.execution(asked, ranks.place)
    trainer = TrainingSide().trainer_of(execution)(recipe, execution, PARTS)
    ranks.watch(trainer)
    try:
        _steps(settings, record, ranks, trainer)
        record.told = ranks.together(ranks.own(trainer))
    except BaseException:
        record.told = ranks.own(trainer)
        raise
    finally:
        _tell_of_ranks(settings.telemetry, ranks, record.told)
    return trainer


def _steps(settings: Settings, record: Record, ranks: Ranks, trainer: Trainer) -> None:
    recipe, place = settings.asked.recipe, ranks.place
    folder = checkpoints(settings)
    source = folder if recipe.checkpoint.load is None else Path(recipe.checkpoint.load)
    if settings.resume and source is not None and _holds_one(trainer, source):
        trainer.resume(str(source))
    listened = settings.telemetry if place.rank == 0 else None
    with shown(settings, trainer.number, place) as show:
        while trainer.number < settings.steps:
            done, seconds = ranks.clocked(trainer.next)
            step = ReportedStep(
                number=done.number, seconds=seconds, tokens=done.tokens,
                loss=_figure(done.losses["lm"]), grad_norm=_figure(done.grad_norm),
            )  # fmt: skip
            record.steps.append(step)
            tell(listened, "step", step)
            show.step(step, done.lr)
            if folder is not None and (done.number % recipe.checkpoint.interval == 0 or done.number == settings.steps):
                keep(trainer, folder, settings)


def _tell_of_ranks(path: Path | None, ranks: Ranks, told: Told) -> None:
    """Every rank tells of itself; the first tells which backends ran, on all of them if they could be asked."""
    for place in told.places:
        if place.local_rank == ranks.place.local_rank:
            tell(path, "place", place)
    for memory in told.memory:
        if memory.rank == ranks.place.rank:
            tell(path, "memory", memory)
    for backend in told.backends if ranks.place.rank == 0 else ():
        tell(path, "backend", backend)


def keep(trainer: Trainer, folder: Path, settings: Settings) -> None:
    """Write a checkpoint, and remove what is then too many."""
    folder.mkdir(parents=True, exist_ok=True)
    trainer.save(str(folder))
    if settings.keep is not None:
        trainer.retire(str(folder), settings.keep, settings.durable)


def _holds_one(trainer: Trainer, folder: Path) -> bool:
    """Whether the first rank sees a complete checkpoint: a run that is started again before its first begins anew."""
    kept = trainer.kept(str(folder))
    return bool(kept.ranks.said(kept.latest() is not None)[0])


def checkpoints(settings: Settings) -> Path | None:
    """Where checkpoints of a run lie."""
    return None if settings.save is None else settings.save / "checkpoints"


def tell(path: Path | None, kind: str, value: ReportedStep | evidence.Place | RankMemory | Backend) -> None:
    """Append a line of telemetry, where somebody listens."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({kind: codec.encode(value)}) + "\n")


def _figure(number: float) -> Figure:
    """JSON has no NaN and no infinity; the receipt has their names."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def main(argv: tuple[str, ...] | None = None) -> int:
    """Run; the exit code. A run that fails half way keeps its checkpoints and leaves a receipt that says so."""
    try:
        settings = read(tuple(sys.argv[1:]) if argv is None else argv, os.environ)
        record = Record(started=now(), taken=provenance.take(folder=Path.cwd(), host=settings.host, devices=0))
        with started.world() as place:
            train(settings, record, Ranks(place))
    except (Refused, NotOffered) as declined:
        print(f"train: {declined}", file=sys.stderr)  # noqa: T201
        return USAGE_ERROR
    except BaseException as error:
        ending: Ending = "terminated" if isinstance(error, KeyboardInterrupt) else "failed"
        keep_receipt(settings, record, ending, f"{type(error).__name__}: {error}")
        raise
    path = keep_receipt(settings, record, "ok", None)
    if path is not None and record.place.rank == 0:
        print(f"train: receipt in {path}", file=sys.stderr)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())

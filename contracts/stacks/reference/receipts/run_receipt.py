"""The receipt that each rank writes beside its checkpoints when no launcher writes one."""

import datetime
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from contracts.instruments.atomic_write import write_whole
from contracts.instruments.ranks import ALONE, Place
from contracts.spec import Lane, Launch, presets
from contracts.spec import pattern as patterns
from contracts.spec.receipt import Ending, LaunchedRun, Preflight, Provenance, ReportedStep
from contracts.stacks.reference.launch import overrides, trainer_arguments
from contracts.stacks.reference.launch.launch import SCRIPTS
from contracts.stacks.reference.receipts import receipt
from contracts.stacks.reference.training.run_facts import RankFacts
from contracts.stacks.reference.training.settings import Settings


@dataclass
class Record:
    """What a run did so far, as the rank at `place` knows it. `mark` is the suffix of its receipt file."""

    started: str
    taken: Provenance
    place: Place = ALONE
    mark: str = ""
    steps: list[ReportedStep] = field(default_factory=list)
    told: RankFacts = field(default_factory=RankFacts)


def keep_receipt(settings: Settings, record: Record, ending: Ending, failure: str | None) -> Path | None:
    """A receipt beside the checkpoints, named by the steps that it is about and, from the second on, by the rank that
    leaves it; the launcher's own where there is one."""
    if settings.save is None or settings.telemetry is not None or not record.steps:
        return None
    settings.save.mkdir(parents=True, exist_ok=True)
    first, last = record.steps[0].number, record.steps[-1].number
    path = settings.save / f"receipt-{first:08d}-{last:08d}{record.mark}.json"
    write_whole(path, receipt.write(receipt.build(facts(settings, record, ending, failure))))
    return path


def facts(settings: Settings, record: Record, ending: Ending, failure: str | None) -> LaunchedRun:
    asked, recipe, told = settings.asked, settings.asked.recipe, record.told
    base = presets.PRESETS.get(recipe.name)
    lane = Lane(
        mode=asked.mode, regime="fsdp2", gpus=record.place.world, run=asked.run, degrees=asked.degrees,
        overrides=overrides.difference(base, recipe) if base else {}, inherited=dict(os.environ),
    )  # fmt: skip
    pattern = patterns.parse(recipe.pattern, recipe.depth)
    sparse = recipe.dsa.a_ranks if recipe.dsa else ()
    launch = Launch(
        torchrun=(sys.executable,), script=SCRIPTS["fsdp2"], argv=settings.argv, env={}, unset=(), recorded={},
        launcher=trainer_arguments.LAUNCHER, launcher_version=trainer_arguments.VERSION, degrees=asked.degrees,
        world=record.place.world, recurrent=patterns.layers_of(pattern, "R"),
        sparse=patterns.placement(pattern, sparse).sparse_layers,
    )  # fmt: skip
    return LaunchedRun(
        recipe=recipe, lane=lane, launch=launch, provenance=record.taken, preflight=Preflight(ran=False),
        places=told.places, memory=told.memory, backends=told.backends, started=record.started, finished=now(),
        ending=ending, exit_code=0 if ending == "ok" else 1, failure=failure, steps=tuple(record.steps),
    )  # fmt: skip


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

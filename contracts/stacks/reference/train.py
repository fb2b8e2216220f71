r"""The trainer as a command, on one rank or on several:

    python -m contracts.stacks.reference.train --recipe tiny-nam56r --steps 50 --save runs/first
    torchrun --nproc-per-node=4 -m contracts.stacks.reference.train --recipe tiny-nam56r --steps 50 --save runs/first \
        --tp 2 --ep 2 --resume

A run continues where it was left, on as many ranks as it is given.

Its words are those that a launch writes (`launch/trainer_arguments.py`) and seven of its own:

    --steps N       the step to stop after, counted over the whole run; the recipe's optim.steps if not given, which
                    the schedule follows in any case
    --save DIR      checkpoints in DIR/checkpoints, every `checkpoint.interval` steps and after the last; a receipt in
                    DIR from every rank. Without it the recipe's checkpoint.save, and without that nothing is kept
    --resume        continue after the latest checkpoint of DIR. If it has none, and without --resume, a run continues
                    after that of the recipe's checkpoint.load, which must have one, or begins
    --keep N        of the checkpoints the newest N stay, once the last was written; all, if it is not given
    --durable DIR   where somebody copies DIR/checkpoints to: none goes that has no newer one there, whole. Without it
                    DIR itself is the place that lasts
    --log-every N   a line every N steps where there is no terminal
    --device D      cpu, cuda or auto (CUDA if there is a device for each rank of the node); RANKPROOF_DEVICE if it is
                    not given

The file that `RANKPROOF_TELEMETRY` names is appended to (docs/receipts.md); then the launcher writes the receipt.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.instruments import provenance
from contracts.instruments.ranks import ALONE
from contracts.spec import NotOffered, Refused, codec, receipt
from contracts.spec.receipt import Backend, Ending, RankMemory, ReportedStep
from contracts.stacks.reference.answers.training import TrainingAnswers
from contracts.stacks.reference.launch import torchrun_environment
from contracts.stacks.reference.receipts.receipt import figure
from contracts.stacks.reference.receipts.run_receipt import Record, keep_receipt, now
from contracts.stacks.reference.training.progress import show_progress
from contracts.stacks.reference.training.run_facts import RankFacts, RankReporter
from contracts.stacks.reference.training.settings import Settings, read

if TYPE_CHECKING:  # torch is loaded after the provenance of the run is taken
    from contracts.stacks.reference.training.trainer import Trainer

USAGE_ERROR = 2
FOLDER = "checkpoints"
NARROW = 512
"""Width below which one thread computes: on a CPU several wait for each other longer than they work."""


def train(settings: Settings, record: Record, ranks: RankReporter | None = None) -> Trainer:
    """Train up to the last step asked for; each step is reported, shown, recorded and, in its turn, saved.

    Only the first rank shows and reports steps; every rank reports where it stands and what it held.

    Raises:
        Refused: for a checkpoint that is not of this recipe. NotOffered: for what no trainer here does.
    """
    import torch

    from contracts.stacks.reference.model.parts import PARTS

    device = torchrun_environment.device_of(settings.device)
    if settings.asked.recipe.hidden < NARROW and device == "cpu":
        torch.set_num_threads(1)
    asked, recipe = settings.asked, settings.asked.recipe
    if asked.compile != "none":
        raise NotOffered(f"this trainer runs uncompiled, --compile {asked.compile} is not for it")
    ranks = ranks or RankReporter(ALONE)
    record.place, record.mark = ranks.place, ranks.mark
    execution = torchrun_environment.execution_of(asked, ranks.place, device)
    trainer = TrainingAnswers().trainer_of(execution)(recipe, execution, PARTS)
    ranks.watch_experts(trainer)
    try:
        _steps(settings, record, ranks, trainer)
        record.told = ranks.gather(ranks.local_facts(trainer))
    except BaseException:
        record.told = ranks.local_facts(trainer)
        raise
    finally:
        _tell_of_ranks(settings.telemetry, ranks, record.told)
    return trainer


def _steps(settings: Settings, record: Record, ranks: RankReporter, trainer: Trainer) -> None:
    recipe, place = settings.asked.recipe, ranks.place
    folder = checkpoints(settings)
    if settings.resume and folder is not None and _holds_one(trainer, folder):
        trainer.resume(str(folder))
    elif recipe.checkpoint.load is not None:
        trainer.resume(str(Path(recipe.checkpoint.load, FOLDER)))
    listened = settings.telemetry if place.rank == 0 else None
    with show_progress(settings, trainer.number, place) as show:
        while trainer.number < settings.steps:
            done, seconds = ranks.timed_step(trainer.next)
            step = ReportedStep(
                number=done.number, seconds=seconds, tokens=done.tokens,
                loss=figure(done.losses["lm"]), grad_norm=figure(done.grad_norm), skipped=done.skipped,
            )  # fmt: skip
            record.steps.append(step)
            tell(listened, "step", step)
            show.step(step, done.lr)
            if folder is not None and (done.number % recipe.checkpoint.interval == 0 or done.number == settings.steps):
                keep(trainer, folder, settings)


def _tell_of_ranks(path: Path | None, ranks: RankReporter, told: RankFacts) -> None:
    """Every rank reports on itself; the first reports which backends ran, on all of them if they could be asked."""
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
    return bool(kept.ranks.all_gather(kept.latest() is not None)[0])


def checkpoints(settings: Settings) -> Path | None:
    """Where checkpoints of a run lie."""
    return None if settings.save is None else settings.save / FOLDER


def tell(path: Path | None, kind: str, value: ReportedStep | receipt.Place | RankMemory | Backend) -> None:
    """Append a line of telemetry, where somebody listens."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({kind: codec.encode(value)}) + "\n")


def main(argv: tuple[str, ...] | None = None) -> int:
    """Run; the exit code. A run that fails half way keeps its checkpoints and leaves a receipt that says so."""
    try:
        settings = read(tuple(sys.argv[1:]) if argv is None else argv, os.environ)
        record = Record(started=now(), taken=provenance.take(folder=Path.cwd(), host=settings.host, devices=0))
        device = torchrun_environment.device_of(settings.device)
        with torchrun_environment.distributed_world(device) as place:
            train(settings, record, RankReporter(place))
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

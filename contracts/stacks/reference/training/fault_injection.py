"""A short training run in the current process group with a fault injected on one rank, and the receipts it leaves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from contracts.instruments.ranks import Place, gathered, here, torch_distributed
from contracts.spec import Degrees, LeftReceipts, NotOffered, Recipe, Strain
from contracts.spec.receipt import Provenance
from contracts.stacks.reference import train
from contracts.stacks.reference.launch import torchrun_environment
from contracts.stacks.reference.launch.trainer_arguments import TrainerArguments
from contracts.stacks.reference.receipts import receipt, run_receipt
from contracts.stacks.reference.training.run_facts import RankReporter
from contracts.stacks.reference.training.settings import DEVICE, Settings

if TYPE_CHECKING:  # torch is loaded when something is trained
    from contracts.stacks.reference.training.trainer import Trainer

Done = TypeVar("Done")


def run_with_fault(
    kind: type[RankReporter],
    recipe: Recipe,
    degrees: Degrees,
    steps: int,
    folder: Path,
    taken: Provenance,
    strain: Strain,
) -> LeftReceipts:
    """Run from the first step to the receipts of all ranks.

    Raises:
        NotOffered: for a kernel that the trainer has no second one for.
    """
    if strain.lacks not in (None, "torch-grouped"):
        raise NotOffered(f"the trainer falls back only from torch-grouped, not from {strain.lacks}")
    asked = TrainerArguments(recipe=recipe, mode=recipe.modes[0], degrees=degrees, compile="none", run="strained")
    device = torchrun_environment.device_of(os.environ.get(DEVICE) or "auto")
    settings = Settings(asked=asked, argv=(), steps=steps, save=folder, resume=False, log_every=steps, device=device)
    told = folder / f"node-{here().node}.jsonl"
    record = run_receipt.Record(started=run_receipt.now(), taken=taken)
    ballast, torch = _held(strain.held, device), torch_distributed()[0]
    threads = torch.get_num_threads()
    try:
        train.train(replace(settings, telemetry=told), record, _strained(kind, strain, steps)(_place())).close()
    finally:
        torch.set_num_threads(threads)  # the command has a process of its own
        del ballast
    path = run_receipt.keep_receipt(settings, record, "ok", None)
    assert path is not None, "a run with a folder has a receipt"
    gathered("left")
    kept = {each.name: receipt.read(each.read_text(encoding="utf-8")) for each in sorted(folder.glob("*.json"))}
    gathered("read")
    lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else ()
    return LeftReceipts(own=path.name, kept=kept, lines=tuple(lines))


def _place() -> Place:
    """This rank in the current process group, which may be smaller than the world that torchrun started."""
    _, dist = torch_distributed()
    at = here()
    return Place(rank=dist.get_rank(), world=dist.get_world_size(), node=at.node, local_rank=at.local_rank)


def _held(size: int, device: str) -> object:
    """A block of memory on the training device, every page of it written."""
    torch, _ = torch_distributed()
    return torch.ones(size, dtype=torch.uint8, device=device)


def _strained(kind: type[RankReporter], strain: Strain, last: int) -> type[RankReporter]:
    class Strained(kind):  # type: ignore[valid-type, misc]  # a class that is given
        steps = 0

        def timed_step(self, step: Callable[[], Done]) -> tuple[Done, float]:
            self.steps += 1
            late: tuple[Done, float] = super().timed_step(partial(self._late, step) if self.steps == last else step)
            return late

        def _late(self, step: Callable[[], Done]) -> Done:
            done = step()
            time.sleep(strain.late_s)
            return done

        def watch_experts(self, trainer: Trainer) -> None:
            from contracts.stacks.reference.model.blocks import Experts

            for module in trainer.model.modules() if strain.lacks else ():
                if isinstance(module, Experts):
                    setattr(module, "backend", lambda x: "loop")  # noqa: B010  # nn.Module types its attributes
            super().watch_experts(trainer)

    return Strained

"""Progress of a run on standard error: a progress bar on a terminal, a line every few steps elsewhere."""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from contracts.instruments.ranks import Place
from contracts.spec.receipt import ReportedStep
from contracts.stacks.reference.training.settings import Settings


class Progress(Protocol):
    """Shows each step of a run."""

    def step(self, step: ReportedStep, lr: float) -> None: ...


@contextmanager
def show_progress(settings: Settings, start: int, place: Place) -> Iterator[Progress]:
    """A progress bar on a terminal, lines elsewhere; only rank 0 shows anything."""
    if place.rank > 0:
        yield NoProgress()
        return
    if not sys.stderr.isatty():
        yield ProgressLines(settings)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.fields[recipe]}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=settings.steps, completed=start, recipe=settings.asked.recipe.name)

        class Bar:
            def step(self, step: ReportedStep, lr: float) -> None:
                progress.update(task, completed=step.number, description=_line(step, lr))

        yield Bar()


class NoProgress:
    """For ranks other than 0."""

    def step(self, step: ReportedStep, lr: float) -> None:
        """Nothing: the first rank has the same numbers."""


@dataclass(frozen=True)
class ProgressLines:
    """Without a terminal: the first step, every `log_every`-th, and the last."""

    settings: Settings

    def step(self, step: ReportedStep, lr: float) -> None:
        every, last = self.settings.log_every, self.settings.steps
        if step.number in (1, last) or step.number % every == 0:
            print(f"step {step.number}/{last}  {_line(step, lr)}", file=sys.stderr, flush=True)  # noqa: T201


def _line(step: ReportedStep, lr: float) -> str:
    loss, norm = (math.nan if each is None else float(each) for each in (step.loss, step.grad_norm))
    return f"loss {loss:.4f}  norm {norm:.3g}  lr {lr:.2e}  {step.tokens / float(step.seconds):,.0f} tokens/s"

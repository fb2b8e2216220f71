"""A verdict beside the curves of a run: a report folder, of `judge` or `check`, in TensorBoard, MLflow or W&B.

>>> from rankproof.trackers import to_tensorboard
>>> to_tensorboard("reports/judged", SummaryWriter("runs"), step=100)  # doctest: +SKIP
"""

import importlib
from pathlib import Path
from typing import Any


def to_tensorboard(report: Path | str, writer: Any, *, step: int = 0) -> None:
    """Add the counts of a verdict as scalars, and its summary as text, to a `SummaryWriter`."""
    counts, summary = _read(report)
    for name, value in counts.items():
        writer.add_scalar(name, value, step)
    writer.add_text("rankproof/verdict", summary, step)


def to_mlflow(report: Path | str, *, step: int = 0) -> None:
    """Log the counts of a verdict as metrics of the active run of MLflow, and its report as an artifact."""
    mlflow = importlib.import_module("mlflow")
    counts, summary = _read(report)
    mlflow.log_metrics({name: float(value) for name, value in counts.items()}, step=step)
    mlflow.log_text(summary, "rankproof/summary.md")
    mlflow.log_artifact(str(Path(report, "report.html")), "rankproof")


def to_wandb(report: Path | str, run: Any, *, step: int | None = None) -> None:
    """Log the counts of a verdict to a run of W&B, and its report as an artifact."""
    wandb = importlib.import_module("wandb")
    counts, summary = _read(report)
    run.log(counts, step=step)
    kept = wandb.Artifact("rankproof", type="verdict", description=summary)
    kept.add_file(str(Path(report, "report.html")))
    run.log_artifact(kept)


def _read(report: Path | str) -> tuple[dict[str, int], str]:
    """How many contracts' cases have which outcome, by name, and the summary of a report folder.

    Raises:
        Refused: for a folder without a verdict.
    """
    from rankproof import suite

    suite.load()
    from contracts.court import record
    from contracts.court import report as renderings
    from contracts.court.verdict import verdict
    from contracts.harness.commands.runs import day_of

    run, closing = record.load(Path(report))
    judged = verdict(run, day_of(closing.finished))
    counts = {f"rankproof/{outcome.replace(' ', '_')}": count for outcome, count in judged.counts.items()}
    return counts | {"rankproof/exit_code": judged.exit_code}, renderings.render(run, judged, "markdown", False, 100)

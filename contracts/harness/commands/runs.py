"""`report` and `replay`: recorded runs, read and judged again."""

from __future__ import annotations

import datetime
import sys
from dataclasses import replace
from pathlib import Path

import click

from contracts.court import deviations as deviations_file
from contracts.court import record
from contracts.court import report as renderings
from contracts.court.baseline import baseline
from contracts.court.verdict import verdict
from contracts.harness.commands._errors import VERBOSE, one_clear_error, print_report
from contracts.harness.gate import today
from contracts.spec.errors import refuse
from contracts.spec.records import FORMS, Form


@click.command(name="report")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--form", type=click.Choice(FORMS), default="terminal", show_default=True)
@click.option("--baseline", "earlier", type=click.Path(path_type=Path), metavar="RUN",
              help="An earlier record or its folder: what was judged there and is not judged here is red.")  # fmt: skip
@click.option("--verbose", is_flag=True, help=VERBOSE)
@one_clear_error
def report(run: Path, form: Form, earlier: Path | None, verbose: bool) -> None:
    """Print a recorded run as text, JUnit, Markdown (for a step summary), HTML or JSON."""
    recorded, closing = record.load(run)
    if earlier is not None:
        there, ended = record.load(earlier)
        judged_there = verdict(there, day_of(ended.finished))
        recorded = replace(recorded, baseline=baseline(there, judged_there, recorded.header))
    judged = verdict(recorded, day_of(closing.finished))
    print_report(renderings.render(recorded, judged, form, verbose), judged.word, form)
    sys.exit(judged.exit_code)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--as-of", metavar="DATE", help="Judge as on this day instead of today (deviations expire).")
@click.option("--deviations", type=click.Path(path_type=Path), help="Judge with these instead of the recorded ones.")
@click.option("--verbose", is_flag=True, help=VERBOSE)
@one_clear_error
def replay(run: Path, as_of: str | None, deviations: Path | None, verbose: bool) -> None:
    """Judge a recorded run again, offline, without the stack."""
    recorded, closing = record.load(run)
    if deviations is not None:
        recorded = replace(recorded, deviations=deviations_file.load(deviations))
    try:
        day = datetime.date.fromisoformat(as_of) if as_of else today()
    except ValueError:
        raise refuse("--as-of", as_of, "is not a date", "write YYYY-MM-DD") from None
    judged = verdict(recorded, day)
    print_report(renderings.render(recorded, judged, "terminal", verbose), judged.word, "terminal")
    if judged.word != closing.word:
        click.echo(f"the record said {closing.word} on {closing.finished}; judged as of {day} it is {judged.word}")
    sys.exit(judged.exit_code)


def day_of(moment: str) -> datetime.date:
    return datetime.datetime.fromisoformat(moment).date()

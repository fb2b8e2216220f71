"""`report` and `replay`: recorded runs, read and judged again."""

import datetime
import os
import sys
from dataclasses import replace
from pathlib import Path

import click

from contracts.court import deviations as deviations_file
from contracts.court import record, shards
from contracts.court import report as renderings
from contracts.court.baseline import baseline
from contracts.court.html_report import Recorded, overview
from contracts.court.plain_text import terminal
from contracts.court.verdict import verdict
from contracts.harness.commands._errors import (
    AS_JSON,
    VERBOSE,
    one_clear_error,
    print_report,
    terminal_width,
    written_to,
)
from contracts.harness.gate import today
from contracts.spec import refuse
from contracts.spec.records import FORMS, Form

WORST_FIRST = (1, 4, 3, 5)
"""Exit codes of several verdicts: violated, broken, incomplete, nothing ran."""


@click.command(name="report")
@click.argument("runs", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--form", type=click.Choice(FORMS), default="terminal", show_default=True)
@click.option("--html", "page", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write one page over all these runs: stacks × families, and the trend of each.")  # fmt: skip
@click.option("--baseline", "earlier", type=click.Path(path_type=Path), metavar="RUN",
              help="An earlier record or its folder: what it judged or broke and this one lacks is red.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help=AS_JSON)
@click.option("-v", "--verbose", is_flag=True, help=VERBOSE)
@one_clear_error
def report(
    runs: tuple[Path, ...], form: Form, page: Path | None, earlier: Path | None, as_json: bool, verbose: bool
) -> None:
    """Print a recorded run as text, JUnit, Markdown (for a step summary), HTML, JSON, GitHub annotations or SARIF; of
    several runs, the verdict of each. A run that did not finish is shown as far as it came, and is incomplete."""
    form = "json" if as_json else form
    if len(runs) > 1 and form != "terminal" and page is None:
        raise refuse("form", form, f"is of one run, and there are {len(runs)}", "give one run, or --html FILE")
    recorded = [_recorded(path, page, earlier) for path in runs]
    if page is not None:
        written_to(page, overview(recorded), "html")
    if len(runs) == 1 and page is None:
        [only] = recorded
        text = renderings.render(only.run, only.verdict, form, verbose, terminal_width())
        print_report(text, only.verdict.word, form)
    else:
        for each in recorded:
            click.echo(terminal(renderings.headline(each.verdict)))
        if page is not None:
            click.echo(f"page: {page}")
    codes = {each.verdict.exit_code for each in recorded}
    sys.exit(next((code for code in WORST_FIRST if code in codes), 0))


def _recorded(path: Path, page: Path | None, earlier: Path | None) -> Recorded:
    """A run, called by its folder: seen from the page, so that the page can link to it."""
    run, closing = record.load_any(path)
    if earlier is not None:
        there, ended = record.load(earlier)
        run = replace(run, baseline=baseline(there, verdict(there, day_of(ended.finished)), run.header))
    folder = path if path.is_dir() else path.parent
    label = os.path.relpath(folder, page.parent) if page is not None else str(folder)
    return Recorded(label=label, run=run, verdict=verdict(run, day_of(closing.finished) if closing else today()))


@click.command()
@click.argument("runs", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--report", "folder", type=click.Path(path_type=Path, file_okay=False), default=Path("reports/last"),
              show_default=True, help="Folder for the merged record and its renderings.")  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help=VERBOSE)
@one_clear_error
def merge(runs: tuple[Path, ...], folder: Path, verbose: bool) -> None:
    """Make one record of those of `check --shard`, and print its verdict. Items that no share judged are not run."""
    whole = shards.merged([record.load(path)[0] for path in runs])
    judged = verdict(whole, today())
    record.make_folder(folder, renderings.FILES)
    (folder / "run.jsonl").write_text(record.write(whole, today()), encoding="utf-8")
    for name, text in renderings.files(whole, judged).items():
        (folder / name).write_text(text, encoding="utf-8")
    click.echo(f"report: {folder / 'report.html'}")
    print_report(renderings.render(whole, judged, "terminal", verbose, terminal_width()), judged.word, "terminal")
    sys.exit(judged.exit_code)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--as-of", metavar="DATE", help="Judge as on this day instead of today (deviations expire).")
@click.option("--deviations", type=click.Path(path_type=Path), help="Judge with these instead of the recorded ones.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
@click.option("-v", "--verbose", is_flag=True, help=VERBOSE)
@one_clear_error
def replay(run: Path, as_of: str | None, deviations: Path | None, as_json: bool, verbose: bool) -> None:
    """Judge a recorded run again, offline, without the stack."""
    recorded, closing = record.load(run)
    if deviations is not None:
        recorded = replace(recorded, deviations=deviations_file.load(deviations))
    try:
        day = datetime.date.fromisoformat(as_of) if as_of else today()
    except ValueError:
        raise refuse("--as-of", as_of, "is not a date", "write YYYY-MM-DD") from None
    judged = verdict(recorded, day)
    form: Form = "json" if as_json else "terminal"
    print_report(renderings.render(recorded, judged, form, verbose, terminal_width()), judged.word, form)
    if not as_json and judged.word != closing.word:
        click.echo(f"the record said {closing.word} on {closing.finished}; judged as of {day} it is {judged.word}")
    sys.exit(judged.exit_code)


def day_of(moment: str) -> datetime.date:
    return datetime.datetime.fromisoformat(moment).date()

"""`check` puts a stack under test, `selftest` the suite itself."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

import click

from contracts.contract import LAW
from contracts.court import deviations as deviations_file
from contracts.court import record, report
from contracts.court.judge import DEADLINE_S
from contracts.court.verdict import verdict
from contracts.harness import parties, profiles
from contracts.harness import selftest as self_test
from contracts.harness.commands._guard import (
    COLOURS,
    one_clear_error,
    print_report,
    read_law,
    short,
    the_stack_talks_to_stderr,
    told,
)
from contracts.harness.gate import today
from contracts.harness.supervisor import Ended, supervised
from contracts.spec import codec
from contracts.spec.errors import refuse
from contracts.spec.records import EXIT_CODES, FORMS, Fate, Form

SUITE = Path(__file__).parents[1] / "suite.py"
_FILES: dict[Form, str] = {
    "junit": "junit.xml",
    "markdown": "summary.md",
    "html": "report.html",
    "json": "verdict.json",
}


@click.command()
@click.option("--stack", default="reference", show_default=True, help="A name, or package.module:Name.")
@click.option("--with", "assistants", multiple=True, metavar="PARTY",
              help="Who answers what the stack does not, such as a launcher's parser; `none` for nobody.")  # fmt: skip
@click.option("--profile", default=profiles.DEFAULT, show_default=True,
              help=f"A comma-separated list of {', '.join(profiles.NAMED)}, ids, prefixes and items.")  # fmt: skip
@click.option("--deviations", type=click.Path(path_type=Path), help="TOML file of declared deviations.")
@click.option("--report", "folder", type=click.Path(path_type=Path, file_okay=False), default=Path("reports/last"),
              show_default=True, help="Folder for the record and its renderings.")  # fmt: skip
@click.option("--form", type=click.Choice(FORMS), default="terminal", show_default=True, help="What is printed.")
@click.option("--deadline", type=click.FloatRange(min=0, min_open=True), default=DEADLINE_S, show_default=True,
              metavar="SECONDS", help="What one case, and loading the stack, may take.")  # fmt: skip
@click.option("--selftest", "prove", is_flag=True, help="Put the suite's own mutants before the law first.")
@one_clear_error
def check(
    stack: str, assistants: tuple[str, ...], profile: str, deviations: Path | None, folder: Path, form: Form,
    deadline: float, prove: bool,
) -> None:  # fmt: skip
    """Put a stack under test and print the verdict."""
    arguments = [
        f"--stack={stack}", f"--profile={profile}", f"--deadline={deadline}",
        *(f"--with={name}" for name in assistants), *([f"--deviations={deviations}"] if deviations else []),
        *(["--selftest"] if prove else []),
    ]  # fmt: skip

    def work() -> int:
        read_law()
        profiles.plan(LAW, profile)  # refuse bad input before anything is written
        if deviations is not None:
            deviations_file.load(deviations)
        if folder.exists():  # an older run must not be read as this one, whatever happens now
            record.make_folder(folder, _FILES.values())
        with the_stack_talks_to_stderr():
            subject = parties.load(stack, deadline_s=deadline)
            parties.assistants(subject, assistants, quick=False)
        record.make_folder(folder)
        return _run_suite(arguments, folder, form)

    sys.exit(supervised(lambda: told(work)))


def _run_suite(arguments: list[str], folder: Path, form: Form) -> int:
    import pytest

    # Nothing of the place we are called from: neither its ini file, nor its conftest, nor its plugins.
    apart = [
        "-c", os.devnull, f"--rootdir={SUITE.parent}", "--noconftest", "--disable-plugin-autoload",
        "-p", "contracts.harness.plugin", "-p", "no:cacheprovider", "-p", "no:terminal",
    ]  # fmt: skip
    for inherited in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(inherited, None)
    gc.set_threshold(200_000)  # a mesh of 65 536 ranks is a million tuples; looking for cycles costs a quarter
    with the_stack_talks_to_stderr():
        status = pytest.main([str(SUITE), "--gate", f"--report={folder}", *arguments, *apart])
    if not (folder / "run.jsonl").exists():
        raise Ended(f"the run ended early (pytest said {status!r}); {folder} holds what came in")
    run, closing = record.load(folder)
    judged = verdict(run, today())
    for rendering, name in _FILES.items():
        (folder / name).write_text(report.render(run, judged, rendering), encoding="utf-8")
    print_report(report.render(run, judged, form), closing.word, form)
    if form == "terminal":
        click.echo(f"report: {folder / 'report.html'} (run.jsonl, junit.xml, summary.md, verdict.json beside it)")
    return judged.exit_code


@click.command()
@click.option("--only", metavar="PREFIX", help="Only mutants of ids that begin so.")
@click.option("--report", "folder", type=click.Path(path_type=Path, file_okay=False), help="Write kills.json there.")
@click.option("--with", "assistants", multiple=True, metavar="PARTY", help="As for `check`.")
@one_clear_error
def selftest(only: str | None, folder: Path | None, assistants: tuple[str, ...]) -> None:
    """Put every mutant before the law and print the kill matrix."""
    read_law()
    law = self_test.part_of(LAW, [id for id in LAW.contracts if id.startswith(only or "")])
    if not law.contracts:
        raise refuse("--only", only, "selects no promise", "give an id or the beginning of one")
    subject = parties.load("reference")
    helping = [party for _, party in parties.assistants(subject, assistants, quick=False)]
    matrix = self_test.run(law, helping)
    _show_matrix(matrix)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "kills.json").write_text(json.dumps(codec.encode(matrix), indent=1) + "\n", encoding="utf-8")
    sys.exit(EXIT_CODES[matrix.word])


def _show_matrix(matrix: self_test.Matrix) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("contract", "case", "mutant", "fate", "words", title="Kill matrix", title_justify="left")
    styles: dict[Fate, str] = {"killed": "green", "void": "yellow"}
    for kill in matrix.kills:
        words = kill.words if kill.fate != "killed" else kill.words.removeprefix("violated: ")
        style = styles.get(kill.fate, "bold red")
        table.add_row(kill.of, kill.case, kill.mutant, f"[{style}]{kill.fate}[/]", short(words, quote=False))
    Console().print(table)
    for result in matrix.failing:
        click.secho(f"baseline: {result.item} {result.outcome}: {result.words}", fg="red")
    for id in matrix.unguarded:
        click.secho(f"no mutant: {id}", fg="red")
    killed = sum(kill.fate == "killed" for kill in matrix.kills)
    line = f"{matrix.word.upper()}: {killed} of {len(matrix.kills)} mutants killed for their words, "
    line += f"{len(matrix.baseline)} baseline judgements, {len(matrix.bugs)} catalogued bugs embodied"
    click.secho(line, fg=COLOURS.get(matrix.word, "red"), bold=True)

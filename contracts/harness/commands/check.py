"""`check` puts a stack under test, `selftest` the suite itself."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path

import click

from contracts.contract import LAW, Tier
from contracts.court import deviations as deviations_file
from contracts.court import profiles, record, report
from contracts.court.judge import DEADLINE_S
from contracts.court.verdict import verdict
from contracts.harness import parties, torchrun
from contracts.harness import selftest as self_test
from contracts.harness.commands._guard import (
    COLOURS,
    VERBOSE,
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
from contracts.spec.errors import Unreachable, refuse
from contracts.spec.records import EXIT_CODES, FORMS, Fate, Form

SUITE = Path(__file__).parents[1] / "suite.py"
TRIALS = SUITE.with_name("trial_suite.py")
TRIALS_LOST = 20  # so many mutants may end a rank before the matrix is given up
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
@click.option("--profile", show_default=f"{profiles.DEFAULT}; with --ranks: dist",
              help=f"A comma-separated list of {', '.join(profiles.NAMED)}, ids, prefixes and items.")  # fmt: skip
@click.option("--ranks", type=click.IntRange(min=2), metavar="N",
              help="Judge by N ranks of this machine, which torchrun starts: the dist tier.")  # fmt: skip
@click.option("--deviations", type=click.Path(path_type=Path), help="TOML file of declared deviations.")
@click.option("--report", "folder", type=click.Path(path_type=Path, file_okay=False), default=Path("reports/last"),
              show_default=True, help="Folder for the record and its renderings.")  # fmt: skip
@click.option("--form", type=click.Choice(FORMS), default="terminal", show_default=True, help="What is printed.")
@click.option("--deadline", type=click.FloatRange(min=0, min_open=True), default=DEADLINE_S, show_default=True,
              metavar="SECONDS", help="What one case, and loading the stack, may take.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Processes that share the promises of one process; more than one needs pytest-xdist.")  # fmt: skip
@click.option("--selftest", "prove", is_flag=True, help="Put the suite's own mutants before the law first.")
@click.option("--verbose", is_flag=True, help=VERBOSE)
@one_clear_error
def check(
    stack: str, assistants: tuple[str, ...], profile: str | None, ranks: int | None, deviations: Path | None,
    folder: Path, form: Form, deadline: float, jobs: int, prove: bool, verbose: bool,
) -> None:  # fmt: skip
    """Put a stack under test and print the verdict."""
    profile = profile or ("dist" if ranks else profiles.DEFAULT)
    arguments = [
        str(SUITE), "--gate", f"--report={folder}", f"--stack={stack}", f"--profile={profile}",
        f"--deadline={deadline}", *(f"--with={name}" for name in assistants),
        *([f"--deviations={deviations}"] if deviations else []),
        *(["--selftest"] if prove else []), *_shared_by(jobs),
    ]  # fmt: skip

    def work() -> int:
        read_law()
        plan = profiles.plan(LAW, profile)  # refuse bad input before anything is written
        if ranks is not None:
            profiles.of_several_ranks(LAW, plan)
            if jobs > 1:
                raise refuse("jobs", jobs, "is of one process", "leave it out: the ranks are processes")
            if prove:
                raise refuse("selftest", True, "is of one process", "run `lanegate selftest --profile dist`")
        if deviations is not None:
            deviations_file.load(deviations)
        if folder.exists():  # an older run must not be read as this one, whatever happens now
            record.make_folder(folder, _FILES.values())
        with the_stack_talks_to_stderr():
            subject = parties.load(stack, deadline_s=deadline)
            parties.assistants(subject, assistants, quick=False)
        record.make_folder(folder)
        how = _run_in_one_process(arguments) if ranks is None else torchrun.run(ranks, [*arguments, *APART], folder)
        return _verdict(folder, form, how, verbose)

    sys.exit(supervised(lambda: told(work)))


def _shared_by(jobs: int) -> list[str]:
    """The words that let several processes judge.

    Raises:
        Unreachable: where pytest-xdist is not installed.
    """
    if jobs == 1:
        return []
    if importlib.util.find_spec("xdist") is None:
        raise Unreachable("--jobs needs pytest-xdist: pip install pytest-xdist")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as many threads as cores in each of them would only wait
    return ["-p", "xdist", "-n", str(jobs), "--dist", "worksteal"]


# Nothing of the place we are called from: neither its ini file, nor its conftest, nor its plugins.
APART = (
    "-c", os.devnull, f"--rootdir={SUITE.parent}", "--noconftest", "--disable-plugin-autoload",
    "-p", "contracts.harness.plugin", "-p", "no:cacheprovider",
)  # fmt: skip


def _run_in_one_process(arguments: list[str]) -> str:
    """Run the suite; returns how pytest ended."""
    import pytest

    for inherited in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(inherited, None)
    gc.set_threshold(200_000)  # a mesh of 65 536 ranks is a million tuples; looking for cycles costs a quarter
    with the_stack_talks_to_stderr():
        status = pytest.main([*arguments, *APART, "-p", "no:terminal"])
    return f"pytest said {status!r}"


def _verdict(folder: Path, form: Form, how: str, verbose: bool) -> int:
    """Read the record of a run, render and print it; `how` is how the run ended, for where there is none."""
    if not (folder / "run.jsonl").exists():
        raise Ended(f"the run ended early ({how}); {folder} holds what came in")
    run, closing = record.load(folder)
    judged = verdict(run, today())
    for rendering, name in _FILES.items():
        (folder / name).write_text(report.render(run, judged, rendering), encoding="utf-8")
    print_report(report.render(run, judged, form, verbose), closing.word, form)
    if form == "terminal":
        click.echo(f"report: {folder / 'report.html'} (run.jsonl, junit.xml, summary.md, verdict.json beside it)")
    return judged.exit_code


@click.command()
@click.option("--only", metavar="PREFIX", help="Only mutants of ids that begin so.")
@click.option("--profile", type=click.Choice(["unit", "dist"]), default="unit", show_default=True,
              help="The tier: what one process judges, or what several ranks do.")  # fmt: skip
@click.option("--ranks", type=click.IntRange(min=2), default=4, show_default=True, metavar="N",
              help="For dist: ranks of this machine, which torchrun starts.")  # fmt: skip
@click.option("--report", "folder", type=click.Path(path_type=Path, file_okay=False), help="Write kills.json there.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="For unit: processes that share the promises.")  # fmt: skip
@click.option("--with", "assistants", multiple=True, metavar="PARTY", help="As for `check`.")
@one_clear_error
def selftest(
    only: str | None, profile: Tier, ranks: int, folder: Path | None, jobs: int, assistants: tuple[str, ...]
) -> None:
    """Put every mutant before the law and print the kill matrix."""
    read_law()
    law = self_test.part_of(LAW, [id for id in LAW.contracts if id.startswith(only or "")], profile)
    if not law.contracts:
        raise refuse("--only", only, "selects no promise", "give an id or the beginning of one")
    if profile == "dist":
        matrix = _tried_by_ranks(ranks, only or "", folder)
    elif jobs > 1:
        matrix = self_test.shared(law, assistants, jobs)
    else:
        subject = parties.load("reference")
        helping = [party for _, party in parties.assistants(subject, assistants, quick=False)]
        matrix = self_test.run(law, helping)
    _show_matrix(matrix)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "kills.json").write_text(json.dumps(codec.encode(matrix), indent=1) + "\n", encoding="utf-8")
    sys.exit(EXIT_CODES[matrix.word])


def _tried_by_ranks(ranks: int, only: str, folder: Path | None) -> self_test.Matrix:
    """The matrix of the dist tier: one torchrun for all of its mutants."""
    with tempfile.TemporaryDirectory() as place:
        kept = Path(place) if folder is None else folder
        kept.mkdir(parents=True, exist_ok=True)
        file = Path(place) / "matrix.json"
        arguments = [str(TRIALS), "-p", "contracts.harness.trials", f"--trials={file}", f"--only={only}", *APART]
        last_words = torchrun.run(ranks, arguments, kept, restarts=TRIALS_LOST)
        if not file.exists():
            raise Ended(f"the ranks ended without a matrix: {last_words}")
        return codec.loads(self_test.Matrix, file.read_text(encoding="utf-8"))


def _show_matrix(matrix: self_test.Matrix) -> None:
    from rich.console import Console
    from rich.table import Table

    curves = ("loss alone", "norm alone") if matrix.trained else ()
    table = Table("contract", "case", "mutant", "fate", *curves, "words", title="Kill matrix", title_justify="left")
    styles: dict[Fate, str] = {"killed": "green", "void": "yellow"}
    for kill in matrix.kills:
        words = kill.words if kill.fate != "killed" else kill.words.removeprefix("violated: ")
        style = styles.get(kill.fate, "bold red")
        told = (kill.loss or "—", kill.norm or "—") if curves else ()
        table.add_row(kill.of, kill.case, kill.mutant, f"[{style}]{kill.fate}[/]", *told, short(words, quote=False))
    Console().print(table)
    for result in matrix.failing:
        click.secho(f"baseline: {result.item} {result.outcome}: {result.words}", fg="red")
    for id in matrix.unguarded:
        click.secho(f"no mutant: {id}", fg="red")
    killed = sum(kill.fate == "killed" for kill in matrix.kills)
    line = f"{matrix.word.upper()}: {killed} of {len(matrix.kills)} mutants killed for their words, "
    line += f"{len(matrix.baseline)} baseline judgements, {len(matrix.bugs)} catalogued bugs embodied"
    if matrix.trained:
        line += f"; {matrix.unseen} of {len(matrix.trained)} that trained invisible to the loss"
    click.secho(line, fg=COLOURS.get(matrix.word, "red"), bold=True)

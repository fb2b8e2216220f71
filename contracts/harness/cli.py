"""`lanegate`: check a stack, read the law, emit a launch, read or replay a recorded run, test the suite itself.

Exit codes: 0 conformant, 1 violated, 2 usage, 3 incomplete, 4 broken, 5 nothing ran.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import click

from contracts.contract import LAW, Contract
from contracts.court import deviations as deviations_file
from contracts.court import record, report
from contracts.court.judge import DEADLINE_S
from contracts.court.party import Broken, OnTheStand
from contracts.court.verdict import verdict
from contracts.harness import parties, profiles
from contracts.harness.gate import suite_version, today
from contracts.harness.supervisor import Ended, supervised
from contracts.spec import codec
from contracts.spec.errors import NotOffered, Refused, Unreachable, refuse
from contracts.spec.launch import Lane, shell
from contracts.spec.records import EXIT_CODES, FORMS, USAGE_ERROR, Fate, Form, Word

P = ParamSpec("P")
SUITE = Path(__file__).with_name("suite.py")
_FILES: dict[Form, str] = {
    "junit": "junit.xml",
    "markdown": "summary.md",
    "html": "report.html",
    "json": "verdict.json",
}
_COLOURS: dict[Word, str] = {"conformant": "green", "incomplete": "yellow", "broken": "magenta"}


def _one_clear_error(command: Callable[P, None]) -> Callable[P, None]:
    """Bad input ends in its refusals and exit code 2; a party that cannot be reached in its reason and 3; one that
    breaks in its words and 4."""

    @wraps(command)
    def guarded(*arguments: P.args, **named: P.kwargs) -> None:
        sys.exit(_told(lambda: command(*arguments, **named)))

    return guarded


@contextlib.contextmanager
def _the_stack_talks_to_stderr() -> Iterator[None]:
    """Standard output is the report's, whatever a stack prints while it is loaded or asked, in Python or below it."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _told(work: Callable[[], int | None]) -> int:
    try:
        return work() or 0
    except Refused as refused:
        for refusal in refused.refusals:
            click.echo(f"lanegate: {refusal}", err=True)
        return USAGE_ERROR
    except NotOffered as declined:
        click.echo(f"lanegate: not offered: {declined}", err=True)
        return USAGE_ERROR
    except Unreachable as error:
        click.echo(f"lanegate: {error}", err=True)
        return EXIT_CODES["incomplete"]
    except (Broken, Ended) as error:
        click.echo(f"lanegate: {error}", err=True)
        return EXIT_CODES["broken"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(suite_version(), prog_name="lanegate")
def main() -> None:
    """The conformance suite that gates merges to hybrid LLM training stacks."""


@main.command()
@click.option("--stack", default="reference", show_default=True, help="A name, or package.module:Name.")
@click.option("--with", "assistants", multiple=True, metavar="PARTY",
              help="Who answers what the stack does not, such as a launcher's parser; `none` for nobody.")  # fmt: skip
@click.option("--profile", default="launch", show_default=True,
              help="launch, unit, gpu, dist, full, or a comma-separated list of ids, prefixes and items.")  # fmt: skip
@click.option("--deviations", type=click.Path(path_type=Path), help="TOML file of declared deviations.")
@click.option("--report", "folder", type=click.Path(path_type=Path, file_okay=False), default=Path("reports/last"),
              show_default=True, help="Folder for the record and its renderings.")  # fmt: skip
@click.option("--form", type=click.Choice(FORMS), default="terminal", show_default=True, help="What is printed.")
@click.option("--deadline", type=click.FloatRange(min=0, min_open=True), default=DEADLINE_S, show_default=True,
              metavar="SECONDS", help="What one case, and loading the stack, may take.")  # fmt: skip
@_one_clear_error
def check(
    stack: str, assistants: tuple[str, ...], profile: str, deviations: Path | None, folder: Path, form: Form,
    deadline: float,
) -> None:  # fmt: skip
    """Put a stack under test and print the verdict."""

    def work() -> int:
        _read_law()
        profiles.plan(LAW, profile)  # refuse bad input before anything is written
        if deviations is not None:
            deviations_file.load(deviations)
        if folder.exists():  # an older run must not be read as this one, whatever happens now
            record.make_folder(folder, _FILES.values())
        with _the_stack_talks_to_stderr():
            subject = parties.load(stack, deadline_s=deadline)
            parties.assistants(subject, assistants, quick=False)
        record.make_folder(folder)
        return _run_suite(stack, assistants, profile, deviations, folder, form, deadline)

    sys.exit(supervised(lambda: _told(work)))


def _run_suite(
    stack: str, assistants: tuple[str, ...], profile: str, deviations: Path | None, folder: Path, form: Form,
    deadline: float,
) -> int:  # fmt: skip
    import pytest

    arguments = [
        str(SUITE), "--gate", f"--stack={stack}", f"--profile={profile}", f"--report={folder}",
        f"--deadline={deadline}",
        *(f"--with={name}" for name in assistants), *([f"--deviations={deviations}"] if deviations else []),
        # Nothing of the place we are called from: neither its ini file, nor its conftest, nor its plugins.
        "-c", os.devnull, f"--rootdir={SUITE.parent}", "--noconftest", "--disable-plugin-autoload",
        "-p", "contracts.harness.plugin", "-p", "no:cacheprovider", "-p", "no:terminal",
    ]  # fmt: skip
    for inherited in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(inherited, None)
    with _the_stack_talks_to_stderr():
        status = pytest.main(arguments)
    if not (folder / "run.jsonl").exists():
        raise Ended(f"the run ended early (pytest said {status!r}); {folder} holds what came in")
    run, closing = record.load(folder)
    judged = verdict(run, today())
    for rendering, name in _FILES.items():
        (folder / name).write_text(report.render(run, judged, rendering), encoding="utf-8")
    _print(report.render(run, judged, form), closing.word, form)
    if form == "terminal":
        click.echo(f"report: {folder / 'report.html'} (run.jsonl, junit.xml, summary.md, verdict.json beside it)")
    return judged.exit_code


@main.command(name="list")
@click.option("--profile", default="full", show_default=True, help="As for `check`.")
@click.option("--cases", is_flag=True, help="List every case.")
@_one_clear_error
def list_(profile: str, cases: bool) -> None:
    """List the promises of the law with their state."""
    _read_law()
    planned = profiles.plan(LAW, profile)
    for id, statement in planned.promises.items():
        entry = LAW.contracts.get(id) or LAW.untested[id]
        if isinstance(entry, Contract):
            state = f"{len(entry.cases)} cases, {len(LAW.mutants_of(id))} mutants"
        else:
            state = f"untested: {entry.why}"
        click.echo(f"{id:<9} {entry.tier:<5} {statement.promise}  [{state}]")
        for item in planned.items if cases else ():
            if item.id == id and item.case:
                click.echo(f"{'':<16}{item}")


@main.command()
@click.argument("id")
@_one_clear_error
def explain(id: str) -> None:
    """What a promise says, why it exists, its cases, its mutants, and how to see it fail."""
    import difflib

    _read_law()
    if id not in {*LAW.ids()}:
        near = difflib.get_close_matches(id, list(LAW.ids()), n=3) or list(LAW.ids())[:3]
        raise refuse("id", id, "is not in the law", f"the nearest are {', '.join(near)}")
    click.secho(id, bold=True)
    if id in LAW.untested:
        untested = LAW.untested[id]
        click.echo(f"{untested.promise}\n\nNot judged yet: {untested.why}")
        return
    contract = LAW.contracts[id]
    click.echo(contract.promise)
    if contract.story:
        click.echo(f"\n{contract.story}")
    click.echo(f"\nsource  {contract.source}\nasks    {', '.join(contract.asks)}\ntier    {contract.tier}")
    click.echo(f"judged  {contract.check.__module__}.{contract.check.__name__}")
    click.echo("\ncases")
    for case, arguments in contract.cases.items():
        click.echo(f"  {case}: {', '.join(_short(argument) for argument in arguments)}")
    click.echo("\nmutants it must kill")
    for mutant in LAW.mutants_of(id):
        bugs = f" ({', '.join(mutant.bugs)})" if mutant.bugs else ""
        click.echo(f"  {mutant.name}{bugs}: {mutant.story.splitlines()[0]}\n    in {mutant.case}, says: {mutant.says}")
    click.echo(f"\nreproduce\n  lanegate check --stack reference --profile {id}\n  lanegate selftest --only {id}")


@main.command()
@click.argument("recipe")
@click.option("--stack", default="reference", show_default=True)
@click.option("--mode", type=click.Choice(["nemo_native", "author_dp"]), help="Default: the recipe's first.")
@click.option("--regime", type=click.Choice(["megatron", "fsdp2"]), default="megatron", show_default=True)
@click.option("--nodes", type=int, default=1, show_default=True)
@click.option("--gpus", type=int, default=8, show_default=True, help="GPUs of one node.")
@click.option("--rendezvous", metavar="HOST:PORT", help="c10d endpoint; needed for more than one node.")
@click.option("--run", "run_name", default="run", show_default=True, help="Name of the run and rendezvous id.")
@click.option("--compile", "compile_", type=click.Choice(["none", "regional"]), default="none", show_default=True)
@click.option("--set", "changes", multiple=True, metavar="FIELD=VALUE", help="Override one field of the recipe.")
@click.option("--acknowledge", multiple=True, metavar="NAME", help="Accept a deprecated name.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of shell text.")
@_one_clear_error
def emit(
    recipe: str, stack: str, mode: Any, regime: Any, nodes: int, gpus: int, rendezvous: str | None, run_name: str,
    compile_: Any, changes: tuple[str, ...], acknowledge: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Print the command and environment that start RECIPE: shell-safe text, or JSON."""
    with _the_stack_talks_to_stderr():
        subject = parties.load(stack)
    party: Any = OnTheStand(subject, (), ("preset", "launch"))
    if party.missing:
        raise NotOffered(f"{subject.name} does not offer {', '.join(party.missing)}")
    settled = party.preset(recipe, acknowledge)
    overrides = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise refuse("--set", change, "has no =", "write field=value")
        if key in overrides:
            raise refuse("--set", key, "is given twice", "give each field once")
        overrides[key] = value
    lane = Lane(
        mode=mode or settled.modes[0], regime=regime, nodes=nodes, gpus=gpus, rendezvous=rendezvous, run=run_name,
        compile=compile_, overrides=overrides, inherited=dict(os.environ),
    )  # fmt: skip
    launch = party.launch(settled, lane)
    if as_json:
        body = codec.encode(launch) | {"command": list(launch.command), "shell": shell(launch)}
        click.echo(json.dumps(body, indent=2))
        return
    for given_up in launch.gives_up:
        click.echo(f"# this lane gives up: {given_up}")
    click.echo(shell(launch))


@main.command(name="report")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--form", type=click.Choice(FORMS), default="terminal", show_default=True)
@_one_clear_error
def report_(run: Path, form: Form) -> None:
    """Print a recorded run as text, JUnit, Markdown (for a step summary), HTML or JSON."""
    recorded, closing = record.load(run)
    judged = verdict(recorded, _day(closing.finished))
    _print(report.render(recorded, judged, form), judged.word, form)
    sys.exit(judged.exit_code)


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--as-of", metavar="DATE", help="Judge as on this day instead of today (deviations expire).")
@click.option("--deviations", type=click.Path(path_type=Path), help="Judge with these instead of the recorded ones.")
@_one_clear_error
def replay(run: Path, as_of: str | None, deviations: Path | None) -> None:
    """Judge a recorded run again, offline, without the stack."""
    recorded, closing = record.load(run)
    if deviations is not None:
        from dataclasses import replace

        recorded = replace(recorded, deviations=deviations_file.load(deviations))
    try:
        day = datetime.date.fromisoformat(as_of) if as_of else today()
    except ValueError:
        raise refuse("--as-of", as_of, "is not a date", "write YYYY-MM-DD") from None
    judged = verdict(recorded, day)
    _print(report.render(recorded, judged, "terminal"), judged.word, "terminal")
    if judged.word != closing.word:
        click.echo(f"the record said {closing.word} on {closing.finished}; judged as of {day} it is {judged.word}")
    sys.exit(judged.exit_code)


@main.command()
@click.option("--only", metavar="PREFIX", help="Only mutants of ids that begin so.")
@click.option("--report", "folder", type=click.Path(path_type=Path, file_okay=False), help="Write kills.json there.")
@click.option("--with", "assistants", multiple=True, metavar="PARTY", help="As for `check`.")
@_one_clear_error
def selftest(only: str | None, folder: Path | None, assistants: tuple[str, ...]) -> None:
    """Put every mutant before the law and print the kill matrix."""
    from contracts.harness import selftest as self_test

    _read_law()
    law = self_test.part_of(LAW, [id for id in LAW.contracts if id.startswith(only or "")])
    if not law.contracts:
        raise refuse("--only", only, "selects no promise", "give an id or the beginning of one")
    subject = parties.load("reference")
    helping = [party for _, party in parties.assistants(subject, assistants, quick=False)]
    matrix = self_test.run(law, helping)
    _print_matrix(matrix)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "kills.json").write_text(json.dumps(codec.encode(matrix), indent=1) + "\n", encoding="utf-8")
    sys.exit(EXIT_CODES[matrix.word])


def _print_matrix(matrix: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("contract", "case", "mutant", "fate", "words", title="Kill matrix", title_justify="left")
    styles: dict[Fate, str] = {"killed": "green", "void": "yellow"}
    for kill in matrix.kills:
        words = kill.words if kill.fate != "killed" else kill.words.removeprefix("violated: ")
        style = styles.get(kill.fate, "bold red")
        table.add_row(kill.of, kill.case, kill.mutant, f"[{style}]{kill.fate}[/]", _short(words, quote=False))
    Console().print(table)
    for result in matrix.failing:
        click.secho(f"baseline: {result.item} {result.outcome}: {result.words}", fg="red")
    for id in matrix.unguarded:
        click.secho(f"no mutant: {id}", fg="red")
    killed = sum(kill.fate == "killed" for kill in matrix.kills)
    line = f"{matrix.word.upper()}: {killed} of {len(matrix.kills)} mutants killed for their words, "
    line += f"{len(matrix.baseline)} baseline judgements, {len(matrix.bugs)} catalogued bugs embodied"
    click.secho(line, fg=_COLOURS.get(matrix.word, "red"), bold=True)


def _print(text: str, word: Word, form: Form) -> None:
    """Print a rendering; on a terminal its last line, the verdict, is coloured."""
    if form != "terminal":
        click.echo(text, nl=False)
        return
    body, _, last = text.rstrip("\n").rpartition("\n")
    click.echo(body)
    click.secho(last, fg=_COLOURS.get(word, "red"), bold=True)


def _read_law() -> None:
    import contracts.checks
    import contracts.mutants

    assert contracts.checks
    assert contracts.mutants


def _day(moment: str) -> datetime.date:
    return datetime.datetime.fromisoformat(moment).date()


def _short(value: object, *, quote: bool = True) -> str:
    text = repr(value) if quote else str(value).replace("\n", " ")
    return text if len(text) <= 160 else f"{text[:150]}…"

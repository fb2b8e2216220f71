"""`coverage` reports how much of a profile a stack answers, and why it does not answer the rest."""

import json
import subprocess
import tempfile
from pathlib import Path

import click

from contracts.contract import LAW
from contracts.court import coverage as share_of
from contracts.court import pairs, profiles, record
from contracts.court.verdict import verdict
from contracts.harness.commands._errors import one_clear_error
from contracts.harness.commands.check import not_empty
from contracts.harness.commands.runs import day_of
from contracts.harness.families import read_checks
from contracts.harness.supervisor import Ended
from contracts.spec import Refusals
from contracts.spec.interpreter import python


@click.command()
@click.option("--stack", help="A name, or package.module:Name: judge it now. It may take as long as `check`.")
@click.option("--record", "records", multiple=True, type=click.Path(path_type=Path), metavar="RUN",
              help="A recorded run or its folder, in place of --stack; may be repeated.")  # fmt: skip
@click.option("--profile", callback=not_empty, show_default=f"{profiles.ONE_PROCESS}; with --ranks: dist",
              help="As for `check`. With --record: count only this part of it.")  # fmt: skip
@click.option("--ranks", type=click.IntRange(min=2), metavar="N", help="As for `check`.")
@click.option("--pairs", "together", is_flag=True, help="In place of a stack: which features the contracts ask for "
              "together, two by two, and the axes of parallelism three by three.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print a list with one object a run; with --pairs one a size.")
@one_clear_error
def coverage(
    stack: str | None, records: tuple[Path, ...], profile: str | None, ranks: int | None, together: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Count what a stack answers, by family, and by kind of reason what it does not."""
    found = Refusals()
    if together:
        for option, given in (("--stack", stack), ("--record", records), ("--profile", profile), ("--ranks", ranks)):
            found.unless(not given, option, given, "does not go with --pairs", "leave one of the two out")
        found.raise_any()
        _show_pairs(as_json)
        return
    found.unless((stack is None) != (not records), "coverage", stack or len(records),
                 "wants --stack or --record, and one of them", "give the stack, or the folder of a report")  # fmt: skip
    found.unless(not records or ranks is None, "ranks", ranks, "does not go with --record",
                 "leave it out: a record has its own")  # fmt: skip
    found.raise_any()
    part = None
    if records and profile is not None:
        read_checks()
        part = share_of.Part(profile=profile, plan=profiles.plan(LAW, profile))
    with tempfile.TemporaryDirectory() as folder:
        if stack is not None:
            _judge(stack, profile or ("dist" if ranks else profiles.ONE_PROCESS), ranks, folder)
            records = (Path(folder),)
        runs = [record.load(each) for each in records]
    counted = [share_of.coverage(run, verdict(run, day_of(closing.finished)), part) for run, closing in runs]
    if as_json:
        click.echo(json.dumps([each.as_json() for each in counted], indent=2))
        return
    click.echo("\n".join(share_of.table(each) for each in counted), nl=False)


def _show_pairs(as_json: bool) -> None:
    read_checks()
    contracts = LAW.contracts.values()
    if not as_json:
        click.echo(pairs.table(contracts))
        return
    asked = pairs.asked_together(contracts)
    click.echo(json.dumps([pairs.pairs(asked).as_json(), pairs.pairs(asked, pairs.AXES, 3).as_json()], indent=2))


def _judge(stack: str, profile: str, ranks: int | None, folder: str) -> None:
    """Let `check` judge the stack; what it prints is not this command's."""
    words = python("-m", "rankproof", "check", "--stack", stack, "--profile", profile,
                   "--report", folder, *(["--ranks", str(ranks)] if ranks else []))  # fmt: skip
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if not (Path(folder) / "run.jsonl").exists():
        raise Ended(f"there is no verdict, so nothing is counted: {(done.stderr or done.stdout).strip()}")

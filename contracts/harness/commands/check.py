"""`check` puts a stack under test."""

import contextlib
import importlib.util
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from contracts.contract import LAW
from contracts.court import deviations as deviations_file
from contracts.court import profiles, record, report, shards
from contracts.court.baseline import unlike
from contracts.court.device import refuse_absent
from contracts.court.judge import DEADLINE_S
from contracts.court.verdict import verdict
from contracts.harness import affected_items, checkout, kill_matrix, law_release, parties, power, torchrun
from contracts.harness import output as output_of
from contracts.harness.commands import _change
from contracts.harness.commands._backend_option import over_backend, settle
from contracts.harness.commands._completion import complete_items, complete_stacks
from contracts.harness.commands._device_option import on_device, say_default
from contracts.harness.commands._errors import (
    AS_JSON,
    VERBOSE,
    one_clear_error,
    print_report,
    terminal_width,
    told,
    whoever_listens,
)
from contracts.harness.families import read_checks
from contracts.harness.gate import Gate, device_of, of_numbers, today
from contracts.harness.output import Output
from contracts.harness.progress import Progress
from contracts.harness.supervisor import Ended, supervised
from contracts.spec import Party, Refusals, Refused, Unreachable, launchers, refuse
from contracts.spec.interpreter import python
from contracts.spec.records import EXIT_CODES, FORMS, USAGE_ERROR, Form, Header, Plan, Result

LONGEST_S = 1e6


def a_time(context: click.Context, parameter: click.Parameter, value: float) -> float:
    """An option's seconds; `nan` is within every range."""
    if math.isnan(value):
        raise click.BadParameter("nan is not a time", context, parameter)
    return value


def not_empty(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """An option's words. An empty one comes from a variable that CI has not set, and would mean the default."""
    if value is not None and not value.strip(" ,"):
        raise click.BadParameter(f"{value!r} names nothing; leave the option out for the default", context, parameter)
    return value


SUITE = Path(__file__).parents[1] / "suite.py"


@click.command()
@click.option("--stack", default="reference", show_default=True, help="A name, or package.module:Name.",
              shell_complete=complete_stacks)  # fmt: skip
@click.option("--at", metavar="PATH[@REV]",
              help="The checkout whose code answers: its folder, or a revision of it in a worktree. Of "
                   "[PATH@]BASE..HEAD or PATH..PATH both are judged; the verdict is about the change.")  # fmt: skip
@click.option("--python", metavar="PATH", help="The interpreter that judges, with the packages that the stack needs.")
@click.option("--isolated", is_flag=True,
              help="Run package.module:Name in a process of its own, apart from the one that judges it.")  # fmt: skip
@click.option("--with", "assistants", multiple=True, metavar="NAME",
              help="Who answers questions that the stack does not, as a launcher's parser; or `none`.")  # fmt: skip
@click.option("--profile", show_default=f"{profiles.DEFAULT}; with --ranks: dist", callback=not_empty,
              help=f"A comma-separated list of {', '.join(profiles.NAMED)}, ids, prefixes, single cases.",
              shell_complete=complete_items)  # fmt: skip
@click.option("--ranks", type=click.IntRange(min=2), metavar="N",
              help="Judge on N ranks of this machine, which torchrun starts: the dist tier.")  # fmt: skip
@over_backend
@on_device
@click.option("--deviations", type=click.Path(path_type=Path), help="TOML file of declared deviations.")
@click.option("--baseline", type=click.Path(path_type=Path), metavar="RUN",
              help="An earlier record or its folder: what was judged or broken there and is not judged now is red; "
                   "without a record there the verdict is incomplete.")  # fmt: skip
@click.option("--changed", metavar="RANGE",
              help="A range as for `git diff` (main..): contracts that it can affect are judged first.")  # fmt: skip
@click.option("--shard", metavar="I/N",
              help="Judge the Ith of N shares of the plan, one a machine; `merge` draws the verdict.")  # fmt: skip
@click.option("--law", metavar="RELEASE",
              help="A frozen set, such as 2026.11: what was added later is judged and not counted.")  # fmt: skip
@click.option("--report", "folder", type=click.Path(path_type=Path, file_okay=False), default=Path("reports/last"),
              show_default=True, help="Folder for the record and its renderings.")  # fmt: skip
@click.option("--form", type=click.Choice(FORMS), default="terminal", show_default=True, help="What is printed.")
@click.option("--deadline", type=click.FloatRange(min=0, min_open=True, max=LONGEST_S), callback=a_time,
              default=DEADLINE_S, show_default=True, metavar="SECONDS",
              help="Time limit of one case, and of loading the stack.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Processes that share the contracts of one process; more than one needs pytest-xdist.")  # fmt: skip
@click.option("--proof", "given", type=click.Path(path_type=Path), metavar="FILE",
              help="kills.json of `selftest`, or its folder: contracts that failed there are not judged.")  # fmt: skip
@click.option("--selftest", "prove", is_flag=True, help="First judge the suite's own mutants.")
@click.option("--json", "as_json", is_flag=True, help=AS_JSON)
@click.option("-v", "--verbose", is_flag=True, help=VERBOSE)
@one_clear_error
def check(
    stack: str, at: str | None, python: str | None, isolated: bool, assistants: tuple[str, ...], profile: str | None,
    ranks: int | None, backend: str, deviations: Path | None, baseline: Path | None, changed: str | None,
    shard: str | None, law: str | None, folder: Path, form: Form, deadline: float, jobs: int, given: Path | None,
    prove: bool, as_json: bool, verbose: bool,
) -> None:  # fmt: skip
    """Put a stack under test and print the verdict."""
    if python is not None:
        checkout.in_interpreter(python, sys.argv[1:])
    for name in (stack, *(each for each in assistants if each != parties.NO_ONE)):
        parties.refuse_unknown(name)
    launchers.leave(os.environ)  # inside a job, too, this command starts what it judges by itself
    if at is not None and (sides := checkout.sides(at)) is not None:
        sys.exit(_change.judged(sides, folder, "json" if as_json else form, baseline))
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # on tensors as small as these a second thread only waits
    form = "json" if as_json else form
    profile = profile or ("dist" if ranks else profiles.DEFAULT)
    named, stack = stack, _apart(stack, ranks) if isolated else stack
    arguments = [
        str(SUITE), "--rankproof-gate", f"--rankproof-report={folder}", f"--rankproof-stack={stack}",
        f"--rankproof-profile={profile}", f"--rankproof-deadline={deadline}",
        *(f"--rankproof-with={name}" for name in assistants),
        *([f"--rankproof-deviations={deviations}"] if deviations else []),
        *([f"--rankproof-at={at}"] if at else []),
        *([f"--rankproof-baseline={baseline}"] if baseline else []),
        *([f"--rankproof-changed={changed}"] if changed else []),
        *([f"--rankproof-law={law}"] if law else []), *([f"--rankproof-shard={shard}"] if shard else []),
        *([f"--rankproof-proof={given}"] if given else []), *(["--rankproof-selftest"] if prove else []),
        *_shared_by(jobs, in_order=bool(changed)),
    ]  # fmt: skip

    def work() -> int:
        refuse_absent()
        carried = settle(backend, ranks)
        read_checks(*profiles.beginnings(profile))
        plan = _planned(profile, ranks, jobs, prove=prove)
        _refuse_unreadable(deviations, given, law, changed)
        _ = None if shard is None else shards.share(plan.items, shard)
        earlier = None if baseline is None else _earlier(baseline, folder)
        if folder.exists():  # an older run must not be read as this one, whatever happens now
            record.make_folder(folder, (*report.FILES, output_of.FILE))
        with output.taken():
            subject = _loaded(stack, profile, plan, deadline, folder)
            if root is not None:
                checkout.refuse_other(subject, root, str(at))
            parties.assistants(subject, assistants, quick=False)
            power.refuse_without(numbers=False)  # with the stack loaded; of numbers each process that judges shows it
            if earlier is not None:
                unlike(earlier, subject.name, profile, ranks or 1, device_of(plan, ranks))
        record.make_folder(folder)
        if ranks is None:
            how = _run_in_one_process(arguments, output)
        else:
            how = torchrun.run(ranks, [*arguments, f"--dist-backend={carried}", *APART], folder)
        return _verdict(folder, how)

    output, code, older = Output(folder), EXIT_CODES["broken"], _there(folder / "run.jsonl")
    try:
        with record.only_writer(folder), checkout.put_first(named, at) as root, _or_so_far(folder, form, verbose):
            code = supervised(lambda: told(work), watched(output, folder / record.PART), deadline_s=deadline)
            _confirm(folder, code)
            if _there(folder / "run.jsonl") not in (None, older):
                _show(folder, form, verbose)
    except Ended:
        code = EXIT_CODES["broken"]
        raise
    finally:
        ended = code == EXIT_CODES["broken"] or not (folder / "run.jsonl").exists()
        output.end(ended=ended, red=code != 0)
    sys.exit(code)


@contextlib.contextmanager
def watched(output: Output, written: Path) -> Iterator[None]:
    """Keep the output of a run and show how far it is by the lines that it has `written`."""
    with output, Progress(written):
        yield


def _planned(profile: str, ranks: int | None, jobs: int, *, prove: bool) -> Plan:
    """What is judged. Bad input is refused before anything is written."""
    plan = profiles.plan(LAW, profile)
    if ranks is None:
        say_default(numbers=of_numbers(plan))
        return plan
    found, beside = Refusals(), "does not go with --ranks"
    found.unless(jobs == 1, "jobs", jobs, beside, "leave it out: the ranks are processes")
    found.unless(not prove, "selftest", prove, beside, "run `rankproof selftest --profile dist`")
    found.raise_any()
    return profiles.of_several_ranks(LAW, plan)


def _refuse_unreadable(deviations: Path | None, given: Path | None, law: str | None, changed: str | None) -> None:
    """Refuse what cannot be read, all of it and before anything is written."""
    found = Refusals()
    readers: tuple[tuple[Callable[[Any], object], object], ...] = (
        (lambda _: record.key(), ""), (deviations_file.load, deviations), (kill_matrix.load, given),
        (law_release.load, law), (affected_items.changed, changed),
    )  # fmt: skip
    for read, what in readers:
        try:
            _ = None if what is None else read(what)
        except Refused as refused:
            found.extend(refused)
    found.raise_any()


def _apart(stack: str, ranks: int | None) -> str:
    """The stack of a command that serves it.

    Raises:
        Refused: where it cannot be served, with every reason.
    """
    found = Refusals()
    served = ":" in stack and not stack.startswith("launched:")
    if not served and not stack.startswith("launched:"):
        found.add("--isolated", stack, "is a stack of the suite itself", "leave it out, or give package.module:Name")
    if ranks is not None:
        found.add("--isolated", ranks, "does not go with --ranks: the ranks hold the stack", "leave one of them out")
    found.raise_any()
    return f"launched:{shlex.join(python('-m', 'contracts.stacks.serve', stack))}" if served else stack


def _loaded(stack: str, profile: str, plan: Plan, deadline: float, folder: Path) -> Party:
    """The stack.

    Raises:
        Unreachable: where it cannot be loaded. The report says so: everything was planned, and nothing asked.
    """
    try:
        return parties.load(stack, deadline_s=deadline)
    except Unreachable as error:
        if checked := [item for item in plan.items if item.id not in LAW.untested]:
            record.make_folder(folder)
            gate = Gate(subject=parties.Absent(stack), origin=stack, assistants=(), profile=profile, plan=plan)
            gate.open(folder)
            for item in checked:
                gate.add(Result(id=item.id, case=item.case, outcome="not run", words=str(error)))
            gate.close()
            _verdict(folder, str(error))
        raise


def _confirm(folder: Path, code: int) -> None:
    """Refuse a verdict that the record does not bear out. Only the record can be read again, and this process has never
    run a line of the stack.

    Raises:
        Ended: where there is no record and the verdict is one on a stack, or where they differ.
    """
    if code == USAGE_ERROR:
        return  # nothing was judged, and an older record may be there
    if not (folder / "run.jsonl").exists():
        if code in (EXIT_CODES["conformant"], EXIT_CODES["violated"]):
            raise Ended(f"the process said exit code {code} and left no record in {folder}")
        return
    recorded, _ = record.load(folder)
    judged = verdict(recorded, today())
    if judged.exit_code != code:
        raise Ended(f"the process said exit code {code}, and its record is {judged.word}")


def _earlier(baseline: Path, folder: Path) -> Header | None:
    """The header of the record that this run is compared with; None where there is none, as the verdict will say.

    Raises:
        Refused: when it cannot be read, or lies in the folder that this run empties.
    """
    if folder.resolve() in (baseline.resolve(), *baseline.resolve().parents):
        raise refuse("baseline", str(baseline), f"lies in {folder}, where this run writes", "keep it in another folder")
    return None if record.absent(baseline) else record.load(baseline)[0].header


def _shared_by(jobs: int, *, in_order: bool) -> list[str]:
    """The words that let several processes judge; `in_order` those that come first, before others begin.

    Raises:
        Unreachable: where pytest-xdist is not installed.
    """
    if jobs == 1:
        return []
    if importlib.util.find_spec("xdist") is None:
        raise Unreachable("--jobs needs pytest-xdist: pip install pytest-xdist")
    return ["-p", "xdist", "-n", str(jobs), "--dist", "load" if in_order else "worksteal"]


# Nothing of the place we are called from: neither its ini file, nor its conftest, nor its plugins.
APART = (
    "-c", os.devnull, f"--rootdir={SUITE.parent}", "--noconftest",
    "-p", "contracts.harness.plugin", "-p", "no:cacheprovider",
)  # fmt: skip


def _run_in_one_process(arguments: list[str], output: Output) -> str:
    """Run the suite; returns how pytest ended."""
    import pytest

    for inherited in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(inherited, None)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # the option of that name came with pytest 8.4
    with output.taken():
        status = pytest.main([*arguments, *APART, "-p", "no:terminal"])
    return f"pytest said {status!r}"


def _verdict(folder: Path, how: str) -> int:
    """Read the record of a run and render it; `how` is how the run ended, for where there is none."""
    if not (folder / "run.jsonl").exists():
        raise Ended(f"the run ended early ({how}); {folder} holds what came in")
    try:
        run, _ = record.load(folder)
    except Refused as error:  # no bad input: this run has written it
        raise Ended(f"its own record cannot be read: {error}") from None
    judged = verdict(run, today())
    for name, text in report.files(run, judged).items():
        (folder / name).write_text(text, encoding="utf-8")
    return judged.exit_code


def _there(file: Path) -> tuple[int, int] | None:
    """Which record a file is; None for none."""
    with contextlib.suppress(OSError):
        at = file.stat()
        return at.st_ino, at.st_mtime_ns
    return None


def _show(folder: Path, form: Form, verbose: bool) -> None:
    """Print what a run found. The process that judged has ended, and with it the line of progress."""
    run, closing = record.load(folder)
    if form == "terminal":  # the verdict is the last line
        beside = ", ".join(["run.jsonl", *(name for name in report.FILES if name != "report.html")])
        with whoever_listens():
            click.echo(f"report: {folder / 'report.html'} ({beside} beside it)")
    print_report(report.render(run, verdict(run, today()), form, verbose, terminal_width()), closing.word, form)


@contextlib.contextmanager
def _or_so_far(folder: Path, form: Form, verbose: bool) -> Iterator[None]:
    """If the run ends without a verdict, show what it found, and leave that in every form beside the record's part.

    Only a terminal is shown it: the exit code is another than that of the incomplete verdict, and a script takes the
    two for one.
    """
    older = _there(folder / record.PART)
    try:
        yield
    except Ended:
        if _there(folder / record.PART) not in (None, older):
            _show_part(folder, form, verbose)
        raise


def _show_part(folder: Path, form: Form, verbose: bool) -> None:
    with contextlib.suppress(Refused):  # nothing had been planned
        run, _ = record.load_any(folder)
        judged = verdict(run, today())
        with contextlib.suppress(OSError):  # a full disk, perhaps
            for name, text in report.files(run, judged).items():
                (folder / name).write_text(text, encoding="utf-8")
        if form == "terminal":
            print_report(report.render(run, judged, form, verbose, terminal_width()), judged.word, form)

"""`selftest` puts the suite itself under test."""

import contextlib
import json
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from contracts.contract import LAW, Law, Tier
from contracts.court import pairs, record
from contracts.court.device import refuse_absent
from contracts.court.profiles import nearest
from contracts.harness import detection, kill_matrix, parties, torchrun
from contracts.harness import output as output_of
from contracts.harness import selftest as self_test
from contracts.harness.commands._completion import complete_items
from contracts.harness.commands._device_option import on_device
from contracts.harness.commands._errors import COLOURS, one_clear_error, short, told
from contracts.harness.commands._operators import operators
from contracts.harness.commands.check import APART, SUITE, watched
from contracts.harness.families import read_checks
from contracts.harness.garbage_collection import collect_seldom
from contracts.harness.output import Output
from contracts.harness.progress import WATCHED, Told
from contracts.harness.supervisor import Ended, Stopped, supervised
from contracts.instruments import accelerator
from contracts.spec import Refusals, Refused, Unreachable, codec, launchers, refuse
from contracts.spec.records import EXIT_CODES, Fate

TRIALS = SUITE.with_name("dist_selftest_suite.py")
_WIDE = 500
PAIRS = "pairs.txt"
TRIALS_LOST = 20  # so many mutants may end a rank before the matrix is given up


@click.command()
@click.option("--only", "said", multiple=True, metavar="A,B", help="Only mutants of ids that begin so; a case in "
              "brackets is left off. May be repeated.", shell_complete=complete_items)  # fmt: skip
@click.option("--profile", type=click.Choice(["unit", "gpu", "dist"]), default="unit", show_default=True,
              help="The tier: contracts of one process, of one GPU, or of several ranks.")  # fmt: skip
@click.option("--ranks", type=click.IntRange(min=2), default=4, show_default=True, metavar="N",
              help="For dist: ranks of this machine, which torchrun starts.")  # fmt: skip
@click.option(
    "--report",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write kills.json, detection.md and pairs.txt there, and print the figure of what lies there.",
)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="For unit: processes that share the contracts.")  # fmt: skip
@click.option("--with", "assistants", multiple=True, metavar="NAME", help="As for `check`.")
@on_device
@click.option("--once", is_flag=True, help="With --report: do not run again if the matrix there was made with the "
              "same files, packages, CPU and settings.")  # fmt: skip
@click.option("--sample", is_flag=True, help="Only one random mutant of each family, with a proof that was made "
              "elsewhere.")  # fmt: skip
@click.option("--operators", "drawn", type=click.IntRange(min=1), metavar="N",
              help="In place of the mutants: N changes of the reference's source, drawn over its files. --only takes "
              "contracts, for the functions that they guard, or beginnings of ids or files; --profile dist puts "
              "those that one process does not execute or see before some cases of --ranks. What was tried is in "
              "--report and is not tried again.")  # fmt: skip
@click.option("--likely", is_flag=True, help="With --operators: put each before the likeliest contracts about its "
              "file, without the half hour that records who executes which line.")  # fmt: skip
@click.option("--time", "seconds", type=click.FloatRange(min=0), metavar="S", help="With --operators: begin no further "
              "one after S seconds.")  # fmt: skip
@click.option("--figure", "given_folders", multiple=True, type=click.Path(path_type=Path, exists=True, file_okay=False),
              metavar="FOLDER", help="In place of a run: what earlier ones that lie in these folders detected, as "
              "Markdown, also into --report; may be repeated.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="With --sample or --operators: draw what was "
              "drawn with N.")  # fmt: skip
@click.option("--proof", "given", type=click.Path(path_type=Path), default=Path("shipped"), show_default=True,
              metavar="FILE", help="With --sample: the proof that it goes with.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the matrix as JSON.")
@one_clear_error
def selftest(
    said: tuple[str, ...], profile: Tier, ranks: int, folder: Path | None, jobs: int, assistants: tuple[str, ...],
    once: bool, sample: bool, drawn: int | None, likely: bool, seconds: float | None, given_folders: tuple[Path, ...],
    seed: int | None, given: Path, as_json: bool,
) -> None:  # fmt: skip
    """Judge every mutant and print the kill matrix: each contract must catch its own, in the declared words."""
    launchers.leave(os.environ)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as for `check`
    refuse_absent()
    only = _beginnings(said)
    beside = {
        "--likely": likely,
        "--once": once,
        "--jobs": jobs if jobs > 1 else None,
        "--with": assistants,
        "--time": seconds,
        "--json": as_json,
    }
    if given_folders:
        _nothing_beside("--figure", {**beside, "--sample": sample, "--operators": drawn, "--only": only})
        _show_figure(given_folders, folder)
        return
    if drawn is not None:
        _nothing_beside("--operators", {**beside, "--likely": False, "--time": None, "--sample": sample})
        several = ranks if profile == "dist" else 1
        sys.exit(
            operators(drawn, seed=seed or 0, only=only, seconds=seconds, ranks=several, folder=folder, likely=likely)
        )
    if sample:
        others = {"--report": folder, "--only": only, "--profile": profile != "unit"}
        _nothing_beside("--sample", {**beside, "--with": None, **others})
        sys.exit(_sampled(seed, given, assistants))
    _nothing_drawn(seed, seconds, likely)
    sys.exit(_whole(only, profile, ranks, folder, jobs, assistants, once, as_json))


def _whole(
    only: tuple[str, ...], profile: Tier, ranks: int, folder: Path | None, jobs: int, assistants: tuple[str, ...],
    once: bool, as_json: bool,
) -> int:  # fmt: skip
    """Every mutant of a tier; the exit code."""
    about = kill_matrix.About(
        content=kill_matrix.content(), tier=profile, only=",".join(only),
        surroundings=kill_matrix.here(threads=kill_matrix.threads(), helping=kill_matrix.helping(assistants)),
    )  # fmt: skip
    if once:
        if folder is None:
            raise refuse("--once", True, "has no --report to look into", "name a folder with --report")
        earlier = _found(folder, about)
        if earlier is not None:
            _show_matrix(earlier, as_json, folder if (folder / PAIRS).exists() else None)
            return EXIT_CODES[earlier.word]
    _forget(folder)

    def work(place: Path) -> self_test.Matrix:
        read_checks()
        law = self_test.part_of(LAW, [id for id in LAW.contracts if id.startswith(only or ("",))], profile)
        refused = Refusals()
        for each in only or ("",):
            selects = any(id.startswith(each) for id in law.contracts)
            refused.unless(selects, "--only", each, *_elsewhere(each))
        refused.raise_any()
        if profile == "gpu" and accelerator.name() is None:
            raise Unreachable("torch sees no CUDA device, which the contracts of tier gpu need")
        with contextlib.ExitStack() as quiet:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                quiet.enter_context(output.taken())
            matrix = _tried(law, profile, ranks, only, folder, jobs, assistants, place)
        if folder is not None:
            kill_matrix.write(folder, kill_matrix.Proof(about=about, matrix=matrix))
            record.unmark(folder)
            (folder / PAIRS).write_text(pairs.table(LAW.contracts.values()) + "\n", encoding="utf-8")
        return matrix

    output, code = Output(folder), EXIT_CODES["broken"]
    try:
        code, matrix = _apart(work, output, "self-test")
        if matrix is not None:
            _show_matrix(matrix, as_json, folder)
    finally:
        ended = folder is not None and not (folder / kill_matrix.FILE).exists()
        output.end(ended=ended, red=code != 0)
    return code


def _apart(work: Callable[[Path], self_test.Matrix], output: Output, what: str) -> tuple[int, self_test.Matrix | None]:
    """The exit code of a process that makes a matrix, and the matrix if there is one. The caller prints it: the line of
    progress has gone by then. `work` is given a folder, where it writes how far it is."""
    with tempfile.TemporaryDirectory() as place:
        made, watched_file = Path(place, "made.json"), Path(place, WATCHED)

        def kept() -> int:
            matrix = work(Path(place))
            made.write_text(codec.dumps(matrix), encoding="utf-8")
            return EXIT_CODES[matrix.word]

        try:
            code = supervised(lambda: told(kept), watched(output, watched_file))
        except Stopped:
            raise
        except Ended as error:
            raise Ended(f"the {what} did not finish, so it says nothing about any contract: {error}") from error
        return code, codec.loads(self_test.Matrix, made.read_text(encoding="utf-8")) if made.exists() else None


def _elsewhere(beginning: str) -> tuple[str, str]:
    """Why no contract of this tier begins so, and the remedy."""
    for tier in ("unit", "dist", "gpu"):
        if any(id.startswith(beginning) for id, each in LAW.contracts.items() if each.tier == tier):
            return f"is a contract of tier {tier}", f"add `--profile {tier}`"
    return "selects no contract", f"the nearest are {', '.join(nearest(LAW, beginning))}"


def _beginnings(said: tuple[str, ...]) -> tuple[str, ...]:
    """What `--only` names, without cases: an item of a report names its contract."""
    found = {word.partition("[")[0].strip() for each in said for word in each.split(",")} - {""}
    if said and not found:
        raise refuse("--only", ",".join(said), "names nothing", "give the beginning of an id, or leave it out")
    return tuple(sorted(found))


def _show_figure(folders: tuple[Path, ...], folder: Path | None) -> None:
    found = detection.detection(folders)
    if folder is not None:
        detection.write(folder, found)
    click.echo(detection.markdown(found), nl=False)


def _forget(folder: Path | None) -> None:
    """An older matrix must not be read as this one, whatever happens now.

    Raises:
        Refused: where there is a log that no run of the suite left.
    """
    if folder is None:
        return
    if (folder / output_of.FILE).exists() and not any(
        (folder / name).exists() for name in (record.PART, *record.WHOLE)
    ):
        problem = f"has {output_of.FILE}, which no run of rankproof left there"
        raise refuse("report", str(folder), problem, "give another folder")
    for name in (kill_matrix.FILE, output_of.FILE):
        (folder / name).unlink(missing_ok=True)


def _nothing_beside(option: str, others: Mapping[str, object]) -> None:
    refused = Refusals()
    for name, value in others.items():
        refused.unless(not value, name, value, f"does not go with {option}", "leave one of the two out")
    refused.raise_any()


def _nothing_drawn(seed: int | None, seconds: float | None, likely: bool) -> None:
    refused = Refusals()
    refused.unless(seed is None, "--seed", seed, "draws nothing without --sample or --operators", "add one of them")
    refused.unless(seconds is None, "--time", seconds, "limits nothing without --operators", "add --operators")
    refused.unless(not likely, "--likely", likely, "is about no change without --operators", "add --operators")
    refused.raise_any()


def _sampled(seed: int | None, given: Path, assistants: tuple[str, ...]) -> int:
    """Try a drawn mutant of each family and say whether there is a proof of all of them; the exit code.

    A contract that fails here is named whatever a proof from elsewhere says. That there is no proof is said and is no
    failure: this is the quick way, and it says how to make one.
    """
    seed = secrets.randbelow(1 << 16) if seed is None else seed
    try:
        words = f"proved elsewhere: {kill_matrix.load(given).words()}"
    except Refused as refused:
        words = f"not proved as a whole: {'; '.join(str(each) for each in refused.refusals)}"
    click.echo(words)

    def work(place: Path) -> self_test.Matrix:
        read_checks()
        tell = Told(place / WATCHED)
        tell.planned(len(self_test.by_family(LAW)))
        with output.taken():
            helping = [party for _, party in parties.assistants(parties.load("reference"), assistants, quick=True)]
            return self_test.sample(LAW, helping, seed, tell)

    code = EXIT_CODES["broken"]
    with tempfile.TemporaryDirectory() as folder:
        output = Output(Path(folder))
        try:
            code, matrix = _apart(work, output, "sample")
            if matrix is not None:
                _show_sample(matrix, seed)
        finally:
            output.end(ended=code == EXIT_CODES["broken"], red=False)
    return code


def _show_sample(matrix: self_test.Matrix, seed: int) -> None:
    drawn = ", ".join(f"{kill.of} by {kill.mutant}" for kill in matrix.kills)
    click.echo(f"tried here, one mutant of each family, drawn with --seed {seed}: {drawn}")
    for result in matrix.failing:
        click.secho(f"on the reference {result.item} is {result.outcome}: {result.words}", fg="red")
    for kill in (each for each in matrix.kills if each.fate != "killed"):
        words = short(kill.words, quote=False)
        click.secho(f"{kill.of}[{kill.case}] against {kill.mutant}: {kill.fate}: {words}", fg="red")
    killed = sum(kill.fate == "killed" for kill in matrix.kills)
    line = (
        f"SAMPLE {matrix.word.upper()}: {killed} of {len(matrix.kills)} drawn mutants killed with their declared words"
    )
    click.secho(line, fg=COLOURS.get(matrix.word, "red"), bold=True)


def _found(folder: Path, about: kill_matrix.About) -> self_test.Matrix | None:
    """The matrix of an earlier self-test under the same conditions, if there is one."""
    if not (folder / kill_matrix.FILE).exists():
        return None
    try:
        found = kill_matrix.load(folder)
    except Refused as refused:
        click.echo(f"again: {refused}")
        return None
    if found.about == about:
        file = folder / kill_matrix.FILE
        click.echo(f"not again: {file} is of these files, packages and settings, on this CPU; remove it to run again")
        return found.matrix
    other = kill_matrix.differences(found.about.surroundings, about.surroundings)
    click.echo(f"again: {', '.join(other) or 'it was of other contracts'}")
    return None


def _tried(
    law: Law, profile: Tier, ranks: int, only: tuple[str, ...], folder: Path | None, jobs: int,
    assistants: tuple[str, ...], place: Path,
) -> self_test.Matrix:  # fmt: skip
    """Judge some contracts on the reference and on each of their mutants."""
    if profile == "dist":
        return _tried_by_ranks(ranks, only, folder, place)
    tell = Told(place / WATCHED)
    tell.planned(self_test.judgements(law))
    if jobs > 1:
        return self_test.shared(law, assistants, jobs, tell)
    collect_seldom()
    subject = parties.load("reference")
    helping = [party for _, party in parties.assistants(subject, assistants, quick=False)]
    return self_test.run(law, helping, tell)


def _tried_by_ranks(ranks: int, only: tuple[str, ...], folder: Path | None, place: Path) -> self_test.Matrix:
    """The matrix of the dist tier: one torchrun for all of its mutants. `place` is theirs while they run."""
    kept = place if folder is None else folder
    kept.mkdir(parents=True, exist_ok=True)
    file = place / "matrix.json"
    asked = f"--only={','.join(only)}"
    arguments = [str(TRIALS), "-p", "contracts.harness.dist_selftest", f"--trials={file}", asked, *APART]
    last_words = torchrun.run(ranks, arguments, kept, restarts=TRIALS_LOST)
    if not file.exists():
        raise Ended(f"the ranks ended without a matrix: {last_words}")
    return codec.loads(self_test.Matrix, file.read_text(encoding="utf-8"))


def _figure(folder: Path) -> str:
    """Write what lies in a folder detected, and say it."""
    found = detection.detection([folder], current=True)
    detection.write(folder, found)
    counted = (folder / PAIRS).read_text(encoding="utf-8").partition("\n\n")[0]
    return "\n".join([*detection.summary(found), counted])


def _show_matrix(matrix: self_test.Matrix, as_json: bool, folder: Path | None) -> None:
    figure = None if folder is None else _figure(folder)
    if as_json:
        click.echo(json.dumps(codec.encode(matrix) | {"word": matrix.word}, indent=2))
        return
    from rich.box import HEAVY_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    curves = ("loss alone", "norm alone") if matrix.trained else ()
    table = Table("contract", "case", "mutant", "fate", *curves, "words", title="Kill matrix", title_justify="left",
                  box=HEAVY_HEAD if sys.stdout.isatty() else None)  # fmt: skip
    styles: dict[Fate, str] = {"killed": "green", "void": "yellow"}
    for kill in matrix.kills:
        words = kill.words if kill.fate != "killed" else kill.words.removeprefix("violated: ")
        style = styles.get(kill.fate, "bold red")
        told = (kill.loss or "—", kill.norm or "—") if curves else ()
        table.add_row(
            kill.of, kill.case, kill.mutant, f"[{style}]{kill.fate}[/]", *told, escape(short(words, quote=False))
        )
    # In a pipe a line is as long as it needs to be, so that names are found in it.
    Console(width=None if sys.stdout.isatty() else _WIDE).print(table)
    for result in matrix.failing:
        click.secho(f"baseline: {result.item} {result.outcome}: {result.words}", fg="red")
    for id in matrix.unguarded:
        click.secho(f"no mutant: {id}", fg="red")
    if matrix.unfit:
        click.secho(f"unfit, and left out of every check with this proof: {', '.join(matrix.unfit)}", fg="red")
    if figure is not None:
        click.echo(figure)
    killed = sum(kill.fate == "killed" for kill in matrix.kills)
    line = f"{matrix.word.upper()}: {killed} of {len(matrix.kills)} mutants killed with their declared words, "
    line += f"{len(matrix.baseline)} baseline judgements, {len(matrix.bugs)} catalogued bugs embodied"
    if matrix.trained:
        line += f"; {matrix.unseen} of {len(matrix.trained)} that trained do not change the loss"
    click.secho(line, fg=COLOURS.get(matrix.word, "red"), bold=True)

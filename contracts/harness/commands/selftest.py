"""`selftest` puts the suite itself under test."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

import click

from contracts.contract import LAW, Law, Tier
from contracts.harness import kill_matrix, parties, torchrun
from contracts.harness import output as output_of
from contracts.harness import selftest as self_test
from contracts.harness.commands._errors import COLOURS, one_clear_error, read_law, short, told
from contracts.harness.commands.check import APART, SUITE
from contracts.harness.output import Output
from contracts.harness.supervisor import Ended, supervised
from contracts.spec import codec
from contracts.spec.errors import Refused, refuse
from contracts.spec.records import EXIT_CODES, Fate

TRIALS = SUITE.with_name("dist_selftest_suite.py")
TRIALS_LOST = 20  # so many mutants may end a rank before the matrix is given up


@click.command()
@click.option("--only", metavar="PREFIX", help="Only mutants of ids that begin so.")
@click.option("--profile", type=click.Choice(["unit", "dist"]), default="unit", show_default=True,
              help="The tier: contracts of one process, or of several ranks.")  # fmt: skip
@click.option("--ranks", type=click.IntRange(min=2), default=4, show_default=True, metavar="N",
              help="For dist: ranks of this machine, which torchrun starts.")  # fmt: skip
@click.option("--report", "folder", type=click.Path(path_type=Path, file_okay=False), help="Write kills.json there.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="For unit: processes that share the contracts.")  # fmt: skip
@click.option("--with", "assistants", multiple=True, metavar="NAME", help="As for `check`.")
@click.option("--once", is_flag=True, help="With --report: do not run again where the matrix there was made with the "
              "same files, packages, CPU and settings.")  # fmt: skip
@one_clear_error
def selftest(
    only: str | None, profile: Tier, ranks: int, folder: Path | None, jobs: int, assistants: tuple[str, ...], once: bool
) -> None:
    """Judge every mutant and print the kill matrix: each contract must catch its own, in the declared words."""
    about = kill_matrix.About(
        content=kill_matrix.content(), tier=profile, only=only or "",
        surroundings=kill_matrix.here(threads=kill_matrix.threads(jobs), helping=kill_matrix.helping(assistants)),
    )  # fmt: skip
    if once:
        if folder is None:
            raise refuse("--once", True, "has no --report to look into", "name a folder with --report")
        found = _found(folder, about)
        if found is not None:
            _show_matrix(found)
            sys.exit(EXIT_CODES[found.word])
    if folder is not None:  # an older matrix must not be read as this one, whatever happens now
        for name in (kill_matrix.FILE, output_of.FILE):
            (folder / name).unlink(missing_ok=True)

    def work() -> int:
        read_law()
        law = self_test.part_of(LAW, [id for id in LAW.contracts if id.startswith(only or "")], profile)
        if not law.contracts:
            raise refuse("--only", only, "selects no contract", "give an id or the beginning of one")
        with contextlib.ExitStack() as quiet:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                quiet.enter_context(output.taken())
            matrix = _tried(law, profile, ranks, only or "", folder, jobs, assistants)
        if folder is not None:
            kill_matrix.write(folder, kill_matrix.Proof(about=about, matrix=matrix))
        _show_matrix(matrix)
        return EXIT_CODES[matrix.word]

    output, code = Output(folder), EXIT_CODES["broken"]
    try:
        code = supervised(lambda: told(work), output)
    except Ended as error:
        raise Ended(f"the self-test did not finish, so it says nothing about any contract: {error}") from error
    finally:
        ended = folder is not None and not (folder / kill_matrix.FILE).exists()
        output.end(ended=ended, red=code != 0)
    sys.exit(code)


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
    law: Law, profile: Tier, ranks: int, only: str, folder: Path | None, jobs: int, assistants: tuple[str, ...]
) -> self_test.Matrix:
    """Judge some contracts on the reference and on each of their mutants."""
    if profile == "dist":
        return _tried_by_ranks(ranks, only, folder)
    if jobs > 1:
        return self_test.shared(law, assistants, jobs)
    subject = parties.load("reference")
    helping = [party for _, party in parties.assistants(subject, assistants, quick=False)]
    return self_test.run(law, helping)


def _tried_by_ranks(ranks: int, only: str, folder: Path | None) -> self_test.Matrix:
    """The matrix of the dist tier: one torchrun for all of its mutants."""
    with tempfile.TemporaryDirectory() as place:
        kept = Path(place) if folder is None else folder
        kept.mkdir(parents=True, exist_ok=True)
        file = Path(place) / "matrix.json"
        arguments = [str(TRIALS), "-p", "contracts.harness.dist_selftest", f"--trials={file}", f"--only={only}", *APART]
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
    if matrix.unfit:
        click.secho(f"unfit, so that they judge nobody who gives this proof: {', '.join(matrix.unfit)}", fg="red")
    killed = sum(kill.fate == "killed" for kill in matrix.kills)
    line = f"{matrix.word.upper()}: {killed} of {len(matrix.kills)} mutants killed for their words, "
    line += f"{len(matrix.baseline)} baseline judgements, {len(matrix.bugs)} catalogued bugs embodied"
    if matrix.trained:
        line += f"; {matrix.unseen} of {len(matrix.trained)} that trained invisible to the loss"
    click.secho(line, fg=COLOURS.get(matrix.word, "red"), bold=True)

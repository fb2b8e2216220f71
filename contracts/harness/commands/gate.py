"""`gate` judges stacks one after the other, each in the interpreter that has it, after the suite's own mutants."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import click

from contracts.harness.commands._errors import one_clear_error
from contracts.harness.environments import judge_of
from contracts.harness.supervisor import Ended
from contracts.ranks import guard
from contracts.ranks.guard_program import SET_PDEATHSIG, prctl
from contracts.spec.records import EXIT_CODES

REPORTS = Path("reports")
PROOF = REPORTS / "selftest"
STOP_S = 20.0
WORST = (EXIT_CODES["violated"], 2, EXIT_CODES["broken"], EXIT_CODES["incomplete"], EXIT_CODES["nothing ran"])
"""Exit codes, the worst first. Any other but 0 is of a process that was killed: broken."""


@click.command()
@click.option(
    "--stack", "stacks", multiple=True, metavar="STACK", help="Judge it; may be repeated. [default: reference]"
)
@click.option("--all", "whole", is_flag=True, help="Try every mutant first, not a sample, and judge more.")
@click.option("--profile", show_default="quick; with --all: launch,machine,numeric", help="As for `check`.")
@click.option("--ranks-profile", show_default="quick4; with --all: dist4", help="What several ranks judge.")
@click.option("--ranks", type=click.IntRange(min=2), default=4, show_default=True, metavar="N", help="As for `check`.")
@click.option("--jobs", type=click.IntRange(min=1), default=os.cpu_count() or 1, show_default="processors", metavar="N",
              help="As for `check`.")  # fmt: skip
@one_clear_error
def gate(
    stacks: tuple[str, ...], whole: bool, profile: str | None, ranks_profile: str | None, ranks: int, jobs: int
) -> None:
    """Judge stacks of this repository, each in its own environment: one process, then several ranks."""
    prctl(SET_PDEATHSIG, signal.SIGTERM)  # whoever stops make stops what judges
    profile = profile or ("launch,machine,numeric" if whole else "quick")
    ranks_profile = ranks_profile or ("dist4" if whole else "quick4")
    stacks = stacks or ("reference",)
    _say(f"== gate{'-all' * whole} STACK={shlex.quote(' '.join(stacks))} PROFILE={profile} "
         f"RANKS_PROFILE={ranks_profile} RANKS={ranks}")  # fmt: skip
    REPORTS.mkdir(exist_ok=True)
    suite = _proved(jobs) if whole else Suite(code=_run([judge_of("reference"), "selftest", "--sample"]))
    codes = [EXIT_CODES["incomplete"]] if suite.code else []  # something is unfit, or could not be tried
    for stack in stacks:
        codes += _judged(stack, suite.proof, [profile, "--jobs", str(jobs)], [ranks_profile, "--ranks", str(ranks)])
    code = worst(codes)
    _say()
    if suite.unfit:
        click.echo(f"unfit here, and not judged: {suite.unfit}", err=True)
    if code:
        click.echo(f"not conformant: the worst exit code is {code}", err=True)
    if not whole:
        _say(f"this was quick: what {profile} and {ranks_profile} leave outside is listed above;")
        _say("make gate-all judges everything that runs here, on all stacks and versions, after every mutant")
    sys.exit(code)


def worst(codes: Sequence[int]) -> int:
    """The exit code of all."""
    known = {code if code in (0, *WORST) else EXIT_CODES["broken"] for code in codes}
    return next((code for code in WORST if code in known), 0)


@dataclass(frozen=True, kw_only=True)
class Suite:
    """The suite's own test: its exit code, the words that give its proof, and the contracts that are unfit."""

    code: int
    proof: tuple[str, ...] = ()
    unfit: str = ""


def _proved(jobs: int) -> Suite:
    """Every mutant of one process.

    Raises:
        Ended: if the self-test did not finish: then nobody is judged.
    """
    matrix = PROOF.with_suffix(".txt")
    with matrix.open("w", encoding="utf-8") as out:
        words = ["selftest", "--once", "--jobs", str(jobs), "--report", str(PROOF)]
        code = _run([judge_of("reference"), *words], out)
    if not (PROOF / "kills.json").exists():
        raise Ended(f"the self-test did not finish, so no stack is judged; see {matrix}")
    said = matrix.read_text(encoding="utf-8")
    _say(f"selftest: {said.rstrip().rpartition(chr(10))[2]} (matrix: {matrix})")
    unfit = re.search(r"^unfit, [^:]*: (.*)$", said, re.MULTILINE)
    return Suite(code=code, proof=("--proof", str(PROOF)), unfit=unfit[1] if unfit else "")


def _judged(stack: str, proof: Sequence[str], one: Sequence[str], ranks: Sequence[str]) -> list[int]:
    """The exit codes of the checks of a stack."""
    judge = judge_of(stack)
    folder = REPORTS / re.sub(r"[^\w.=-]", "_", stack, flags=re.ASCII)
    codes = [_checked(judge, stack, folder, [*proof, "--profile", *one])]
    count = [str(Path(judge).with_name("python")), "-m", "contracts.harness.contract_count", stack, ranks[0]]
    if subprocess.run(count, stdout=subprocess.PIPE, text=True, check=False).stdout.strip() == "0":
        _say(f"{stack} answers nothing that {ranks[0]} asks: no ranks are started for it")
        return codes
    return [*codes, _checked(judge, stack, folder.with_name(f"{folder.name}-ranks"), [*proof, "--profile", *ranks])]


def _checked(judge: str, stack: str, folder: Path, more: Sequence[str]) -> int:
    declared = Path("docs/deviations", f"{stack.partition('==')[0]}.toml")
    words = ["check", "--stack", stack, "--report", str(folder), *more]
    words += ["--deviations", str(declared)] if declared.exists() else []
    _say(f"\n== rankproof {shlex.join(words)}")
    return _run([judge, *words])


def _run(words: Sequence[str], out: IO[str] | None = None) -> int:
    """The exit code of a command, which ends with this process."""
    return subprocess.run(guard.command(words, patience_s=STOP_S), stdout=out, check=False).returncode


def _say(text: str = "") -> None:
    click.echo(text)
    sys.stdout.flush()

"""What `selftest --operators` does: draw changes of the reference, try them, and list what nobody noticed."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from contracts.contract import LAW
from contracts.court.plain_text import terminal
from contracts.harness.commands._errors import short
from contracts.harness.families import read_checks
from contracts.harness.operators import reach as reaching
from contracts.harness.operators import trials
from contracts.harness.operators.changes import OPERATORS, drawn, named
from contracts.harness.operators.trials import FATES, Trial
from contracts.spec import Refusals, refuse
from contracts.spec.records import EXIT_CODES

FOLDER, SAMPLED = Path("reports/operators"), Path("reports/operators-sample")
LEAST = 0.9  # of the changes that a contract executes and that are no equivalent ones
LEAST_LIKELY = 0.3  # where lines that no case executes count as well


def operators(
    count: int, *, seed: int, only: tuple[str, ...], seconds: float | None, ranks: int, folder: Path | None,
    likely: bool,
) -> int:  # fmt: skip
    """Try some changes and print what became of them; the exit code.

    If it is `likely`, by the contracts that are about their files, without a record of who executes which line.
    """
    refused = Refusals()
    for each in only:
        refused.unless(next(drawn(0, (each,)), None) is not None, "--only", each, "begins no change",
                       "give a contract, or the beginning of an id or of a file of the reference")  # fmt: skip
    refused.raise_any()
    import torch

    read_checks()
    torch.set_num_threads(1)  # a fork loses the threads that torch has started
    if folder is None:
        folder = SAMPLED if likely else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    seen = reaching.likely(LAW) if likely else reaching.reach(LAW, folder, lambda line: click.echo(line, err=True))
    found = trials.run(
        LAW, seen, folder, count=count, seed=seed, only=only, seconds=seconds, ranks=ranks,
        tell=lambda each: click.echo(_line(each), err=True),
    )  # fmt: skip
    if not found:
        raise refuse("--time", seconds, "was over before the first change", "give more")
    click.echo(summary(found))
    return EXIT_CODES["conformant" if share(found) >= (LEAST_LIKELY if likely else LEAST) else "violated"]


def share(found: Sequence[Trial]) -> float:
    """Killed or crashed, of those that one could have noticed."""
    fates = Counter(each.fate for each in found)
    caught = fates["killed"] + fates["crashed"]
    return caught / max(caught + fates["survived"], 1)


def _line(each: Trial) -> str:
    what = f"{each.by}: {short(terminal(each.words), quote=False)}" if each.by else each.words
    return f"{each.fate:<10} {each.change}  {what}"


def summary(found: Sequence[Trial]) -> str:
    """A row an operator, the survivors with what stands there, and the total."""
    lines = [f"{'operator':<18}" + "".join(f"{fate:>12}" for fate in FATES)]
    for operator in OPERATORS:
        of = Counter(each.fate for each in found if each.change.partition("@")[0] == operator)
        if of:
            lines.append(f"{operator:<18}" + "".join(f"{of[fate] or '':>12}" for fate in FATES))
    for each in (each for each in found if each.fate == "survived"):
        lines.append(f"survived {each.tried} cases: {each.change}")
        lines.append(f"    in {named(each.change).scope or 'the module'}: {_one(each.was)}  →  {_one(each.now)}")
    total = Counter(each.fate for each in found)
    lines.append(
        f"{total['killed']} killed by a contract, {total['crashed']} ended in an error, {total['survived']} survived, "
        f"{total['equivalent']} equivalent, {total['unreached']} in lines that no case of one process executes: "
        f"{100 * share(found):.0f} % of {len(found) - total['equivalent'] - total['unreached']} noticed"
    )
    return "\n".join(lines)


def _one(text: str) -> str:
    return short(" ".join(text.split()), quote=False)

"""`observe`, `diff` and `judge`: record a training script, compare two recordings, judge one."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from contracts.court.plain_text import terminal
from contracts.harness.commands._errors import one_clear_error, told
from contracts.spec.records import EXIT_CODES


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, metavar="DIR",
              help="A new folder for the trace, which all ranks share.")  # fmt: skip
@click.option("--steps", type=click.IntRange(min=1), default=3, show_default=True, metavar="N",
              help="How many optimizer steps are observed; the script goes on unobserved.")  # fmt: skip
@click.option("--perturb", type=int, metavar="SEED",
              help="Move each weight by one unit in its last place before the first step, to measure rounding.")  # fmt: skip
@click.option("--collectives/--no-collectives", default=True, show_default=True, help="Whether collectives are recorded.")
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as for `python -m`.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def observe(
    out: Path, steps: int, perturb: int | None, collectives: bool, module: bool, script: str, arguments: tuple[str, ...]
) -> None:
    """Run a training script and record what it does. Not a line of it changes.

    Under torchrun: torchrun --no-python --nproc-per-node 4 rankproof observe --out DIR train.py …
    """
    from contracts.observe.entry import run
    from contracts.spec.errors import Refused

    try:
        run((script, *arguments), out, module=module, steps=steps, perturb=perturb, collectives=collectives)
    except Refused as refused:
        if refused.fields and refused.fields[0] in ("out", "script", "steps"):
            raise SystemExit(told(lambda: _raise(refused))) from None
        raise


@click.command()
@click.argument("reference", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path))
@click.option("--repeat", "repeats", type=click.Path(path_type=Path), multiple=True, metavar="DIR",
              help="A trace of the reference run under --perturb, to measure rounding; may be repeated.")  # fmt: skip
@one_clear_error
def diff(reference: Path, other: Path, repeats: tuple[Path, ...]) -> None:
    """Compare two traces: the first tensor that differs, in the order of computation.

    Exit codes: 0 equal up to rounding, 1 different, 3 not comparable.
    """
    from contracts.observe.diff import compare, report  # torch, which `rankproof --help` does not need
    from contracts.observe.merged import Merged
    from contracts.observe.trace import read

    found = compare(Merged(read(reference)), Merged(read(other)), [Merged(read(each)) for each in repeats])
    for line in report(found, (str(reference), str(other))):
        click.echo(terminal(line))
    sys.exit(EXIT_CODES["incomplete"] if found.incomparable else int(bool(found.differences)))


def _raise(error: Exception) -> None:
    raise error


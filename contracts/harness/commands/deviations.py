"""`deviations` writes what a stack's owner would declare, from recorded runs."""

from pathlib import Path

import click

from contracts.court import deviations as deviations_file
from contracts.court import record
from contracts.court.verdict import verdict
from contracts.harness import proposed_deviations
from contracts.harness.commands._errors import one_clear_error
from contracts.harness.gate import today
from contracts.spec import refuse


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option("--fill", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write the words and tensors into the entries of this deviations file that name none.")  # fmt: skip
@one_clear_error
def deviations(runs: tuple[Path, ...], fill: Path | None) -> None:
    """Propose deviations for what recorded runs found violated, with its words and tensors."""
    recorded = [record.load(each)[0] for each in runs]
    if fill is None:
        for run in recorded:
            results = verdict(run, today()).results
            click.echo(proposed_deviations.proposal(run, results, today()), nl=False)
        return
    declared = deviations_file.read(fill, taken=False)
    if all(each.says for each in declared):
        raise refuse("fill", str(fill), "has the words of every entry", "run `rankproof deviations` without --fill")
    count, unknown = proposed_deviations.fill(fill, declared, recorded)
    click.echo(f"{fill}: {count} entries have their words")
    for each in unknown:
        click.echo(f"  {each.id}[{each.case}] is violated in none of these runs", err=True)

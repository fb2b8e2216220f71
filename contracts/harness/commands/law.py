"""`list` and `explain`: the contracts as a person reads them."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import contracts
from contracts.contract import LAW, Contract
from contracts.court import profiles, sources
from contracts.court.court import Court
from contracts.harness import parties, selftest
from contracts.harness.commands._errors import one_clear_error, read_law, short
from contracts.spec.errors import refuse


@click.command(name="list")
@click.option("--profile", default="full", show_default=True, help="As for `check`.")
@click.option("--cases", is_flag=True, help="List every case.")
@one_clear_error
def list_(profile: str, cases: bool) -> None:
    """List the contracts of a profile, with their cases and mutants."""
    read_law()
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


@click.command()
@click.argument("id")
@one_clear_error
def explain(id: str) -> None:
    """Explain the contract ID: its statement, why it exists, its cases, its mutants, and how to see it fail."""
    read_law()
    if id not in {*LAW.ids()}:
        near = difflib.get_close_matches(id, list(LAW.ids()), n=3) or list(LAW.ids())[:3]
        raise refuse("id", id, "is no contract", f"the nearest are {', '.join(near)}")
    click.secho(id, bold=True)
    if id in LAW.untested:
        untested = LAW.untested[id]
        click.echo(f"{untested.promise}\n\nNot judged yet: {untested.why}")
        return
    contract = LAW.contracts[id]
    click.echo(contract.promise)
    if contract.story:
        click.echo(f"\n{contract.story}")
    source = "\n           ".join(sources.explained(contract.source))
    click.echo(f"\nsource     {source}\nasks       {', '.join(contract.asks)}\ntier       {contract.tier}")
    for what, where in _places(contract):
        click.echo(f"{what:<10} {where}")
    click.echo("\ncases")
    for case, arguments in contract.cases.items():
        click.echo(f"  {case}: {', '.join(short(argument) for argument in arguments)}")
        if rungs := contract.rungs(case):
            click.echo(f"    on leaner recipes: {', '.join(rungs)}")
    if contract.of_numbers:
        selftest.read_tensor_mutants()
    click.echo("\nmutants it must catch")
    for mutant in LAW.mutants_of(id):
        bugs = f" ({', '.join(mutant.bugs)})" if mutant.bugs else ""
        click.echo(f"  {mutant.name}{bugs}: {mutant.story.splitlines()[0]}\n    in {mutant.case}, says: {mutant.says}")
    click.echo(f"\nreproduce\n  rankproof check --stack reference --profile {id}\n  rankproof selftest --only {id}")


def _places(contract: Contract) -> Iterator[tuple[str, str]]:
    """Where the check, its mutants, and the reference's answer to each question stand: file and line."""
    check = _place(contract.check)
    yield "check", check
    yield "mutants", check.rpartition(":")[0].replace("checks/", "mutants/", 1)
    answering: Any = Court if contract.of_the_court else type(parties.load("reference"))
    for asked in contract.asks:
        if hasattr(answering, asked):
            yield ("gate" if contract.of_the_court else "reference"), f"{asked}: {_place(getattr(answering, asked))}"


def _place(function: Any) -> str:
    code = inspect.unwrap(function).__code__
    root = Path(contracts.__file__).parents[1]
    return f"{Path(code.co_filename).relative_to(root)}:{code.co_firstlineno}"

"""`list` and `explain`: the contracts as a person reads them."""

import difflib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from contracts.contract import LAW, Contract
from contracts.court import profiles, sources
from contracts.court.promises import FAMILY, PROMISES
from contracts.harness import places
from contracts.harness.commands._completion import complete_items
from contracts.harness.commands._errors import one_clear_error, short
from contracts.harness.families import read_checks, read_mutants
from contracts.spec import codec, refuse


@click.command(name="list")
@click.option("--profile", default="full", show_default=True, help="As for `check`.",
              shell_complete=complete_items)  # fmt: skip
@click.option("--cases", is_flag=True, help="List every case.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text, with every case.")
@one_clear_error
def list_(profile: str, cases: bool, as_json: bool) -> None:
    """List the contracts of a profile, with their cases."""
    read_checks(*profiles.beginnings(profile))
    planned = profiles.plan(LAW, profile)
    if as_json:
        click.echo(json.dumps([_described(id) for id in planned.promises], indent=2, ensure_ascii=False))
        return
    for id in planned.promises:
        _listed(id)
        for item in planned.items if cases else ():
            if item.id == id and item.case:
                click.echo(f"{'':<16}{item}")


def _listed(id: str) -> None:
    entry = LAW.contracts.get(id) or LAW.untested[id]
    state = f"{len(entry.cases)} cases" if isinstance(entry, Contract) else f"untested: {entry.why}"
    click.echo(f"{id:<9} {entry.tier:<5} {entry.promise}  [{state}]")


def _described(id: str) -> dict[str, Any]:
    """A contract as an object."""
    if id in LAW.untested:
        untested = LAW.untested[id]
        return {"id": id, "tier": untested.tier, "statement": untested.promise, "untested": untested.why}
    contract = LAW.contracts[id]
    read_mutants([id])
    return {
        "id": id, "tier": contract.tier, "statement": contract.promise, "story": contract.story,
        "source": sources.explained(contract.source), "asks": list(contract.asks),
        "cases": {case: list(contract.rungs(case)) for case in contract.cases},
        "check": places.place(contract.check), "guards": places.guarded(contract),
        "mutants": [{"name": each.name, "case": each.case, "says": each.says, "place": places.of_mutant(each)}
                    for each in LAW.mutants_of(id)],
        "reproduce": list(places.commands(contract)),
    }  # fmt: skip


@click.command()
@click.argument("id", shell_complete=complete_items)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
@one_clear_error
def explain(id: str, as_json: bool) -> None:
    """Explain the contract ID: its statement, why it exists, its cases, its mutants, and how to see it fail.

    ID may be as a report has it, with a case in brackets, or the beginning of several ids. Of a promise of the suite
    itself (GATE-04) it prints the statement and the tests that hold it.
    """
    named, bracket, case = id.strip().removesuffix("]").partition("[")
    named = _spelt(named)
    if named.startswith(FAMILY):
        _promised(id, named, as_json)
        return
    read_checks(named)
    if named not in {*LAW.ids()}:
        found = [each for each in LAW.ids() if named and each.startswith(named)]
        if bracket or not found:
            raise refuse("id", id, "is no contract", f"the nearest are {', '.join(profiles.nearest(LAW, id))}")
        if as_json:
            click.echo(json.dumps([_described(each) for each in found], indent=2, ensure_ascii=False))
        for each in () if as_json else found:
            _listed(each)
        return
    contract = LAW.contracts.get(named)
    if bracket and (contract is None or case not in contract.asked):
        raise refuse("id", id, "is no case", f"the nearest are {', '.join(profiles.nearest(LAW, f'{named}[{case}]'))}")
    if as_json:
        click.echo(json.dumps(_described(named), indent=2, ensure_ascii=False))
    elif contract is None:
        untested = LAW.untested[named]
        click.secho(named, bold=True)
        click.echo(f"{untested.promise}\n\nNot judged yet: {untested.why}")
    else:
        _explained(contract, case)


def _promised(id: str, named: str, as_json: bool) -> None:
    """The promises of the suite whose ids begin so."""
    found = {name: each for name, each in PROMISES.items() if name.startswith(named)}
    if not found:
        near = difflib.get_close_matches(named, PROMISES, n=3, cutoff=0.0)
        raise refuse("id", id, "is no promise of the suite", f"the nearest are {', '.join(near)}")
    if as_json:
        click.echo(json.dumps({name: codec.encode(each) for name, each in found.items()}, indent=2, ensure_ascii=False))
    for name, each in {} if as_json else found.items():
        click.secho(name, bold=True)
        click.echo(f"{each.statement}\n\n{each.held_by}")
        click.echo(f"not held: {each.lacks}\n" if each.lacks else "")


def _spelt(id: str) -> str:
    """An id, or the beginning of ids, as the law spells it: `topo-02A` is `TOPO-02a`."""
    family, hyphen, rest = id.partition("-")
    return f"{family.upper()}{hyphen}{rest.lower()}"


def _explained(contract: Contract, only: str) -> None:
    """One contract as text; `only` is the case that is asked about, on one rung, or empty."""
    item = f"{contract.id}[{only}]" if only else contract.id
    click.secho(item, bold=True)
    click.echo(contract.promise)
    if contract.story:
        click.echo(f"\n{contract.story}")
    source = "\n           ".join(sources.explained(contract.source))
    click.echo(f"\nsource     {source}\nasks       {', '.join(contract.asks)}\ntier       {contract.tier}")
    click.echo(f"check      {places.place(contract.check)}")
    for asked, where in places.answers(contract).items():
        click.echo(f"{'reference':<10} {asked}: {where}")
    click.echo(f"time       {_time(contract)}")
    click.echo(f"\n{_number(len(contract.cases), 'case')}")
    for case, arguments in contract.asked.items() if "@" in only else contract.cases.items():
        if only in ("", case):
            click.echo(f"  {case}: {', '.join(short(argument) for argument in arguments)}")
            if rungs := contract.rungs(case) if case in contract.cases else ():
                click.echo(f"    on leaner recipes: {', '.join(rungs)}")
    if find_spec("torch") is None:
        click.echo("\nthe mutants that it must catch are shown where torch is installed")
    else:
        _mutants(contract)
    click.echo("\n  ".join(("\nreproduce", *places.commands(contract, only))))


def _mutants(contract: Contract) -> None:
    """The functions of the reference that they change, then each mutant and its words."""
    read_mutants([contract.id])
    mutants, guarded = LAW.mutants_of(contract.id), places.guarded(contract)
    click.echo(f"\n{_number(len(mutants), 'mutant')} that it must catch")
    for name, where in guarded.items():
        click.echo(f"  guards {name}: {where}")
    for mutant in mutants:
        bugs = f" ({', '.join(mutant.bugs)})" if mutant.bugs else ""
        click.echo(f"  {mutant.name}{bugs}: {mutant.story.splitlines()[0]}\n    in {mutant.case}, says: {mutant.says}")
        click.echo(f"    {places.of_mutant(mutant)}")


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _time(contract: Contract) -> str:
    """What it took where it was judged last, or what the law says of it."""
    folder = Path("reports/last")
    try:
        lines = (folder / "run.jsonl").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    rows = [json.loads(each) for each in lines if each.startswith(f'{{"result":{{"id":"{contract.id}",')]
    took = [row["result"]["seconds"] for row in rows]
    if took:
        return f"{sum(took):.2g} s for {_number(len(took), 'case')} in {folder}"
    return "more than some seconds a case" if contract.slow else "at most some seconds a case"

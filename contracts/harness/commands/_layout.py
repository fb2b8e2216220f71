"""The stack and the layout that a command plans with, as its options give them: for `budget` and `traffic`."""

from dataclasses import replace
from typing import Any

from contracts.court.party import OnTheStand
from contracts.harness import parties
from contracts.harness.commands._errors import the_stack_talks_to_stderr
from contracts.spec import Degrees, Layout, NotOffered, refuse

DEGREES = ("pp", "tp", "cp", "ep", "etp", "sp")


def asked(stack: str, *asks: str) -> Any:
    with the_stack_talks_to_stderr():
        subject = parties.load(stack)
    party = OnTheStand(subject, (), asks)
    if party.missing:
        raise NotOffered(f"{subject.name} does not offer {', '.join(party.missing)}")
    return party


def layout_of(party: Any) -> Layout:
    return "borrowed" if party.layouts and "own-axis" not in party.layouts else "own-axis"


def changed(degrees: Degrees, changes: str) -> Degrees:
    """The recipe's degrees with those of `pp=2,tp=2` changed. `sp` is 0 or 1."""
    values: dict[str, int | bool] = {}
    for change in filter(None, changes.split(",")):
        name, equals, text = change.strip().partition("=")
        if name not in DEGREES or not equals:
            raise refuse("--degrees", change, "is not a degree", f"write NAME=NUMBER with {', '.join(DEGREES)}")
        if not text.isdecimal() or len(text) > 7:
            raise refuse("--degrees", change, "has no number of ranks", "write a whole number")
        if name in values:
            raise refuse("--degrees", name, "is given twice", "give each degree once")
        values[name] = text != "0" if name == "sp" else int(text)
    return replace(degrees, **values)  # type: ignore[arg-type]  # names were looked up above

"""`emit`: the command and environment that start a recipe."""

import json
from typing import Any

import click

from contracts.court.party import OnTheStand
from contracts.harness import parties
from contracts.harness.commands._completion import complete_recipes
from contracts.harness.commands._errors import one_clear_error, the_stack_talks_to_stderr
from contracts.harness.commands._lane_options import lane_of, lane_options
from contracts.spec import NotOffered, codec, shell


@click.command()
@click.argument("recipe", shell_complete=complete_recipes)
@lane_options
@click.option("--acknowledge", multiple=True, metavar="NAME", help="Accept a deprecated name.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of shell text.")
@one_clear_error
def emit(recipe: str, stack: str, acknowledge: tuple[str, ...], as_json: bool, **lane: Any) -> None:
    """Print the command and environment that start RECIPE: shell-safe text, or JSON."""
    with the_stack_talks_to_stderr():
        subject = parties.load(stack)
    party: Any = OnTheStand(subject, (), ("preset", "launch"))
    if party.missing:
        raise NotOffered(f"{subject.name} does not offer {', '.join(party.missing)}")
    settled = party.preset(recipe, acknowledge)
    launch = party.launch(settled, lane_of(settled, **lane))
    if as_json:
        body = codec.encode(launch) | {"command": list(launch.command), "shell": shell(launch)}
        click.echo(json.dumps(body, indent=2))
        return
    for given_up in launch.gives_up:
        click.echo(f"# this lane gives up: {given_up}")
    click.echo(shell(launch))

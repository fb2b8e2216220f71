"""`emit`: the command and environment that start a recipe."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from contracts.court.party import OnTheStand
from contracts.harness import parties
from contracts.harness.commands._guard import one_clear_error, the_stack_talks_to_stderr
from contracts.spec import codec
from contracts.spec.errors import NotOffered, refuse
from contracts.spec.launch import Lane, shell


@click.command()
@click.argument("recipe")
@click.option("--stack", default="reference", show_default=True)
@click.option("--mode", type=click.Choice(["nemo_native", "author_dp"]), help="Default: the recipe's first.")
@click.option("--regime", type=click.Choice(["megatron", "fsdp2"]), default="megatron", show_default=True)
@click.option("--nodes", type=int, default=1, show_default=True)
@click.option("--gpus", type=int, default=8, show_default=True, help="GPUs of one node.")
@click.option("--rendezvous", metavar="HOST:PORT", help="c10d endpoint; needed for more than one node.")
@click.option("--run", "run_name", default="run", show_default=True, help="Name of the run and rendezvous id.")
@click.option("--compile", "compile_", type=click.Choice(["none", "regional"]), default="none", show_default=True)
@click.option("--set", "changes", multiple=True, metavar="FIELD=VALUE", help="Override one field of the recipe.")
@click.option("--acknowledge", multiple=True, metavar="NAME", help="Accept a deprecated name.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of shell text.")
@one_clear_error
def emit(
    recipe: str, stack: str, mode: Any, regime: Any, nodes: int, gpus: int, rendezvous: str | None, run_name: str,
    compile_: Any, changes: tuple[str, ...], acknowledge: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Print the command and environment that start RECIPE: shell-safe text, or JSON."""
    with the_stack_talks_to_stderr():
        subject = parties.load(stack)
    party: Any = OnTheStand(subject, (), ("preset", "launch"))
    if party.missing:
        raise NotOffered(f"{subject.name} does not offer {', '.join(party.missing)}")
    settled = party.preset(recipe, acknowledge)
    overrides = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise refuse("--set", change, "has no =", "write field=value")
        if key in overrides:
            raise refuse("--set", key, "is given twice", "give each field once")
        overrides[key] = value
    lane = Lane(
        mode=mode or settled.modes[0], regime=regime, nodes=nodes, gpus=gpus, rendezvous=rendezvous, run=run_name,
        compile=compile_, overrides=overrides, inherited=dict(os.environ),
    )  # fmt: skip
    launch = party.launch(settled, lane)
    if as_json:
        body = codec.encode(launch) | {"command": list(launch.command), "shell": shell(launch)}
        click.echo(json.dumps(body, indent=2))
        return
    for given_up in launch.gives_up:
        click.echo(f"# this lane gives up: {given_up}")
    click.echo(shell(launch))

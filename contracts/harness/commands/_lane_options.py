"""The options that say on which lane a recipe runs, and the lane they say: shared by `emit` and `launch`."""

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from contracts.spec import Lane, Recipe, Refusals

_Command = TypeVar("_Command", bound=Callable[..., Any])

OPTIONS = (
    click.option("--stack", default="reference", show_default=True),
    click.option("--mode", type=click.Choice(["nemo_native", "author_dp"]), help="Default: the recipe's first."),
    click.option("--regime", type=click.Choice(["megatron", "fsdp2"]), default="megatron", show_default=True),
    click.option("--nodes", type=int, default=1, show_default=True),
    click.option("--gpus", type=int, default=8, show_default=True, help="GPUs of one node."),
    click.option("--rendezvous", metavar="HOST:PORT", help="c10d endpoint; needed for more than one node."),
    click.option("--run", default="run", show_default=True, help="Name of the run and rendezvous id."),
    click.option("--compile", type=click.Choice(["none", "regional"]), default="none", show_default=True),
    click.option("--set", "changes", multiple=True, metavar="FIELD=VALUE", help="Override one field of the recipe."),
)


def lane_options(command: _Command) -> _Command:
    """Give a command the options of a lane; it takes them, but for `stack`, as `**lane` and hands them to `lane_of`."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def lane_of(recipe: Recipe, *, mode: str | None, changes: tuple[str, ...], **asked: Any) -> Lane:
    """The lane that the options say, in the environment of this shell.

    Raises:
        Refused: for an override without `=` or given twice, and whatever a `Lane` refuses.
    """
    chosen: Any = mode or recipe.modes[0]
    return Lane(mode=chosen, overrides=_overrides(changes), inherited=dict(os.environ), **asked)


def _overrides(changes: tuple[str, ...]) -> Mapping[str, str]:
    found, overrides = Refusals(), {}
    for change in changes:
        key, equals, value = change.partition("=")
        found.unless(bool(equals), "--set", change, "has no =", "write field=value")
        found.unless(key not in overrides, "--set", key, "is given twice", "give each field once")
        overrides[key] = value
    found.raise_any()
    return overrides

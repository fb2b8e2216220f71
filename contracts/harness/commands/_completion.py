"""What a shell completes: stacks, recipes, and the profiles, ids and cases of the law."""

import click

from contracts.contract import LAW
from contracts.court.profiles import NAMED
from contracts.court.promises import PROMISES
from contracts.harness.families import ids, read_checks
from contracts.harness.parties import BY_NAME


def complete_stacks(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in BY_NAME if name.startswith(incomplete)]


def complete_recipes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from contracts.spec.presets import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]


def complete_items(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Profiles and ids after the last comma; cases once a bracket is open."""
    before, comma, last = incomplete.rpartition(",")
    id, bracket, _ = last.partition("[")
    if bracket:
        read_checks(id)
        asked = LAW.contracts[id].asked if id in LAW.contracts else ()
        found = [f"{id}[{case}]" for case in asked]
    else:
        found = [*(NAMED if parameter.name == "profile" else ()), *ids(), *(PROMISES if parameter.name == "id" else ())]
    return [f"{before}{comma}{each}" for each in found if each.startswith(last)]

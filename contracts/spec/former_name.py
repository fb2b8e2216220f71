"""The project's former name. Only this file knows it: schemas under that name are read, variables are refused."""

from collections.abc import Mapping
from typing import TypeVar

from contracts.spec.errors import Refusals

FORMER, NAME = "lanegate", "rankproof"
_Value = TypeVar("_Value")


def current(schema: _Value) -> _Value | str:
    """The current id of a schema or format. Only the name has changed: `…run/1` is one format under both names."""
    if isinstance(schema, str) and schema.startswith(FORMER):
        return NAME + schema.removeprefix(FORMER)
    return schema


def refuse_variables(environment: Mapping[str, str]) -> None:
    """Refuse environment variables under the former name. If they were ignored, a run would lose its telemetry.

    Raises:
        Refused: with every such variable, its value and its name of today.
    """
    found = Refusals()
    prefix = f"{FORMER.upper()}_"
    for name in sorted(name for name in environment if name.startswith(prefix)):
        today = f"{NAME.upper()}_{name.removeprefix(prefix)}"
        found.add(
            name, environment[name], f"is not read: the project is called {NAME} now", f"set {today} and unset it"
        )
    found.raise_any()

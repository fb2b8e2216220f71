"""How checks ask for a refusal."""

from collections.abc import Callable
from dataclasses import is_dataclass

from contracts.spec import Recipe, Refused, shown


def refusal_of(ask: Callable[..., object], *arguments: object) -> Refused:
    """The refusal that a question must give.

    Raises:
        AssertionError: when the stack accepted the input, with what it answered.
    """
    try:
        answer = ask(*arguments)
    except Refused as refused:
        return refused
    raise AssertionError(f"{', '.join(map(_named, arguments))} was accepted, expected a refusal; got {_named(answer)}")


def _named(value: object) -> str:
    """A value in a message: one of many fields by what it is, and of which recipe."""
    text, of = shown(value), getattr(value, "recipe", value)
    if not is_dataclass(value) or not text.endswith(" characters)"):
        return text
    return f"a {type(value).__name__} of {of.name}" if isinstance(of, Recipe) else f"a {type(value).__name__}"

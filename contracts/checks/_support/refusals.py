"""How checks ask for a refusal."""

from __future__ import annotations

from collections.abc import Callable

from contracts.spec.errors import Refused, shown


def refusal_of(ask: Callable[..., object], *arguments: object) -> Refused:
    """The refusal that a question must give.

    Raises:
        AssertionError: when the stack accepted the input, with what it answered.
    """
    try:
        answer = ask(*arguments)
    except Refused as refused:
        return refused
    raise AssertionError(f"{', '.join(map(shown, arguments))} was accepted, expected a refusal; got {shown(answer)}")

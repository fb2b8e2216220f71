"""What a check found wrong, part by part. A deviation forgives some of it; the rest is still a violation.

A check raises one AssertionError. Two things keep its parts apart: a check that finds several things raises `Violated`,
and a comparison of tensors by name hands over (`compared`) what it found for each of them. The judge listens while the
check runs. Of what it heard, it takes only what the check put into its words: a check may compare and let it pass.

Standard library only, like all of `contracts.spec`.
"""

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar

from contracts.spec.records import Violation

Heard = list[tuple[str, tuple[Violation, ...]]]
"""The words of each comparison, and its parts."""
_HEARD: ContextVar[Heard | None] = ContextVar("heard", default=None)


class Violated(AssertionError):
    """Several things are wrong, each in words of its own."""

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(words)
        super().__init__("\n".join(self.words))


def require_none(*words: str) -> None:
    """Require that nothing was found; every text that is not empty is one thing that is wrong.

    Raises:
        Violated: with all of them, so that one which is declared does not hide the next.
    """
    found = [each for each in words if each]
    if found:
        raise Violated(found)


@contextlib.contextmanager
def heard() -> Iterator[Heard]:
    """Listen to the comparisons that are made inside."""
    found: Heard = []
    token = _HEARD.set(found)
    try:
        yield found
    finally:
        _HEARD.reset(token)


def compared(words: str, parts: Iterable[Violation]) -> str:
    """Hand over what a comparison found of each tensor; returns its words."""
    listening = _HEARD.get()
    if words and listening is not None:
        listening.append((words, tuple(parts)))
    return words


def parts_of(error: AssertionError, listened: Heard) -> tuple[Violation, ...]:
    """Everything that is wrong according to an error of a check.

    A comparison counts if the check's words contain all of its words. Words without a comparison are one part.
    """
    said = error.words if isinstance(error, Violated) else (str(error) or "the check gave no words",)
    found: list[Violation] = []
    for words in said:
        parts = [each for told, parts in listened if told in words for each in parts]
        found += parts or [Violation(words=words)]
    return tuple(dict.fromkeys(found))

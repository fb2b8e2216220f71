"""The two ways in which a stack declines a question: `Refused` (illegal input) and `NotOffered`.

Standard library only, like all of `contracts.spec`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Lack = Literal["stack", "device", "adapter", "case"]
"""stack: the stack has nothing of the kind. device: it has, and not on this device. adapter: the adapter does not reach
it yet. case: the case asks for more than what it is about, and for that the stack has no answer: a layer that is not
the subject, a layout where both are the same ranks."""
LACKS: Mapping[Lack, str] = {
    "stack": "the stack lacks it",
    "device": "this device lacks it",
    "adapter": "the adapter does not reach it yet",
    "case": "the case is shaped otherwise",
}


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """One reason why an input is refused: the field, its value, the problem, the remedy."""

    field: str
    value: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.field} = {self.value}: {self.problem}; {self.remedy}"


MOST_REFUSALS = 1000
"""How many reasons of one refusal a judge reads; a recipe has some two hundred fields."""


class Refused(ValueError):
    """The input is illegal. Carries every refusal at once, so that a user can fix all of them together."""

    def __init__(self, refusals: Iterable[Refusal]) -> None:
        self.refusals = tuple(refusals)
        if not self.refusals:
            raise AssertionError("a Refused without a refusal says nothing")
        super().__init__("\n".join(str(refusal) for refusal in self.refusals))

    @property
    def fields(self) -> tuple[str, ...]:
        """The refused fields, in the order they were found."""
        return tuple(refusal.field for refusal in self.refusals)


class NotOffered(Exception):
    """The stack does not answer this question, or not for this input. Every report shows the reason.

    Args:
        lack: the kind of reason (`lacks.LACKS`). Lacks of the stack itself or of the device do not lower
            coverage; so say "stack" only where no other recipe or adapter could be answered.
    """

    def __init__(self, words: str = "", lack: Lack = "adapter") -> None:
        super().__init__(words)
        self.lack: Lack = lack


class Moved(NotOffered):
    """The adapter looked for a name in the stack that is not there. Whether the stack keeps the contract is not known,
    so the case is not run: a fork that renames what is asked of it is not conformant for that.
    """


MOVED = "moved"
"""How the protocol writes it, among the kinds of reason."""


def decline(who: str, reasons: Mapping[Lack, Mapping[str, object]]) -> None:
    """Decline for the first reason that applies, kind by kind in the order given.

    Args:
        who: the stack, as the report shall name it.
        reasons: kind of reason → words → whether it applies.

    Raises:
        NotOffered: with the words and the kind.
    """
    for lack, told in reasons.items():
        for words, applies in told.items():
            if applies:
                raise NotOffered(f"{who}: {words}", lack)


class Unreachable(Exception):
    """Something needed is missing: an environment, a package, a working protocol. Never a violation.

    If a stack or an assistant raises it, the case is broken. If a check raises it (say, a package is not installed),
    the case was not run.
    """


def install_by(make: str, pip: str) -> str:
    """The command that installs what is missing: make's in a checkout of this repository, pip's where there is none."""
    return make if (Path(__file__).parents[2] / "Makefile").is_file() else pip


def refuse(field: str, value: object, problem: str, remedy: str) -> Refused:
    """A `Refused` with a single refusal: `raise refuse("depth", 0, "must be at least 1", "give …")`."""
    return Refused([Refusal(field=field, value=shown(value), problem=problem, remedy=remedy)])


def shown(value: object) -> str:
    """`repr`, truncated to fit a terminal line. Of a long text or sequence only the beginning is drawn at all."""
    if isinstance(value, (str, bytes)) and len(value) > _DRAWN:
        return f"{repr(value[:_DRAWN])[:100]}… ({len(value) + 2} characters)"
    if isinstance(value, (tuple, list)) and len(value) > _DRAWN:
        return f"{repr(value[:_DRAWN])[:100]}… ({len(value)} entries)"
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:100]}… ({len(text)} characters)"


_DRAWN = 1000


class Refusals:
    """Collects refusals so that all of them are raised at once.

    >>> found = Refusals()
    >>> found.unless(56 % 8 == 0, "kv_groups", 8, "must divide heads (56)", "choose a divisor")
    >>> found.raise_any()
    """

    def __init__(self) -> None:
        self._found: list[Refusal] = []

    def add(self, field: str, value: object, problem: str, remedy: str) -> None:
        self._found.append(Refusal(field=field, value=shown(value), problem=problem, remedy=remedy))

    def unless(self, holds: bool, field: str, value: object, problem: str, remedy: str) -> None:
        """Record a refusal unless the relation holds."""
        if not holds:
            self.add(field, value, problem, remedy)

    def extend(self, refused: Refused) -> None:
        self._found.extend(refused.refusals)

    def merge(self, others: Refusals) -> None:
        self._found.extend(others._found)

    def __bool__(self) -> bool:
        return bool(self._found)

    def __iter__(self) -> Iterator[Refusal]:
        return iter(self._found)

    def raise_any(self) -> None:
        """Raise everything that was recorded.

        Raises:
            Refused: when at least one refusal was recorded.
        """
        if self._found:
            raise Refused(self._found)

"""Whether the loss and the gradient norm, looked at as curves, would have shown that a stack is wrong.

A party is watched while a check trains it. A later step is compared with the first one of the same recipe over the same
data; in most checks of several ranks the first is the step on one rank.
"""

from dataclasses import dataclass, replace
from typing import Any

from contracts.spec import Party, Session, Step, Trained, Training

CLOSE = 1e-4  # relative: a difference that two curves on one page do not show
AGREES = "agrees"


@dataclass(frozen=True, kw_only=True)
class Curves:
    """What the two curves show: "agrees", or the two numbers; empty where no step was taken twice."""

    loss: str = ""
    norm: str = ""


class Watched:
    """A party whose training is watched. In everything else it is the party."""

    def __init__(self, party: Party) -> None:
        self._party = party
        self._taken: list[tuple[Any, Step]] = []  # what a step was given, and the step
        self.curves = Curves()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._party, name)

    def train(self, session: Session) -> Trained:
        party: Training = self._party  # type: ignore[assignment]  # who is asked to train offers it
        trained = party.train(session)
        for index, step in enumerate(trained.steps):
            given = [each[index : index + 1] for each in (session.batches, session.windows)]
            self._compare((session.recipe, step.number, *given), step)
        return trained

    def _compare(self, given: Any, step: Step) -> None:
        first = next((taken for before, taken in self._taken if before == given), None)
        if first is None:
            self._taken.append((given, step))
            return
        pairs = {"loss": (_total(step), _total(first)), "norm": (step.grad_norm, first.grad_norm)}
        agreed = [name for name in pairs if getattr(self.curves, name) in ("", AGREES)]  # what once differed stays
        self.curves = replace(self.curves, **{name: _told(*pairs[name]) for name in agreed})


def _total(step: Step) -> float:
    return float(step.losses.get("total", float("nan")))


def _told(found: float, want: float) -> str:
    return AGREES if abs(found - want) <= CLOSE * abs(want) else f"{found:.5g} and not {want:.5g}"

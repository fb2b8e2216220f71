"""Whether anything happened in what a check compared: two runs in which nothing moves agree in every number.

A case that asks for training is violated where no run of it could show a movement and none did: no weight moved, no
gradient was other than 0, no step was taken. A run that shows neither says nothing. One that moves is enough, since a
case may compare it with one that must stand still.
"""

import math
from collections.abc import Iterable

from contracts.instruments import numerics
from contracts.spec import Array, Arrays, Pass, Session, Step, Trained


class Floor:
    """What was seen of the runs that a case asked for."""

    def __init__(self) -> None:
        self._moved: set[bool] = set()
        self._learned: set[bool] = set()
        self._runs, self._last = 0, ""

    def note(self, arguments: Iterable[object], answer: object) -> None:
        """One answer to one question, whatever it was about."""
        if isinstance(answer, Trained):
            (session,) = (each for each in arguments if isinstance(each, Session))
            self._note_run(session, answer)
        elif isinstance(answer, Pass) and answer.gradients:
            self._learned.add(_any(answer.gradients))

    def _note_run(self, session: Session, trained: Trained) -> None:
        steps = trained.steps
        rates = [step.lr for step in steps]
        if not any(rates):
            return
        self._runs += 1
        self._last = f"{len(steps)} steps at a rate up to {max(rates):g}"
        self._learned.update(_has_gradient(step) for step in steps if step.tokens)
        loaded = trained.loaded.weights if trained.loaded is not None else {}
        seen = [
            (at, held) for at, held in enumerate((loaded or session.weights, *(step.weights for step in steps))) if held
        ]
        if len(seen) > 1 and any(rates[seen[0][0] : seen[-1][0]]):  # some begin with a step at a rate of 0
            self._moved.add(_differ(seen[0][1], seen[-1][1]))

    @property
    def words(self) -> str:
        """What is wrong where nothing happened; empty where something did or nothing could be seen."""
        if self._learned == {False}:
            where = f"in {self._runs} runs ({self._last}) " if self._runs else ""  # or in passes, which take no step
            return f"nothing was learned: {where}every reported gradient is 0"
        if self._moved == {False}:
            return f"nothing moved: after {self._last} every weight is what it was, in each of {self._runs} runs"
        return ""


def _has_gradient(step: Step) -> bool:
    return not math.isfinite(step.grad_norm) or step.grad_norm > 0 or _any(step.gradients)


def _any(arrays: Arrays) -> bool:
    """Whether an element is other than 0, and than -0, of which a byte is not 0."""
    return any(any(each.data) and bool(numerics.tensor(each).ne(0).any()) for each in arrays.values())


def _differ(before: Arrays, after: Arrays) -> bool:
    return any(_moved(before[name], each) for name, each in after.items() if name in before)


def _moved(before: Array, after: Array) -> bool:
    """Whether two tensors differ by more than the dtype in which they are reported, or the sign of a 0."""
    if before.data == after.data:
        return False
    one, other = numerics.tensor(before), numerics.tensor(after)
    return one.shape != other.shape or not bool((one.to(other.dtype) == other).all())

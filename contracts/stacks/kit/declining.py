"""Cases that a stack's abilities exclude are declined in their words: a reason stands once, and the plan reads it."""

from collections.abc import Iterable

from contracts.spec import Abilities, Absence, Lack, NotOffered

STEPS = frozenset({"built", "initial", "messages", "rehearse", "run_model", "step_memory", "train"})
"""The questions about whole models. A block by itself is asked whatever else the recipe has."""


def lacks(features: str, kind: Lack, reason: str, *, asked: frozenset[str] | None = None) -> Absence:
    """What a stack lacks: one feature, or several that it does not have together, with blanks between.

    It is lacking in the questions of `asked`: those about whole models by default, and all of them if it is float64,
    in place of which everything is then asked in float32.
    """
    if asked is None:
        asked = frozenset() if features == "float64" else STEPS
    return Absence(features=frozenset(features.split()), kind=kind, reason=reason, asked=asked)


def without(questions: str, kind: Lack, reason: str) -> Absence:
    """Questions that a stack has nothing to answer with, with blanks between. The reason says what it has instead."""
    return Absence(features=frozenset(), kind=kind, reason=reason, asked=frozenset(questions.split()))


def declined(who: str, abilities: Abilities, wanted: Iterable[str], question: str) -> None:
    """Decline where the abilities lack a feature that a question needs.

    Args:
        who: the stack, as the report shall name it.
        wanted: the features (`spec.needs.features` reads them off a recipe and an execution).

    Raises:
        NotOffered: with the first reason, and whose lack it is.
    """
    found = abilities.absence(wanted, {question})
    if found is not None:
        raise NotOffered(f"{who}: {found}", found.kind)

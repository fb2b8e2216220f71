"""What a stack's abilities do not have is declined in their words: a reason stands once, and the plan reads it too."""

from __future__ import annotations

from collections.abc import Iterable

from contracts.spec.abilities import Abilities
from contracts.spec.errors import NotOffered


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

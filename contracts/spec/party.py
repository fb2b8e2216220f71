"""What every party declares about itself. A party answers questions: the stack under test, or an assistant to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from contracts.spec.abilities import Abilities
from contracts.spec.topology import Layout


@runtime_checkable
class Party(Protocol):
    """What every party declares about itself.

    `offers` names the questions it answers. `layouts` names the parallel layouts it can build; it is empty for a party
    that builds no mesh. `labels` maps a question to how its answer comes about, where that is not simply the code under
    test: a shim, a substituted kernel, a table of facts. Every report shows all three.

    A party in Python may also have `repeats`: a frozenset of the questions whose answers depend only on their
    arguments. Such a question is asked once a run with the same arguments. It is asked again only by a check that asks
    twice within one case, in order to compare the two answers. Without `repeats` every question is asked every time.

    A party may also have `abilities`: an `Abilities` value that says what it can build (`contracts.spec.abilities`).
    The plan then asks each case on the richest recipe that it can build, and on the leanest. Without it every case is
    asked as it was written and on its leanest recipe. `abilities_of` reads it.

    A party may have `computes_on`: the devices, in torch's names, that an `Execution` and a `BlockCall` may name.
    Without it that is only the CPU.

    If correct stacks differ, a party may have `conventions`: name → its choice (`contracts.spec.conventions`). It is
    judged by what it declares; where it names none, by the first choice.
    """

    name: str
    version: str
    offers: frozenset[str]
    layouts: frozenset[Layout]
    labels: Mapping[str, str]


def public(version: str) -> str:
    """A version without what names a commit: what a release, and a deviation of it, is called by."""
    return version.partition("+")[0]


def abilities_of(party: object) -> Abilities | None:
    """What a party declares that it can build; None when it declares nothing."""
    declared = getattr(party, "abilities", None)
    return declared if isinstance(declared, Abilities) else None

"""What every party says of itself, whatever it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from contracts.spec.topology import Layout


@runtime_checkable
class Party(Protocol):
    """What every party says of itself.

    `offers` names the questions it answers, `layouts` the parallel layouts it can build (none for one that builds no
    mesh), `labels` says how an answer came about where that is not plainly the code under test: a shim, a
    substituted kernel, a table of facts. All three stand in every report.

    A party in Python may also have `repeats`, a frozenset of those of its questions that it answers from nothing but
    their arguments (of a fresh process each, say). Such a question with the same arguments is put once a run, and again
    only within one case, where a check that asks twice compares the two. Without it every question is put every time.
    """

    name: str
    version: str
    offers: frozenset[str]
    layouts: frozenset[Layout]
    labels: Mapping[str, str]

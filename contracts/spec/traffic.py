"""What a step sends at its true size, told by one rank of it without memory and without the others.

In a rehearsal the world is made up: one process stands for one rank of it. What is floating point has a shape and no
elements, so that a model of any size can be built, spread and stepped; whole numbers are real, and every other rank is
taken to put in the same ones. Numbers that a step is told (norms, losses) mean nothing; what is sent does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from contracts.spec.array import Element
from contracts.spec.party import Party
from contracts.spec.recipe import Recipe
from contracts.spec.topology import Group
from contracts.spec.training import Execution

Routing = Literal["balanced", "crowded"]
"""Where tokens are taken to go, because rows follow what a router chooses. Balanced: choice j of the token at place t
of what a router is given (rows one behind another) is expert (t · k + j) mod E. Crowded: experts 0 … k - 1, always."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One collective or message that a rank issues.

    Args:
        op: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, barrier …; send and receive for messages.
        group: which of `Rehearsal.groups` it goes over.
        shapes, dtypes: of what this rank puts in; of a receive, of what it takes.
        reduce: sum, max … where it reduces.
        sent, received: rows to and from each member, where they are given.
        peer: the other rank of a message, in the world; the root of what has one.
    """

    op: str
    group: int
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Element, ...]
    reduce: str = ""
    sent: tuple[int, ...] = ()
    received: tuple[int, ...] = ()
    peer: int | None = None


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Bytes of one parameter on one rank behind a step.

    Args:
        cut: the mesh axes that cut it among ranks, by the stack's names, outermost first.
        state: of the optimizer's tensors of its shape; counters are left out.
    """

    weight: int
    gradient: int
    state: int
    cut: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """A step of one rank.

    Args:
        groups: members of the groups that were used, by rank in the group.
        issued: by the step, in order; what building the model sends is no part of it. What the stages of a pipeline
            tell each other of losses and counters, for the log, may be left out.
        held: parameter → what this rank holds of it.
        experts: of these parameters, those of routed experts.
    """

    groups: tuple[Group, ...]
    issued: tuple[Sent, ...]
    held: Mapping[str, Holding]
    experts: frozenset[str]


class Rehearsing(Party, Protocol):
    """A step at its true size."""

    def rehearse(self, recipe: Recipe, execution: Execution, rank: int, routing: Routing) -> Rehearsal:
        """The first step of a run on one rank of the execution's world, over `batch.total` sequences of the recipe's
        length, one document each. No device and no other process is needed, and none is asked."""
        ...

"""The traffic of a step at its true size, found by a dry run of one rank, without memory and without other ranks.

A dry run has one process, which acts as one rank of a simulated world. Floating-point tensors have shapes and no
elements, so a model of any size can be built, sharded and stepped. Integers are real, and every other rank is assumed
to contribute the same ones. The norms and losses of a dry run mean nothing; its collectives and shapes do.
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
"""The choices that routers are assumed to make. Balanced: choice j of token t is expert (t · k + j) mod E, where t
counts the tokens that the router is given, row by row. Crowded: always experts 0 … k - 1."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One collective or message that a rank issues.

    Args:
        op: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, barrier …; send and receive for messages.
        group: index into `Rehearsal.groups`.
        shapes, dtypes: of this rank's input; of a receive, of its output.
        reduce: sum, max … for a reduction.
        sent, received: rows to and from each member, for a collective with split sizes.
        peer: for a message the other rank, numbered in the world; for a collective with a root, the root.
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
    """Bytes of one parameter on one rank after a step.

    Args:
        cut: the mesh axes that shard it, by the stack's names, outermost first.
        state: bytes of the optimizer's tensors that have its shape; counters are left out.
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
        issued: collectives and messages of the step, in order, without those that build the model. Losses and counters
            that pipeline stages exchange for the log may be left out.
        held: parameter → bytes of it on this rank.
        experts: names of the parameters that belong to routed experts.
    """

    groups: tuple[Group, ...]
    issued: tuple[Sent, ...]
    held: Mapping[str, Holding]
    experts: frozenset[str]


class Rehearsing(Party, Protocol):
    """A dry run of a training step at its true size."""

    def rehearse(self, recipe: Recipe, execution: Execution, rank: int, routing: Routing) -> Rehearsal:
        """A dry run of a step on one rank of the execution's world. If the first step does what no other does
        (weights are gathered ahead of the next one, a pipeline makes a trial pass), it is one after the first.

        The batch has `batch.total` sequences of the recipe's length, one document each. The answer needs no device and
        no other process. Raises `NotOffered` for a recipe or an execution that the stack does not have.
        """
        ...

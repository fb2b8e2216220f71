"""What stages of a pipeline send to each other: every message of a run, as one rank issued it (tier dist).

Two ranks that both send first, or that count their messages differently, hang; NCCL waits for both sides of a message,
gloo takes one that nobody ever asks for. So what is judged is what was issued, and not that it went well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from contracts.spec.array import Element
from contracts.spec.party import Party
from contracts.spec.topology import Group
from contracts.spec.training import Session


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message between two ranks, as one of them issued it.

    Args:
        sends: whether this rank sends it; otherwise it receives.
        peer: the other rank, in the world.
        batch: number of the call that issued it, from 0; messages of one number were issued together.
        batched: whether that call takes several messages; otherwise it was a plain send or receive.
    """

    sends: bool
    peer: int
    shape: tuple[int, ...]
    dtype: Element
    batch: int
    batched: bool


@dataclass(frozen=True, kw_only=True)
class Messages:
    """The messages of a run on one rank, in the order in which they were issued.

    Args:
        warnings: what was warned of meanwhile.
        before: members of every process group that the process held before the run; `held` the same while it ran.
    """

    issued: tuple[Message, ...]
    warnings: tuple[str, ...]
    before: tuple[Group, ...]
    held: tuple[Group, ...]


class Messaging(Party, Protocol):
    """A run whose messages are looked at."""

    def messages(self, session: Session) -> Messages:
        """Train in a running world, and say which messages this rank sent and received."""
        ...

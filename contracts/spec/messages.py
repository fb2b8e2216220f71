"""The point-to-point messages between pipeline stages, as one rank issued them (tier dist).

Two ranks hang if both send first or if they count their messages differently. NCCL waits for both sides of a message,
but gloo accepts a message that nobody receives. So contracts judge the messages that were issued, not whether the run
ended.
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
    """One point-to-point message, as one of its two ranks issued it.

    Args:
        sends: whether this rank sends it; otherwise it receives.
        peer: the other rank, numbered in the world.
        batch: number of the call that issued it, from 0; messages with one number were issued together.
        batched: whether it was issued by a call for several messages (`batch_isend_irecv`); otherwise by a plain send
            or receive.
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
        warnings: the warnings issued during the run.
        before: members of every process group of the process before the run; `held` is the same during the run.
    """

    issued: tuple[Message, ...]
    warnings: tuple[str, ...]
    before: tuple[Group, ...]
    held: tuple[Group, ...]


class Messaging(Party, Protocol):
    """The point-to-point messages of a training run."""

    def messages(self, session: Session) -> Messages:
        """Train in a running world, and return the messages that this rank sent and received, in order."""
        ...

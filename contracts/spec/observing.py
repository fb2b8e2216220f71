"""What is observed of a training script, whatever stack it is of."""

from __future__ import annotations

from typing import Protocol

from contracts.spec.party import Party


class Observing(Party, Protocol):
    """A stack whose training can be observed as it runs, by `rankproof observe`."""

    def trace(self) -> str:
        """The folder that holds the trace of one training run of the stack's own.

        The folder must stay until the process ends.
        """
        ...

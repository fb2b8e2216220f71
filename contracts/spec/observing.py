"""What is observed of a training script, whatever stack it is of."""

from __future__ import annotations

from typing import Protocol

from contracts.spec.party import Party


class Observing(Party, Protocol):
    """A stack whose training can be observed as it runs, by `rankproof observe`."""

    def trace(self, run: str = "judged") -> str:
        """The folder that holds the trace of one training run of the stack's own.

        The folder must stay until the process ends.

        Args:
            run: "judged" is the stack's own choice. Others come in pairs that must do the same: "one-rank" and
                "spread" over several ranks; "whole" and "resumed", which ends after the same step; "plain" and
                "recomputed", or compiled, offloaded or otherwise wrapped.

        Raises:
            NotOffered: for a run that it does not have.
        """
        ...

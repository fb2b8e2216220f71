"""The node a run needs: its fabric, its devices, its host settings (PREF)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from contracts.spec.party import Party


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One reason not to launch: the promise it breaks, what was found where, what is wrong, what to do.

    A tool that is absent, or printed something that is not its format, is a finding too: it is never a pass.
    """

    promise: str
    field: str
    value: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.promise} {self.field} = {self.value}: {self.problem}; {self.remedy}"


class Machine(Party, Protocol):
    """What a stack's operator side says of a node, from what the node printed."""

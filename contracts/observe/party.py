"""A trace as the party that is judged: it answers one question, where the trace lies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from contracts.observe.trace import Trace
from contracts.spec.topology import Layout


class Observed:
    """A training run that was observed."""

    offers = frozenset({"trace"})
    layouts: frozenset[Layout] = frozenset()
    labels: Mapping[str, str] = {}

    def __init__(self, trace: Trace) -> None:
        begin = trace.ranks[0].begin
        self.folder = trace.folder
        self.name = Path(begin["command"][0]).name if begin["command"] else "script"
        self.version = f"on {trace.world} rank{'s' if trace.world > 1 else ''}"

    def trace(self) -> str:
        return str(self.folder)

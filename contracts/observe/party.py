"""A trace as the party that is judged: it answers one question, where the trace lies."""

from collections.abc import Mapping
from pathlib import Path

from contracts.observe.trace import Trace
from contracts.spec import Layout, NotOffered

PAIRS = {"spread": "one-rank", "resumed": "whole", "recomputed": "plain"}
"""What a run must equal, by what it is."""


class Observed:
    """A training run that was observed."""

    offers = frozenset({"trace"})
    layouts: frozenset[Layout] = frozenset()

    def __init__(self, trace: Trace, like: Mapping[str, Path] | None = None) -> None:
        """Judge `trace`; `like` are traces that it must equal, by what they are: one-rank, whole or plain."""
        begin, self.like = trace.ranks[0].begin, dict(like or {})
        self.folder = trace.folder
        self.labels: Mapping[str, str] = {"trace": begin["shims"]} if begin.get("shims") else {}
        self.name = Path(begin["command"][0]).name if begin["command"] else "script"
        self.version = f"on {trace.world} rank{'s' if trace.world > 1 else ''}"

    def trace(self, run: str = "judged") -> str:
        if run in self.like:
            return str(self.like[run])
        if run != "judged" and PAIRS.get(run) not in self.like:
            raise NotOffered("no trace of a run that it must equal was given", "case")
        return str(self.folder)

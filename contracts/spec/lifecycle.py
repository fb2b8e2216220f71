"""The life of a run: manifests, triage, out-of-memory records, goodput (MANI, MEM-03, MEM-04, GOOD).

The values stand with their rules in `manifest`, `triage`, `allocator` and `goodput`.
"""

from __future__ import annotations

from typing import Protocol

from contracts.spec.allocator import AllocatorTrend, FlagEffect, MemorySample, OomCause, OutOfMemory
from contracts.spec.goodput import Goodput, Span
from contracts.spec.manifest import Manifest, Reuse, RunEvent, State, StateVolumes
from contracts.spec.party import Party
from contracts.spec.triage import Diagnosis, RunFacts, Symptom


class Lifecycle(Party, Protocol):
    """What a stack says of a run that is under way, stuck, failed or slow."""

    def advance(self, manifest: Manifest, event: RunEvent) -> Manifest:
        """The manifest after an event; refuses an event that its state does not allow."""
        ...

    def run_state(self, manifest: Manifest) -> State:
        """The state of a manifest that was found; refuses one whose fields contradict its state."""
        ...

    def reuse(self, volumes: StateVolumes, prior: StateVolumes | None) -> tuple[Reuse, ...]:
        """What a run takes over from the prior one, a line each kind of state; refuses kinds that share a volume.
        `prior` is as the prior run left it."""
        ...

    def triage(self, facts: RunFacts) -> Diagnosis:
        """Where to look first when a run is stuck, failed, thin or odd."""
        ...

    def symptom_row(self, symptom: Symptom) -> Diagnosis:
        """The row of the operator's table for a symptom that somebody reports."""
        ...

    def oom_cause(self, record: OutOfMemory) -> OomCause:
        """Why an allocation failed; refuses a record whose numbers cannot be."""
        ...

    def allocator_trend(self, samples: tuple[MemorySample, ...]) -> AllocatorTrend:
        """What reserved and allocated do under one shape over a run."""
        ...

    def expandable_effect(self, off: tuple[MemorySample, ...], on: tuple[MemorySample, ...]) -> FlagEffect:
        """Whether expandable_segments helped, from a run without it and a run with it."""
        ...

    def goodput(self, spans: tuple[Span, ...], start: int, end: int) -> Goodput:
        """The wall clock from `start` to `end` (ms) in parts."""
        ...

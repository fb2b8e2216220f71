"""The life of a run: manifests, triage, out-of-memory records, goodput (MANI, MEM-03, MEM-04, GOOD).

`manifest`, `triage`, `allocator` and `goodput` have the values and their rules.
"""

from __future__ import annotations

from typing import Protocol

from contracts.spec.allocator import AllocatorTrend, FlagEffect, MemorySample, OomCause, OutOfMemory
from contracts.spec.goodput import Goodput, Span
from contracts.spec.manifest import Manifest, Reuse, RunEvent, State, StateVolumes
from contracts.spec.party import Party
from contracts.spec.triage import Diagnosis, RunFacts, Symptom


class Lifecycle(Party, Protocol):
    """Judgements about a run that is under way, stuck, failed or slow."""

    def advance(self, manifest: Manifest, event: RunEvent) -> Manifest:
        """The manifest after an event. Raises `Refused` for an event that its state does not allow."""
        ...

    def run_state(self, manifest: Manifest) -> State:
        """The state of a manifest. Raises `Refused` if its fields contradict its state."""
        ...

    def reuse(self, volumes: StateVolumes, prior: StateVolumes | None) -> tuple[Reuse, ...]:
        """What a run reuses of the prior run, one entry for each kind of state.

        `prior` are the volumes as the prior run left them; None when there was none. Raises `Refused` when two kinds of
        state share a volume.
        """
        ...

    def triage(self, facts: RunFacts) -> Diagnosis:
        """The first place to look, from the facts about a run. Raises `Refused` for contradicting facts."""
        ...

    def symptom_row(self, symptom: Symptom) -> Diagnosis:
        """The row of the operator's table for a reported symptom."""
        ...

    def oom_cause(self, record: OutOfMemory) -> OomCause:
        """Why an allocation failed. Raises `Refused` for a record with impossible numbers."""
        ...

    def allocator_trend(self, samples: tuple[MemorySample, ...]) -> AllocatorTrend:
        """How reserved and allocated memory develop over a run, under one shape of batches.

        Raises `Refused` for impossible numbers, and for samples that are not in order of their steps.
        """
        ...

    def expandable_effect(self, off: tuple[MemorySample, ...], on: tuple[MemorySample, ...]) -> FlagEffect:
        """Whether expandable_segments helped, from the samples of a run without it and of a run with it."""
        ...

    def goodput(self, spans: tuple[Span, ...], start: int, end: int) -> Goodput:
        """The wall clock from `start` to `end`, in ms, divided into step, compile, checkpoint, data, eval and idle.

        Raises `Refused` for a clock or a span that ends before it starts, and for a span outside the clock.
        """
        ...

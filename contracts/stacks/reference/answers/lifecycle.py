"""What the reference says of a run that is under way, stuck, failed or slow."""

from contracts.spec import allocator, triage
from contracts.spec import goodput as clock
from contracts.spec import manifest as manifests
from contracts.spec.allocator import AllocatorTrend, FlagEffect, MemorySample, OomCause, OutOfMemory
from contracts.spec.goodput import Goodput, Span
from contracts.spec.manifest import Manifest, Reuse, RunEvent, State, StateVolumes
from contracts.spec.triage import Diagnosis, RunFacts, Symptom


class LifecycleAnswers:
    """The answers of `Reference` on this subject."""

    QUESTIONS = frozenset(
        {
            "advance", "run_state", "reuse", "triage", "symptom_row", "oom_cause", "allocator_trend",
            "expandable_effect", "goodput",
        }
    )  # fmt: skip

    def advance(self, manifest: Manifest, event: RunEvent) -> Manifest:
        return manifests.advance(manifest, event)

    def run_state(self, manifest: Manifest) -> State:
        return manifests.run_state(manifest)

    def reuse(self, volumes: StateVolumes, prior: StateVolumes | None) -> tuple[Reuse, ...]:
        return manifests.reuse(volumes, prior)

    def triage(self, facts: RunFacts) -> Diagnosis:
        return triage.triage(facts)

    def symptom_row(self, symptom: Symptom) -> Diagnosis:
        return triage.symptom_row(symptom)

    def oom_cause(self, record: OutOfMemory) -> OomCause:
        return allocator.oom_cause(record)

    def allocator_trend(self, samples: tuple[MemorySample, ...]) -> AllocatorTrend:
        return allocator.allocator_trend(samples)

    def expandable_effect(self, off: tuple[MemorySample, ...], on: tuple[MemorySample, ...]) -> FlagEffect:
        return allocator.expandable_effect(off, on)

    def goodput(self, spans: tuple[Span, ...], start: int, end: int) -> Goodput:
        return clock.goodput(spans, start, end)

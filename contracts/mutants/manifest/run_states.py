"""Stacks whose manifests record what never happened, record nothing, or mistake one volume for another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.errors import Refused
from contracts.spec.manifest import Manifest, Reuse, RunEvent, State, StateVolumes
from contracts.stacks.reference.stack import Reference


@mutant(of="MANI-01", case="error", says="the state is running, expected error", bugs=("PRV-19",))
class SwallowsTheFailure(Reference):
    """The collector catches the exception of the remote call, logs it and keeps polling."""

    def advance(self, manifest: Manifest, event: RunEvent) -> Manifest:
        return manifest if event.kind == "failed" else super().advance(manifest, event)


@mutant(of="MANI-01", case="polled-twice-then-ok", says="backend_identity is None, expected te-2.16+fa-2.8.3")
class KeepsTheResultAlone(Reference):
    """The collector writes the result without the backend that produced it."""

    def advance(self, manifest: Manifest, event: RunEvent) -> Manifest:
        kept = {"bench_result": event.results["bench_result"]} if event.results else None
        return super().advance(manifest, replace(event, results=kept))


@mutant(of="MANI-01", case="polled-before-it-starts", says="the state is running, expected detached")
class TakesAPollForAStart(Reference):
    """A poll counts as a start, so a run that was never scheduled looks like a dead collector."""

    def advance(self, manifest: Manifest, event: RunEvent) -> Manifest:
        begun = manifest.state == "detached" and event.kind == "polled"
        return super().advance(manifest, replace(event, kind="started") if begun else event)


class _SetsTheState(Reference):
    """Writes the state an event stands for, without a look at the one before."""

    ends: Mapping[str, State] = {"started": "running", "finished": "ok", "failed": "error"}

    def advance(self, manifest: Manifest, event: RunEvent) -> Manifest:
        state = self.ends.get(event.kind, manifest.state)
        return replace(manifest, state=state, completed_at=event.at, artifacts=event.artifacts, error=event.error)


@mutant(of="MANI-01a", case="error-to-ok", says="was accepted, expected a refusal")
class LateResultWins(_SetsTheState):
    """A result that lands after the timeout overwrites the error: the state is assigned, not advanced."""


@mutant(of="MANI-01a", case="detached-to-ok", says="was accepted, expected a refusal")
class SkipsRunning(Reference):
    """The first poll finds the call finished and writes ok over detached, so its start is never recorded."""

    def advance(self, manifest: Manifest, event: RunEvent) -> Manifest:
        jumps = manifest.state == "detached" and event.kind == "finished"
        return super().advance(replace(manifest, state="running") if jumps else manifest, event)


@mutant(of="MANI-01a", case="failed-without-a-message", says="was accepted, expected a refusal")
class WritesAnEmptyError(Reference):
    """`str(error)` of an exception without arguments is empty, so the manifest's error has no message."""

    def advance(self, manifest: Manifest, event: RunEvent) -> Manifest:
        try:
            return super().advance(manifest, event)
        except Refused as refused:
            if set(refused.fields) != {"error"}:
                raise
            return replace(manifest, state="error", completed_at=event.at, error=event.error)


@mutant(of="MANI-01b", case="error-without-call-graph", says="a legal input was refused")
class DemandsACallGraph(Reference):
    """Over-correction: refuses an error without a snapshot of the call graph, though the snapshot is what failed."""

    def run_state(self, manifest: Manifest) -> State:
        lacking = manifest.state == "error" and manifest.call_graph is None
        return super().run_state(replace(manifest, error=None) if lacking else manifest)


@mutant(of="MANI-01b", case="error-that-left-a-trace", says="the state is ok, expected error")
class ArtifactsMeanOk(Reference):
    """The state is guessed from the uploads: a failed run that left its trace counts as a success."""

    def run_state(self, manifest: Manifest) -> State:
        return "ok" if manifest.artifacts else super().run_state(manifest)


@mutant(of="MANI-01c", case="ok-without-artifacts", says="was accepted, expected a refusal", bugs=("PRV-18",))
class BelievesTheWord(Reference):
    """Reads only `state`, so an ok without an artifact is an ok."""

    def run_state(self, manifest: Manifest) -> State:
        return manifest.state


@mutant(of="MANI-04", case="same-volume-older-contents", says="is reused, not changed", bugs=("PRV-21",))
class SameNameSameState(Reference):
    """Compares the volume's name and not its visible contents: without a reload, an older checkpoint goes unnoticed."""

    def reuse(self, volumes: StateVolumes, prior: StateVolumes | None) -> tuple[Reuse, ...]:
        lines = super().reuse(volumes, prior)
        return tuple(replace(line, word="reused") if line.word == "changed" else line for line in lines)


@mutant(of="MANI-04", case="data-from-elsewhere", says="data is reused, not moved")
class SameGenerationSameState(Reference):
    """Over-correction: compares contents and not the volume, so g7 of another data set counts as the same."""

    def reuse(self, volumes: StateVolumes, prior: StateVolumes | None) -> tuple[Reuse, ...]:
        lines = super().reuse(volumes, prior)
        return tuple(replace(line, word="reused") if line.word == "moved" and prior else line for line in lines)


@mutant(of="MANI-04a", case="one-volume-for-everything", says="was accepted, expected a refusal", bugs=("PRV-17",))
class OneTreeForEverything(Reference):
    """One volume has three directories: the mounts differ, so they look separate."""

    def reuse(self, volumes: StateVolumes, prior: StateVolumes | None) -> tuple[Reuse, ...]:
        apart = replace(
            volumes,
            compile_cache=replace(volumes.compile_cache, name="cache"),
            data=replace(volumes.data, name="data"),
        )
        return super().reuse(apart, prior)

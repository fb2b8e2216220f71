"""Stacks whose manifests record what never happened, record nothing, or mistake one volume for another."""

from collections.abc import Mapping
from dataclasses import replace

from contracts.law._bugs.broken import broken, with_attributes
from contracts.spec import Refused
from contracts.spec.manifest import Manifest, RunEvent, State
from contracts.stacks.reference.stack import Reference


@broken(Reference, "advance", "MANI-01[error]: the state is running, expected error", bugs=("PRV-19",))
def swallows_the_failure(advance, self, manifest, event):
    """The collector catches the exception of the remote call, logs it and keeps polling."""
    return manifest if event.kind == "failed" else advance(self, manifest, event)


@broken(Reference, "advance", "MANI-01[polled-twice-then-ok]: backend_identity is None, expected te-2.16+fa-2.8.3")
def keeps_the_result_alone(advance, self, manifest, event):
    """The collector writes the result without the backend that produced it."""
    kept = {"bench_result": event.results["bench_result"]} if event.results else None
    return advance(self, manifest, replace(event, results=kept))


@broken(Reference, "advance", "MANI-01[polled-before-it-starts]: the state is running, expected detached")
def takes_a_poll_for_a_start(advance, self, manifest, event):
    """A poll counts as a start, so a run that was never scheduled looks like a dead collector."""
    begun = manifest.state == "detached" and event.kind == "polled"
    return advance(self, manifest, replace(event, kind="started") if begun else event)


class _SetsTheState(Reference):
    """Writes the state an event stands for, without a look at the one before."""

    ends: Mapping[str, State] = {"started": "running", "finished": "ok", "failed": "error"}

    def advance(self, manifest: Manifest, event: RunEvent) -> Manifest:
        state = self.ends.get(event.kind, manifest.state)
        return replace(manifest, state=state, completed_at=event.at, artifacts=event.artifacts, error=event.error)


with_attributes(
    "LateResultWins",
    "A result that lands after the timeout overwrites the error: the state is assigned, not advanced.",
    "MANI-01a[error-to-ok]: was accepted, expected a refusal",
    owner=_SetsTheState,
)


@broken(Reference, "advance", "MANI-01a[detached-to-ok]: was accepted, expected a refusal")
def skips_running(advance, self, manifest, event):
    """The first poll finds the call finished and writes ok over detached, so its start is never recorded."""
    jumps = manifest.state == "detached" and event.kind == "finished"
    return advance(self, replace(manifest, state="running") if jumps else manifest, event)


@broken(Reference, "advance", "MANI-01a[failed-without-a-message]: was accepted, expected a refusal")
def writes_an_empty_error(advance, self, manifest, event):
    """`str(error)` of an exception without arguments is empty, so the manifest's error has no message."""
    try:
        return advance(self, manifest, event)
    except Refused as refused:
        if set(refused.fields) != {"error"}:
            raise
        return replace(manifest, state="error", completed_at=event.at, error=event.error)


@broken(Reference, "run_state", "MANI-01b[error-without-call-graph]: a legal input was refused")
def demands_a_call_graph(run_state, self, manifest):
    """Over-correction: refuses an error without a snapshot of the call graph, though the snapshot is what failed."""
    lacking = manifest.state == "error" and manifest.call_graph is None
    return run_state(self, replace(manifest, error=None) if lacking else manifest)


@broken(Reference, "run_state", "MANI-01b[error-that-left-a-trace]: the state is ok, expected error")
def artifacts_mean_ok(run_state, self, manifest):
    """The state is guessed from the uploads: a failed run that left its trace counts as a success."""
    return "ok" if manifest.artifacts else run_state(self, manifest)


@broken(Reference, "run_state", "MANI-01c[ok-without-artifacts]: was accepted, expected a refusal", bugs=("PRV-18",))
def believes_the_word(run_state, self, manifest):
    """Reads only `state`, so an ok without an artifact is an ok."""
    return manifest.state


@broken(Reference, "reuse", "MANI-04[same-volume-older-contents]: is reused, not changed", bugs=("PRV-21",))
def same_name_same_state(reuse, self, volumes, prior):
    """Compares the volume's name and not its visible contents: without a reload, an older checkpoint goes unnoticed."""
    lines = reuse(self, volumes, prior)
    return tuple(replace(line, word="reused") if line.word == "changed" else line for line in lines)


@broken(Reference, "reuse", "MANI-04[data-from-elsewhere]: data is reused, not moved")
def same_generation_same_state(reuse, self, volumes, prior):
    """Over-correction: compares contents and not the volume, so g7 of another data set counts as the same."""
    lines = reuse(self, volumes, prior)
    return tuple(replace(line, word="reused") if line.word == "moved" and prior else line for line in lines)


@broken(Reference, "reuse", "MANI-04a[one-volume-for-everything]: was accepted, expected a refusal", bugs=("PRV-17",))
def one_tree_for_everything(reuse, self, volumes, prior):
    """One volume has three directories: the mounts differ, so they look separate."""
    apart = replace(
        volumes,
        compile_cache=replace(volumes.compile_cache, name="cache"),
        data=replace(volumes.data, name="data"),
    )
    return reuse(self, apart, prior)

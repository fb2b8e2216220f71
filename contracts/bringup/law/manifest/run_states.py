"""The manifest of a detached run: its state transitions, the fields of each state, and what a re-run reuses."""

from dataclasses import replace

from contracts.contract import contract
from contracts.law._support.answers import refusal_of
from contracts.spec.lifecycle import Lifecycle
from contracts.spec.manifest import EventKind, Manifest, Reuse, RunError, RunEvent, State, StateVolume, StateVolumes

DETACHED = Manifest(
    run="nam56r-17", app_id="ap-5Qx", function_call_id="fc-01J", launched_at="2026-04-05T09:00:00Z", state="detached"
)
RUNNING = replace(DETACHED, state="running", last_polled_at="2026-04-05T09:03:00Z")
OK = replace(
    RUNNING, state="ok", completed_at="2026-04-05T11:41:07Z", last_polled_at="2026-04-05T11:41:07Z",
    artifacts=("receipt.json", "trace/rank-3.json", "summary.md"),
    bench_result="bench/result.json", backend_identity="te-2.16+fa-2.8.3",
)  # fmt: skip
TIMEOUT = RunError(type="FunctionTimeoutError", message="no result after 7200 s")
ERROR = replace(
    RUNNING, state="error", completed_at="2026-04-05T11:03:00Z", last_polled_at="2026-04-05T11:03:00Z",
    error=TIMEOUT, call_graph="call-graph-2.json",
)  # fmt: skip

STARTED = RunEvent(kind="started", at="2026-04-05T09:03:00Z")
POLLED = RunEvent(kind="polled", at="2026-04-05T09:33:00Z")
FINISHED = RunEvent(
    kind="finished", at="2026-04-05T11:41:07Z", artifacts=("receipt.json", "trace/rank-3.json", "summary.md"),
    results={"bench_result": "bench/result.json", "backend_identity": "te-2.16+fa-2.8.3"},
)  # fmt: skip
FAILED = RunEvent(kind="failed", at="2026-04-05T11:03:00Z", error=TIMEOUT, call_graph="call-graph-2.json")

LIVES: dict[str, tuple[tuple[RunEvent, ...], State, str | None]] = {  # events → last state, when it completed
    "started": ((STARTED,), "running", None),
    "polled-before-it-starts": ((POLLED,), "detached", None),
    "polled-twice-then-ok": ((STARTED, POLLED, POLLED, FINISHED), "ok", "2026-04-05T11:41:07Z"),
    "error": ((STARTED, POLLED, FAILED), "error", "2026-04-05T11:03:00Z"),
}


@contract("MANI-01", asks="advance", cases=LIVES, source="modal")
def a_run_goes_forward_to_ok_or_error(
    stack: Lifecycle, events: tuple[RunEvent, ...], state: State, completed: str | None
) -> None:
    """A detached run goes from detached to running to ok or error. Its final manifest has the time and either the
    artifacts or an error with a type and a message.

    A collector that swallowed the exception of its remote call left its manifest in `running`. Partial logs without a
    manifest update cost a day.
    """
    manifest = DETACHED
    for event in events:
        manifest = stack.advance(manifest, event)
    assert manifest.state == state, f"the state is {manifest.state}, expected {state}"
    assert manifest.completed_at == completed, f"completed_at is {manifest.completed_at}, expected {completed}"
    last = events[-1]
    assert manifest.last_polled_at == last.at or last.kind == "started", (
        f"last_polled_at is {manifest.last_polled_at}, expected {last.at}"
    )
    if state == "ok":
        assert set(manifest.artifacts) == set(last.artifacts), (
            f"artifacts are {manifest.artifacts}, not {last.artifacts}"
        )
        for name, value in (last.results or {}).items():
            found = getattr(manifest, name)
            assert found == value, f"{name} is {found}, expected {value}"
    if state == "error":
        assert manifest.error == TIMEOUT, f"the error is {manifest.error}, expected {TIMEOUT}"
        assert manifest.call_graph == last.call_graph, f"the call graph of the failure is {manifest.call_graph}"
    for name in ("run", "app_id", "function_call_id", "launched_at"):
        found = getattr(manifest, name)
        assert found == getattr(DETACHED, name), f"{name} is {found}, but {getattr(DETACHED, name)} at launch"


ILLEGAL: dict[str, tuple[Manifest, RunEvent]] = {
    "detached-to-ok": (DETACHED, FINISHED),
    "ok-to-running": (OK, STARTED),
    "ok-to-error": (OK, FAILED),
    "ok-twice": (OK, replace(FINISHED, at="2026-04-05T12:00:00Z")),
    "error-to-running": (ERROR, STARTED),
    "error-to-ok": (ERROR, FINISHED),
    "finished-without-artifacts": (RUNNING, replace(FINISHED, artifacts=())),
    "failed-without-an-error": (RUNNING, replace(FAILED, error=None)),
    "failed-without-a-message": (RUNNING, replace(FAILED, error=RunError(type="FunctionTimeoutError", message=" "))),
    "failed-without-a-type": (RUNNING, replace(FAILED, error=RunError(type="", message="no result after 7200 s"))),
}


@contract("MANI-01a", asks="advance", cases=ILLEGAL, source="modal")
def no_other_way_is_taken(stack: Lifecycle, manifest: Manifest, event: RunEvent) -> None:
    """No event skips `running` on the way to ok, goes back to an earlier state, leaves ok or error, or ends a run
    without artifacts or a typed error.

    A late result that turns an error into ok, or a second collector that restarts a finished run, makes the manifest
    record what never happened. An empty error reads as "it just failed".
    """
    refused = refusal_of(stack.advance, manifest, event)
    words = str(refused)
    names: dict[EventKind, tuple[str, ...]] = {
        "finished": (manifest.state, "artifacts"), "failed": (manifest.state, "error"), "started": (manifest.state,),
    }  # fmt: skip
    assert any(name in words for name in names[event.kind]), f"the refusal names none of {names[event.kind]}: {words}"


SOUND: dict[str, tuple[Manifest, State]] = {
    "detached": (DETACHED, "detached"),
    "detached-and-polled": (replace(DETACHED, last_polled_at="2026-04-05T09:01:00Z"), "detached"),
    "running": (RUNNING, "running"),
    "ok": (OK, "ok"),
    "error": (ERROR, "error"),
    "error-without-call-graph": (replace(ERROR, call_graph=None), "error"),
    "error-that-left-a-trace": (replace(ERROR, artifacts=("trace/rank-3.json",)), "error"),
}
TORN = {  # manifest, the field that contradicts its state
    "ok-without-completed-at": (replace(OK, completed_at=None), "completed_at"),
    "ok-without-artifacts": (replace(OK, artifacts=()), "artifacts"),
    "ok-with-an-error": (replace(OK, error=TIMEOUT), "error"),
    "error-without-error": (replace(ERROR, error=None), "error"),
    "error-without-message": (replace(ERROR, error=RunError(type="OutOfMemoryError", message="")), "error"),
    "error-without-completed-at": (replace(ERROR, completed_at=None), "completed_at"),
    "running-and-completed": (replace(RUNNING, completed_at="2026-04-05T11:41:07Z"), "completed_at"),
    "detached-with-an-error": (replace(DETACHED, error=TIMEOUT), "error"),
}


@contract("MANI-01b", asks="run_state", cases=SOUND, source="modal")
def a_sound_manifest_is_read(stack: Lifecycle, manifest: Manifest, state: State) -> None:
    """A manifest whose fields agree with its state is read as that state, whatever else the collector saved or failed
    to save.
    """
    found = stack.run_state(manifest)
    assert found == state, f"the state is {found}, expected {state}"


@contract("MANI-01c", asks="run_state", cases=TORN, source="modal")
def a_manifest_that_contradicts_itself_is_refused(stack: Lifecycle, manifest: Manifest, field: str) -> None:
    """A manifest whose fields contradict its state is refused, with the field: ok needs completed_at and artifacts,
    error needs a typed message, and an unfinished run has neither.

    Two collectors that write one manifest, or one collector killed between two writes, leave such a file.
    """
    refused = refusal_of(stack.run_state, manifest)
    assert field in str(refused), (
        f"the refusal of a manifest in state {manifest.state} does not name {field}: {refused}"
    )


CKPT = StateVolume(name="ckpt-nam56r", mount="/vol/ckpt", generation="step-1200")
CACHE = StateVolume(name="inductor-h200", mount="/vol/cache", generation="g41")
DATA = StateVolume(name="fineweb-v3", mount="/vol/data", generation="g7")
LEFT = StateVolumes(checkpoint=CKPT, compile_cache=CACHE, data=DATA)
ALIKE = StateVolumes(  # three volumes whose mounts share a prefix; the contents of one changed
    checkpoint=replace(CKPT, mount="/vol/data-ckpt"),
    compile_cache=replace(CACHE, mount="/vol/data-cache", generation="g42"),
    data=DATA,
)
EMPTY = StateVolumes(
    checkpoint=replace(CKPT, generation=None), compile_cache=replace(CACHE, generation=None), data=DATA
)

AFTER = {  # volumes of the re-run, of the prior run, and the word for checkpoint, compile cache, data
    "all-reused": (LEFT, LEFT, ("reused", "reused", "reused")),
    "first-run": (EMPTY, None, ("fresh", "fresh", "moved")),
    "cold-cache": (replace(LEFT, compile_cache=EMPTY.compile_cache), LEFT, ("reused", "fresh", "reused")),
    "same-volume-older-contents": (  # not reloaded: what the prior run committed is not visible yet
        replace(LEFT, checkpoint=replace(CKPT, generation="step-900")), LEFT, ("changed", "reused", "reused"),
    ),
    "data-from-elsewhere": (  # its generation has the same name by chance
        replace(LEFT, data=replace(DATA, name="fineweb-v4")), LEFT, ("reused", "reused", "moved"),
    ),
    "mounts-that-begin-alike": (ALIKE, LEFT, ("reused", "changed", "reused")),
}  # fmt: skip


@contract("MANI-04", asks="reuse", cases=AFTER, source="modal")
def a_rerun_states_what_it_reused(
    stack: Lifecycle, volumes: StateVolumes, prior: StateVolumes | None, words: tuple[str, str, str]
) -> None:
    """A re-run states, for checkpoint, compile cache and data, which volume it uses and whether the contents are those
    that the prior run left.

    A volume's name does not say which contents are visible: without a reload it shows an older state. "It behaves
    differently this time" is first a question of what was warm.
    """
    lines: dict[str, Reuse] = {line.kind: line for line in stack.reuse(volumes, prior)}
    for kind, word in zip(("checkpoint", "compile_cache", "data"), words, strict=True):
        assert kind in lines, f"there is no line for {kind}"
        line = lines[kind]
        now: StateVolume = getattr(volumes, kind)
        assert line.word == word, f"{kind} is {line.word}, not {word}: volume {now.name}, contents {now.generation}"
        assert (line.volume, line.generation) == (now.name, now.generation), (
            f"the line says {kind} is {line.generation} on {line.volume}, but it is {now.generation} on {now.name}"
        )


SHARED = {  # volumes, and the name that appears twice
    "one-volume-for-everything": (
        StateVolumes(
            checkpoint=replace(CKPT, name="scratch"), compile_cache=replace(CACHE, name="scratch"),
            data=replace(DATA, name="scratch"),
        ),
        "scratch",
    ),
    "cache-on-the-checkpoint-volume": (replace(LEFT, compile_cache=replace(CACHE, name=CKPT.name)), "ckpt-nam56r"),
    "data-mounted-over-checkpoints": (replace(LEFT, data=replace(DATA, mount="/vol/ckpt")), "/vol/ckpt"),
}  # fmt: skip


@contract("MANI-04a", asks="reuse", cases=SHARED, source="modal playbook")
def the_three_kinds_of_state_are_separate_volumes(stack: Lifecycle, volumes: StateVolumes, twice: str) -> None:
    """Checkpoint, compile cache and data are on separate volumes. Two of them on one volume are refused, with that
    volume.

    On one volume "something in storage is weird" cannot be narrowed down: a flood of cache files looks like a slow
    loader, and clearing the cache removes the checkpoint.
    """
    refused = refusal_of(stack.reuse, volumes, None)
    assert twice in str(refused), f"the refusal does not name {twice}: {refused}"

"""The manifest of a detached run: its state transitions, the fields that each state needs, and what a re-run reuses.

A run that outlives its caller has no terminal. Only its manifest distinguishes a run that was never scheduled from one
whose collector died. So the types here can express a broken manifest, and the rules below refuse it. Times are UTC,
ISO 8601.
"""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from contracts.spec import codec, former_name
from contracts.spec.errors import Refusals, refuse

SCHEMA = "rankproof.manifest/1"

State = Literal["detached", "running", "ok", "error"]
EventKind = Literal["started", "polled", "finished", "failed"]


@dataclass(frozen=True, kw_only=True)
class RunError:
    """Why a run failed: a type that can be counted, and a message."""

    type: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The durable state of a detached run. The launch writes it, the collector advances it, operators read it.

    The launch fills in the run, the app, the remote call and the time of launch. The collector fills in the rest: names
    of what the remote side left, the error, and the call graph at the time when the call timed out or failed.
    """

    run: str
    app_id: str
    function_call_id: str
    launched_at: str
    state: State
    last_polled_at: str | None = None
    completed_at: str | None = None
    artifacts: tuple[str, ...] = ()
    error: RunError | None = None
    call_graph: str | None = None
    bench_result: str | None = None
    bench_telemetry: str | None = None
    backend_identity: str | None = None
    remote_output_json: str | None = None
    remote_runtime_provenance: str | None = None
    schema: str = SCHEMA


@dataclass(frozen=True, kw_only=True)
class RunEvent:
    """The events that the collector saw: the remote call began, was polled, returned, or failed (a timeout is a
    failure).

    `results` of a call that returned: bench_result, bench_telemetry, backend_identity and the like, by field name.
    """

    kind: EventKind
    at: str
    artifacts: tuple[str, ...] = ()
    error: RunError | None = None
    call_graph: str | None = None
    results: Mapping[str, str] | None = None


NEXT: Mapping[tuple[State, EventKind], State] = {
    ("detached", "started"): "running",
    ("detached", "polled"): "detached",
    ("detached", "failed"): "error",  # never scheduled; without this move such a run could never end
    ("running", "polled"): "running",
    ("running", "finished"): "ok",
    ("running", "failed"): "error",
}
"""Every legal transition. None goes back, none skips `running` on the way to `ok`, and none leaves `ok` or `error`."""

_OF_LAUNCH = ("run", "app_id", "function_call_id")
_RESULTS = ("bench_result", "bench_telemetry", "backend_identity", "remote_output_json", "remote_runtime_provenance")


def advance(manifest: Manifest, event: RunEvent) -> Manifest:
    """The manifest after an event.

    Raises:
        Refused: for a manifest that contradicts itself, an event that its state does not allow, and an event without
            the fields that the next state needs.
    """
    run_state(manifest)
    state = NEXT.get((manifest.state, event.kind))
    if state is None:
        legal = ", ".join(kind for (before, kind) in NEXT if before == manifest.state) or "none: the run has ended"
        raise refuse("event", event.kind, f"is not legal in state {manifest.state}", f"legal there: {legal}")
    unknown = sorted(set(event.results or {}) - set(_RESULTS))
    if unknown:
        raise refuse("event.results", unknown, "is not a field of a manifest", f"known: {', '.join(_RESULTS)}")
    ended = state in ("ok", "error")
    after = replace(
        manifest, state=state, last_polled_at=event.at, completed_at=event.at if ended else None,
        artifacts=event.artifacts or manifest.artifacts, error=event.error,
        call_graph=event.call_graph or manifest.call_graph, **dict(event.results or {}),
    )  # fmt: skip
    run_state(after)
    return after


def run_state(manifest: Manifest) -> State:
    """The state of a manifest whose fields agree with it.

    Raises:
        Refused: every contradiction at once.
    """
    found = Refusals()
    found.unless(manifest.schema == SCHEMA, "schema", manifest.schema, "is another schema", f"write {SCHEMA}")
    for name in _OF_LAUNCH:
        found.unless(bool(getattr(manifest, name).strip()), name, getattr(manifest, name), "is blank", "name it")
    for name in ("launched_at", "last_polled_at", "completed_at"):
        moment = getattr(manifest, name)
        found.unless(moment is None or _is_utc(moment), name, moment, "is no UTC time", "write 2026-04-05T12:00:00Z")
    odd = [name for name in manifest.artifacts if not _is_inside(name)]
    found.unless(not odd, "artifacts", odd, "must be names inside the run folder", "write relative paths without ..")
    state, ended = manifest.state, manifest.state in ("ok", "error")
    say = f"in state {state}"
    if ended:
        found.unless(manifest.completed_at is not None, "completed_at", None, f"is missing {say}", "say when it ended")
    else:
        early = manifest.completed_at
        found.unless(early is None, "completed_at", early, f"is set {say}", "a run that continues has not ended")
    if state == "ok":
        found.unless(bool(manifest.artifacts), "artifacts", (), f"are missing {say}", "list what the run left")
    if state == "detached":
        some = manifest.artifacts
        found.unless(not some, "artifacts", some, f"are listed {say}", "a run that has not begun left none")
    error = manifest.error
    if state != "error":
        found.unless(error is None, "error", error, f"is set {say}", "a run with an error is in state error")
    elif error is None or not error.type.strip() or not error.message.strip():
        found.add("error", error, f"has no type or no message {say}", "give both: what it is, and its words")
    found.raise_any()
    return state


def dumps(manifest: Manifest) -> str:
    """The manifest as one line, the content of its file.

    Raises:
        Refused: for a manifest that contradicts itself; it must not reach the disk.
    """
    run_state(manifest)
    return codec.dumps(manifest) + "\n"


def loads(text: str | bytes) -> Manifest:
    """A manifest from its file.

    Raises:
        Refused: for text that is no manifest, one of another schema, and a manifest that contradicts itself.
    """
    data: object = codec.loads(object, text, name="manifest")
    version = former_name.current(data.get("schema")) if isinstance(data, dict) else None
    if not isinstance(data, dict) or version != SCHEMA:
        raise refuse("schema", version, f"is not {SCHEMA}", "read it with the version that wrote it")
    manifest = codec.decode(Manifest, data | {"schema": SCHEMA}, name="manifest")
    run_state(manifest)
    return manifest


StateKind = Literal["checkpoint", "compile_cache", "data"]


@dataclass(frozen=True, kw_only=True)
class StateVolume:
    """A volume with state. `generation` names its visible contents; None while it is empty."""

    name: str
    mount: str
    generation: str | None = None


@dataclass(frozen=True, kw_only=True)
class StateVolumes:
    """The three kinds of state that outlive a run."""

    checkpoint: StateVolume
    compile_cache: StateVolume
    data: StateVolume


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """What a re-run reuses of one kind of state.

    reused: the volume of the prior run, with the contents that that run left. changed: the same volume, other contents.
    moved: another volume, not empty. fresh: an empty volume.
    """

    kind: StateKind
    volume: str
    generation: str | None
    word: Literal["reused", "changed", "moved", "fresh"]


KINDS: tuple[StateKind, ...] = ("checkpoint", "compile_cache", "data")


def reuse(volumes: StateVolumes, prior: StateVolumes | None) -> tuple[Reuse, ...]:
    """What a run reuses of the prior run, one entry for each kind of state. `prior` is as the prior run left it.

    Raises:
        Refused: when two kinds share a volume or a mount.
    """
    found = Refusals()
    held = {kind: _volume(volumes, kind) for kind in KINDS}
    for place, kind in enumerate(KINDS):
        for other in KINDS[:place]:
            for name in ("name", "mount"):
                mine, theirs = (getattr(held[each], name).rstrip("/") for each in (kind, other))
                found.unless(mine != theirs, f"{kind}.{name}", mine, f"is also the {other}'s", "give each its own")
    found.raise_any()
    before = {kind: _volume(prior, kind) for kind in KINDS} if prior is not None else {}
    return tuple(
        Reuse(kind=kind, volume=now.name, generation=now.generation, word=_word(now, before.get(kind)))
        for kind, now in held.items()
    )


def _word(now: StateVolume, before: StateVolume | None) -> Literal["reused", "changed", "moved", "fresh"]:
    if now.generation is None:
        return "fresh"
    if before is None or before.name != now.name:
        return "moved"
    return "reused" if now.generation == before.generation else "changed"


def _volume(volumes: StateVolumes, kind: StateKind) -> StateVolume:
    volume = getattr(volumes, kind)
    assert isinstance(volume, StateVolume)
    return volume


def _is_utc(text: str) -> bool:
    try:
        return datetime.datetime.fromisoformat(text).utcoffset() == datetime.timedelta(0)
    except (ValueError, OverflowError):
        return False


def _is_inside(name: str) -> bool:
    return bool(name.strip()) and not name.startswith("/") and ".." not in name.split("/") and "\0" not in name

"""Manifests under any order of events, under a kill at any line of a write, and under ten thousand mutilations."""

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from contracts.bringup.instruments import run_folder
from contracts.instruments.atomic_write import write_whole
from contracts.spec.errors import Refused
from contracts.spec.manifest import (
    Manifest,
    RunError,
    RunEvent,
    StateVolume,
    StateVolumes,
    advance,
    dumps,
    loads,
    reuse,
    run_state,
)

LAUNCHED = Manifest(
    run="nam56r-17", app_id="ap-5Qx", function_call_id="fc-01J", launched_at="2026-04-05T09:00:00Z", state="detached"
)
RUNNING = replace(LAUNCHED, state="running", last_polled_at="2026-04-05T09:03:00Z")
OK = replace(
    RUNNING, state="ok", completed_at="2026-04-05T11:00:00Z", bench_result="bench.json",
    artifacts=tuple(f"trace/rank-{rank}.json" for rank in range(64)),
)  # fmt: skip
ERROR = replace(
    RUNNING, state="error", completed_at="2026-04-05T11:00:00Z", call_graph="graph.json",
    error=RunError(type="Timeout", message="7200 s"),
)  # fmt: skip
SOUND = (LAUNCHED, RUNNING, OK, ERROR)

WAYS = {"detached": {"running", "error"}, "running": {"ok", "error"}, "ok": set(), "error": set()}
"""State → the states that may follow it, written here a second time and by hand."""


class Collector(RuleBasedStateMachine):
    """Any events in any order, at any time, complete or not: the manifest stays sound and its state goes forward."""

    @initialize()
    def launch(self) -> None:
        self.manifest, self.seen = LAUNCHED, ["detached"]

    @rule(
        kind=st.sampled_from(("started", "polled", "finished", "failed")),
        minute=st.integers(0, 59),
        artifacts=st.sampled_from(((), ("receipt.json",), ("a", "b/c"), ("../etc/passwd",), ("/root",))),
        error=st.sampled_from((None, RunError(type="Timeout", message="7200 s"), RunError(type="", message=""))),
        results=st.sampled_from((None, {"bench_result": "r.json"}, {"state": "ok"})),
    )
    def happens(self, kind: Any, minute: int, artifacts: tuple[str, ...], error: RunError | None, results: Any) -> None:
        event = RunEvent(
            kind=kind, at=f"2026-04-05T10:{minute:02}:00Z", artifacts=artifacts, error=error, results=results
        )
        try:
            after = advance(self.manifest, event)
        except Refused:
            return  # and the manifest stands
        if after.state != self.manifest.state:
            self.seen.append(after.state)
        self.manifest = after

    @invariant()
    def it_is_sound_and_reads_back(self) -> None:
        assert loads(dumps(self.manifest)) == self.manifest
        assert self.manifest.app_id == LAUNCHED.app_id

    @invariant()
    def it_never_went_back(self) -> None:
        assert all(after in WAYS[before] for before, after in zip(self.seen, self.seen[1:], strict=False))

    @invariant()
    def an_end_says_what_it_is(self) -> None:
        if self.manifest.state == "ok":
            assert self.manifest.completed_at
            assert self.manifest.artifacts
        if self.manifest.state == "error":
            assert self.manifest.completed_at
            assert self.manifest.error
            assert self.manifest.error.message


Collector.TestCase.settings = settings(max_examples=120, stateful_step_count=12)
TestCollector = pytest.mark.unit(Collector.TestCase)


KILLED_AT_EVERY_LINE = """
import os, signal, sys
from pathlib import Path
from typing import Any
from contracts.instruments.atomic_write import write_whole

path, old, new = Path(sys.argv[1]), Path(sys.argv[2]).read_text(), Path(sys.argv[3]).read_text()
write = {"whole": write_whole, "plain": Path.write_text}[sys.argv[4]]
point, status = 0, None
while status != 0:
    path.write_text(old)
    child = os.fork()
    if not child:
        left = point
        def tick(frame, event, argument):
            global left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return tick
        sys.settrace(tick)
        write(path, new)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    found = path.read_text() if path.exists() else None
    print({old: "old", new: "new"}.get(found, "torn"))
    point += 1
"""


def killed(tmp_path: Path, how: str) -> list[str]:
    """What a reader finds after a kill at the first, second, … line of a write, and at last after none."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text(dumps(RUNNING))
    new.write_text(dumps(OK))
    target = tmp_path / "run" / "manifest.json"
    target.parent.mkdir()
    command = [sys.executable, "-c", KILLED_AT_EVERY_LINE, str(target), str(old), str(new), how]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split()


def test_a_kill_at_any_line_of_a_write_leaves_the_old_manifest_or_the_new_one(tmp_path: Path) -> None:
    found = killed(tmp_path, "whole")
    assert len(found) > 50, "the write was not looked at line by line"
    assert set(found) == {"old", "new"}
    assert found == sorted(found, reverse=True), "once the new one is there it stays"
    assert found[0] == "old"
    assert run_folder.read_folder(tmp_path / "run").manifest == OK, (
        "what killed writes left beside it is in nobody's way"
    )


def test_the_instrument_sees_a_torn_manifest_where_one_is_written_in_place(tmp_path: Path) -> None:
    assert "torn" in killed(tmp_path, "plain")


def test_a_manifest_that_contradicts_itself_never_reaches_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    write_whole(path, dumps(RUNNING))
    with pytest.raises(Refused, match="completed_at"):
        write_whole(path, dumps(replace(RUNNING, state="ok", artifacts=("a",))))
    assert loads(path.read_bytes()) == RUNNING


JUNK: tuple[object, ...] = (
    None, True, -1, 10**400, 0.5, "", " ", "\0", "ok", "2026-04-05", "2026-04-05T09:00:00", "9" * 5000, [], [[]],
    ["/etc/passwd"], ["a/../../b"], [1], {}, {"type": "x"}, {"type": "", "message": ""}, "2026-02-30T00:00:00Z",
)  # fmt: skip


def mutilated(draw: random.Random) -> str | bytes:
    """A sound manifest with one to three things done to it, or its text cut or with bytes changed."""
    data = json.loads(dumps(draw.choice(SOUND)))
    for _ in range(draw.randint(1, 3)):
        key = draw.choice((*data, "unknown")) if data else "unknown"
        if draw.random() < 0.3:
            data.pop(key, None)
        else:
            data[key] = draw.choice(JUNK)
    text = json.dumps(data)
    how = draw.random()
    if how < 0.15:
        return text[: draw.randrange(len(text))]
    if how < 0.3:
        body = bytearray(text.encode())
        for _ in range(draw.randint(1, 4)):
            body[draw.randrange(len(body))] = draw.randrange(256)
        return bytes(body)
    return text


def test_ten_thousand_mutilated_manifests_are_refused_or_sound() -> None:
    draw = random.Random(56)
    refused: list[Refused] = []
    for _ in range(10_000):
        text = mutilated(draw)
        try:
            manifest = loads(text)
        except Refused as caught:
            refused.append(caught)
        else:
            assert loads(dumps(manifest)) == manifest
            run_state(manifest)
    assert len(refused) > 8000
    longest = max(len(str(refusal)) for each in refused for refusal in each.refusals)
    assert longest < 2000, "a refusal is a line, not the file"


def test_a_deeply_nested_file_is_refused() -> None:
    with pytest.raises(Refused):
        loads("[" * 100_000 + "]" * 100_000)


@pytest.mark.parametrize("schema", [None, "rankproof.manifest/2", 1])
def test_another_version_is_refused_before_its_fields_are(schema: object) -> None:
    data = {**json.loads(dumps(RUNNING)), "schema": schema, "new_in_2": 1}
    with pytest.raises(Refused, match=r"is not rankproof\.manifest/1") as caught:
        loads(json.dumps(data))
    assert caught.value.fields == ("schema",)


def test_every_contradiction_is_reported_at_once() -> None:
    with pytest.raises(Refused) as caught:
        run_state(replace(OK, run=" ", completed_at=None, artifacts=(), error=RunError(type="T", message="m")))
    assert set(caught.value.fields) == {"run", "completed_at", "artifacts", "error"}


def test_a_run_that_was_never_scheduled_may_end_in_an_error() -> None:
    given_up = RunEvent(kind="failed", at="2026-04-05T21:00:00Z", error=RunError(type="NotScheduled", message="12 h"))
    assert advance(LAUNCHED, given_up).state == "error"


@pytest.mark.parametrize("manifest", [OK, ERROR], ids=["ok", "error"])
def test_nothing_happens_to_a_run_that_has_ended(manifest: Manifest) -> None:
    with pytest.raises(Refused, match="the run has ended"):
        advance(manifest, RunEvent(kind="polled", at="2026-04-06T00:00:00Z"))


def test_all_shared_volumes_are_reported_at_once() -> None:
    one = StateVolume(name="scratch", mount="/vol")
    with pytest.raises(Refused) as caught:
        reuse(StateVolumes(checkpoint=one, compile_cache=one, data=replace(one, mount="/vol/")), None)
    assert set(caught.value.fields) == {"compile_cache.name", "compile_cache.mount", "data.name", "data.mount"}

"""Manifests under a kill at any line of a write, and what contradicts itself; MANI judges their states."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.bringup.instruments import run_folder
from contracts.instruments.atomic_write import write_whole
from contracts.spec import Refused
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
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()


def test_a_kill_at_any_line_of_a_write_leaves_the_old_manifest_or_the_new_one(tmp_path: Path) -> None:
    found = killed(tmp_path, "whole")
    assert len(found) > 50, "the write was not looked at line by line"
    assert set(found) == {"old", "new"}
    assert found == sorted(found, reverse=True), "once the new one is there it stays"
    assert found[0] == "old"
    assert run_folder.read_folder(tmp_path / "run").manifest == OK, (
        "what killed writes left beside it is in nobody's way"
    )


def test_the_test_of_torn_manifests_fails_for_a_manifest_written_in_place(tmp_path: Path) -> None:
    assert "torn" in killed(tmp_path, "plain")


def test_a_manifest_that_contradicts_itself_never_reaches_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    write_whole(path, dumps(RUNNING))
    with pytest.raises(Refused, match="completed_at"):
        write_whole(path, dumps(replace(RUNNING, state="ok", artifacts=("a",))))
    assert loads(path.read_bytes()) == RUNNING


@pytest.mark.parametrize("schema", [None, "rankproof.manifest/2", 1])
def test_a_manifest_of_another_version_is_refused_before_its_fields_are_read(schema: object) -> None:
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


def test_all_shared_volumes_are_reported_at_once() -> None:
    one = StateVolume(name="scratch", mount="/vol")
    with pytest.raises(Refused) as caught:
        reuse(StateVolumes(checkpoint=one, compile_cache=one, data=replace(one, mount="/vol/")), None)
    assert set(caught.value.fields) == {"compile_cache.name", "compile_cache.mount", "data.name", "data.mount"}

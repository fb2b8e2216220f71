"""A session whose ranks die: with restarts every test has its outcome, without them the end is reported."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests_unit.ranks import running
from tests_unit.ranks.running import needs_torch, torchrun

pytestmark = needs_torch()

DEATHS = """
import ctypes, re, signal, sys
two = pytest.mark.dist(timeout=2)

def test_begins():
    assert summed(RANK) == 1

def test_fails_before_the_deaths():
    assert summed(1) == 3

def test_killed():
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    summed(1)

def test_after_the_kill():
    assert summed(1) == 2

def test_rank_zero_killed():
    if RANK == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    summed(1)

def test_segfault():
    if RANK == 1:
        ctypes.string_at(0)
    summed(1)

def test_leaves_with_zero():
    if RANK == 1:
        os._exit(0)
    summed(1)

def test_stopped():
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    summed(1)

@two
def test_holds_the_gil():
    if RANK == 1:
        ctypes.PyDLL(None).sleep(60)
    summed(1)

def test_ends():
    assert summed(RANK + 1) == 3
"""

EXPECTED = {  # test → outcome, words
    "test_begins": ("passed", ()),
    "test_fails_before_the_deaths": ("failed", ("assert 2 == 3",)),
    "test_killed": ("failed", ("rank 1 died without an outcome", "summed(1)", "gloo:all_reduce")),
    "test_after_the_kill": ("passed", ()),
    "test_rank_zero_killed": ("failed", ("rank 0 died without an outcome", "summed(1)")),
    "test_segfault": ("failed", ("rank 1 died without an outcome", "Segmentation fault", "in test_segfault")),
    "test_leaves_with_zero": ("failed", ("rank 1 died without an outcome", "summed(1)")),
    "test_stopped": ("failed", ("rank 1 was stopped by a signal", "in test_stopped")),
    "test_holds_the_gil": ("failed", ("rank 1 did not", "in test_holds_the_gil")),
    "test_ends": ("passed", ()),
}


def test_with_restarts_the_death_of_a_rank_fails_only_one_test(tmp_path: Path, subtests: pytest.Subtests) -> None:
    run = torchrun(tmp_path, {"test_deaths.py": DEATHS}, "--dist-grace=0.3", ranks=2, restarts=8, limit_s=200)
    assert list(run.outcomes) == list(EXPECTED), run.output[-4000:]
    for name, (outcome, words) in EXPECTED.items():
        with subtests.test(name):
            assert run.outcome(name) == outcome, run.words(name)
            assert len(run.outcomes[name]) == 1
            for part in words:
                assert part in run.words(name)
    with subtests.test("restarts that are left over are used for nothing, and the exit code is kept"):
        assert run.code == 1
        assert len(run.left("rank1.*.log")) == 7, "one attempt for each death and the first"
    with subtests.test("who reads reports by program is told too"):
        xml = (tmp_path / "junit.xml").read_text()
        assert xml.count('name="ranks.verdict"') == 7
        assert xml.count("&quot;recovery&quot;: &quot;restarted&quot;") == 6
    with subtests.test("each test ran once"):
        begun = [entry["start"] for entry in run.journal() if "start" in entry]
        assert sorted(begun) == sorted({*begun})


ENDS = {  # what rank 1 does → what is said
    "killed": ("os.kill(os.getpid(), 9)", "rank 1 died without an outcome"),
    "stops-the-session": ("pytest.exit('enough')", "rank 1 stopped the session in test_ends.py::test_dies: enough"),
}
WITHOUT = """
def test_begins():
    assert summed(RANK) == 1

def test_dies():
    if RANK == 1:
        {deed}
    summed(1)

def test_never():
    pass
"""


@pytest.mark.parametrize("deed", ENDS)
def test_without_restarts_a_death_is_reported_and_ends_the_session(tmp_path: Path, deed: str) -> None:
    does, said = ENDS[deed]
    run = torchrun(tmp_path, {"test_ends.py": WITHOUT.format(deed=does)}, ranks=2)
    assert run.code == 1
    assert said in run.output
    assert {name: run.outcome(name) for name in run.outcomes} == {"test_begins": "passed", "test_dies": "failed"}
    assert said in run.words("test_dies")
    assert "nothing is run after it" in run.output
    assert run.journal()[-1].get("start") == "test_ends.py::test_dies" or "report" in run.journal()[-1]


def test_without_restarts_the_death_of_rank_0_is_reported_by_another_rank(tmp_path: Path) -> None:
    files = {"test_ends.py": WITHOUT.replace("RANK == 1", "RANK == 0").format(deed="os.kill(os.getpid(), 9)")}
    run = torchrun(tmp_path, files, ranks=2)
    assert run.code == 1
    assert "rank 0 died without an outcome" in run.output
    assert "summed(1)" in run.output


RESTARTS = """
def test_poisons():
    if RANK == 1:
        raise ValueError("poison")
    summed(1)

def test_after():
    assert summed(1) == 2

def test_dies_after_its_end():
    if RANK == 1:
        import threading
        threading.Timer(0.5, os._exit, [3]).start()

@pytest.fixture(scope="module", autouse=True)
def slow_to_end():
    yield
    time.sleep(2)
"""


def test_with_recover_restart_a_failure_restarts_the_ranks_and_continues(tmp_path: Path) -> None:
    """And a death in the teardown of a module, after the last test has passed its call, is not silent."""
    run = torchrun(tmp_path, {"test_restarts.py": RESTARTS}, "--dist-recover=restart", ranks=2, restarts=2)
    assert run.code == 1
    assert run.outcome("test_poisons") == "failed"
    assert "rank 1 diverged first: ValueError: poison" in run.words("test_poisons")
    assert run.outcome("test_after") == "passed"
    assert "failed" in run.outcome("test_dies_after_its_end")
    assert "rank 1 died without an outcome" in run.words("test_dies_after_its_end")
    assert "the process group was poisoned and --dist-recover is restart" in run.output


SLOW = """
def test_begins():
    assert summed(RANK) == 1

def test_waits():
    open(f"waiting{RANK}", "w").close()
    if RANK == 0:
        time.sleep(60)
    summed(1)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_torchrun_ends_the_session_with_a_report(tmp_path: Path, number: signal.Signals) -> None:
    running.write(tmp_path, {"test_slow.py": SLOW})
    process = running.start(tmp_path, running.command(2, 2))
    try:
        while len(list(tmp_path.glob("waiting*"))) < 2 and process.poll() is None:
            time.sleep(0.1)
        began = time.monotonic()
        os.kill(process.pid, number)
        code = process.wait(30)
        seconds = time.monotonic() - began
    finally:
        running.end(process)
    run = running.ended(tmp_path, code, seconds)
    assert run.code != 0
    assert run.seconds < 10
    assert f"signal {number.name} from outside (test_slow.py::test_waits)" in run.output
    assert "time.sleep(60)" in run.output + "".join(path.read_text() for path in run.left("*.last.json"))

"""A gate that is stopped from outside leaves no process, no complete-looking record and no green."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from contracts.harness import torchrun
from contracts.ranks import guard
from contracts.ranks.guard_program import LOOKS_S
from contracts.spec.records import EXIT_CODES
from tests_unit._parties.running import RANKPROOF, ROOT, environment, ran, write
from tests_unit.test_answering import checkout as repository

PATIENCE_S = 90.0  # for what takes seconds, on a loaded machine
SLOW = """
import os, pathlib, subprocess, time
from contracts.spec.pattern import blocks, parse
print("logged in with", os.environ["HF_TOKEN"], flush=True)

class Slow:
    name, version, labels = "slow", "1", {}
    layouts, offers = frozenset(), frozenset({"blocks"})
    def blocks(self, pattern, depth):
        if not pathlib.Path("once").exists():
            pathlib.Path("once").touch()
            return ("ablock",) * depth
        subprocess.Popen(["sleep", "600"])  # as a stack has workers
        pathlib.Path("asked").touch()
        while not pathlib.Path("answer").exists():
            time.sleep(0.02)
        return blocks(parse(pattern, depth))
"""
SECRET = "PLANTED-in-the-environment"
PRINTS = """
import os, pathlib, time

def test_prints():
    print("logged in with", os.environ["HF_TOKEN"], flush=True)
    log, until = pathlib.Path(os.environ["LOG"]), time.monotonic() + 60
    while "[redacted]" not in log.read_text() and time.monotonic() < until:
        time.sleep(0.05)
    assert "[redacted]" in log.read_text()
    assert os.environ["HF_TOKEN"] not in log.read_text()
"""
SELFTEST = ("selftest", "--only", "PAT", "--with", "none", "--jobs", "2", "--report", "out")
CHECK = ("check", "--stack", "slow:Slow", "--profile", "PAT-01", "--with", "none", "--report", "out")
RANKS = ("check", "--ranks", "2", "--profile", "TOPO-05d", "--report", "out")


def marked(mark: str) -> dict[int, str]:
    """The living processes with a mark in their environment, and their commands."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and mark.encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
        except OSError:
            continue
    return found


def until(
    true: Callable[[], object], what: Callable[[], str], running: Callable[[], object] = lambda: True,
    seconds: float = PATIENCE_S,
) -> None:  # fmt: skip
    patience = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < patience, what()
        assert running(), what()
        time.sleep(0.05)


class Started:
    """A command in `folder`, whose processes have a mark."""

    def __init__(self, folder: Path, *command: object) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        env = environment(RANKPROOF_TEST_MARK=self.mark, PYTHONPATH=f"{ROOT}:{folder}", HF_TOKEN=SECRET)
        # The background of a shell ignores SIGINT, and nohup SIGHUP; the command would inherit that.
        before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGHUP)}
        try:
            with (folder / "log").open("w") as log:
                self.process = subprocess.Popen([str(word) for word in command], cwd=folder, env=env, stdout=log,
                                                stderr=log, start_new_session=True)  # fmt: skip
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def until(self, true: Callable[[], object]) -> None:
        until(true, lambda: self.log, lambda: self.process.poll() is None)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def stop(self, number: signal.Signals, seconds: float = PATIENCE_S) -> None:
        self.process.send_signal(number)
        self.ends(seconds)

    def ends(self, seconds: float = PATIENCE_S) -> None:
        self.process.wait(PATIENCE_S)
        until(lambda: not marked(self.mark), lambda: f"still there: {marked(self.mark)}", seconds=seconds)

    def end(self) -> None:
        for pid in marked(self.mark):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


def asked(folder: Path, *command: object) -> Started:
    """A check whose stack has been asked and does not answer yet."""
    (folder / "slow.py").write_text(SLOW)
    run = Started(folder, *command)
    run.until((folder / "asked").exists)
    run.until((folder / "out/output.log").exists)
    return run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_check_that_is_stopped_ends_the_processes_it_started(tmp_path: Path, number: signal.Signals) -> None:
    takes_the_judge_with_it(tmp_path, number, RANKPROOF, *CHECK)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_stopped_check_of_two_commits_reports_what_it_found_so_far(tmp_path: Path, number: signal.Signals) -> None:
    repository(tmp_path, {"slow.py": SLOW})
    run = Started(tmp_path, RANKPROOF, *CHECK[:-2], "--at", f"{tmp_path}@HEAD..", "--report", "two")
    try:
        run.until((tmp_path / "asked").exists)
        run.until((tmp_path / "two/base/output.log").exists)
        run.stop(number)
    finally:
        run.end()
    if number != signal.SIGKILL:
        assert run.process.returncode == 128 + number, run.log
        assert "INCOMPLETE: slow 1" in run.log
        assert "(1 violated, 8 not run, 1 faults of the run)" in run.log
        assert f"stopped by {number.name} before there was a verdict" in run.log.splitlines()[-1]
    assert not (tmp_path / "two/head").exists(), "the second side was begun"
    ran([RANKPROOF, "report", "two/base"], cwd=tmp_path, env=environment(), code=EXIT_CODES["incomplete"])


def takes_the_judge_with_it(
    tmp_path: Path, number: signal.Signals, *command: object, seconds: float = PATIENCE_S
) -> None:
    run = asked(tmp_path, *command)
    try:
        run.stop(number, seconds)
    finally:
        run.end()
    log = (tmp_path / "out/output.log").read_text()
    assert "logged in with [redacted]" in log, log
    assert SECRET not in log
    expected = -9 if number == signal.SIGKILL else 128 + number
    assert run.process.returncode == expected, f"ends with {run.process.returncode}, expected {expected}: {run.log}"
    assert not list(tmp_path.glob("out/run.jsonl")), "a record that looks complete"
    told = subprocess.run([RANKPROOF, "report", "out"], cwd=tmp_path, env=environment(), capture_output=True, text=True,
                          check=False)  # fmt: skip
    last = "INCOMPLETE: slow 1, profile PAT-01 (1 violated, 8 not run, 1 faults of the run)"
    assert told.returncode == EXIT_CODES["incomplete"], told.stderr
    assert "the run did not finish: 1 of 9 planned items have a result" in " ".join(told.stdout.split())
    assert told.stdout.splitlines()[-1] == last
    if number != signal.SIGKILL:
        assert f"stopped by {number.name} before there was a verdict" in run.log
        assert last in run.log.splitlines(), "what was found so far"
        assert "INCOMPLETE" in (tmp_path / "out/summary.md").read_text()
    again = ran([RANKPROOF, "replay", "out"], cwd=tmp_path, env=environment(), code=2)
    assert "holds a run that did not finish" in again.stderr


def test_a_check_on_a_full_disk_gives_no_verdict(tmp_path: Path) -> None:
    is_no_verdict(tmp_path, RANKPROOF, *CHECK)


def is_no_verdict(tmp_path: Path, *command: object) -> None:
    """On the disk there is no room for a line of a record."""
    run = asked(tmp_path, *command)
    try:
        for pid in marked(run.mark):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (512, 512))  # lines of progress fit into the log
        (tmp_path / "answer").touch()
        run.process.wait(PATIENCE_S)
    finally:
        run.end()
    assert not list(tmp_path.glob("out/run.jsonl")), "a record that looks complete"
    of_a_verdict = [word for word, code in EXIT_CODES.items() if code == run.process.returncode and word != "broken"]
    assert not of_a_verdict, f"ends with {run.process.returncode}, which is {of_a_verdict[0]}: {run.log}"


GUARD = "from contracts.ranks import guard\nwhole = guard.stand_between\n"
BROKEN: dict[str, tuple[str, signal.Signals | None, str]] = {  # a part of the command that is replaced → what it does
    "the judge lives on": (
        f"{GUARD}guard.stand_between = lambda **_: guard.Guarded()", signal.SIGKILL, "still there: .*stand_between",
    ),
    "workers live on": (
        f"{GUARD}guard.stand_between = lambda **how: whole(**{{**how, 'tree': False}})", signal.SIGKILL,
        "still there: .*'sleep 600 '",
    ),
    "a stop is an end": (
        "from contracts.harness import supervisor\n"
        "def stopped(self, number):\n    Exception.__init__(self, 'stopped')\n    self.exit_code = 0\n"
        "supervisor.Stopped.__init__ = stopped",
        signal.SIGTERM, "ends with 0, expected 143",
    ),
    "no record is no fault": (
        "from contracts.harness.commands import check\nstrict = check._verdict\n"
        "check._verdict = lambda folder, *how: strict(folder, *how) if (folder / 'run.jsonl').exists() else 0\n"
        "check._confirm = lambda *_: None",
        None, "ends with 0, which is conformant",
    ),
}  # fmt: skip


@pytest.mark.parametrize("part", BROKEN)
def test_the_tests_of_a_stopped_check_fail_if_processes_survive(part: str, tmp_path: Path) -> None:
    instead, number, words = BROKEN[part]
    start = f"{instead}\nfrom contracts.harness.cli import main\nmain(prog_name='rankproof')"
    command = (sys.executable, "-c", start, *CHECK)
    requirement = partial(is_no_verdict, tmp_path, *command)
    if number is not None:
        requirement = partial(takes_the_judge_with_it, tmp_path, number, *command, seconds=10)
    with pytest.raises(AssertionError, match=words):
        requirement()


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed; pip install torch")
@pytest.mark.parametrize(
    ("command", "workers", "number"),
    [
        (SELFTEST, "spawn_main", signal.SIGKILL),
        (RANKS, "-m pytest", signal.SIGTERM),
        (RANKS, "-m pytest", signal.SIGKILL),
    ],
    ids=["selftest", "ranks", "ranks-killed"],
)
def test_no_worker_survives_a_stopped_check(
    tmp_path: Path, command: tuple[str, ...], workers: str, number: signal.Signals
) -> None:
    run = Started(tmp_path, RANKPROOF, *command)
    try:
        run.until(lambda: sum(workers in words for words in marked(run.mark).values()) >= 2)
        run.stop(number)
    finally:
        run.end()
    assert run.process.returncode in (-9, 128 + number), run.log
    assert not [path for name in ("run.jsonl", "kills.json") for path in tmp_path.glob(f"out/{name}")]


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed; pip install torch")
def test_the_log_of_ranks_holds_no_secret_while_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_prints.py").write_text(PRINTS)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("LOG", str(tmp_path / torchrun.LOG))
    said = torchrun.run(1, [str(tmp_path / "test_prints.py"), "-qs", "-p", "no:cacheprovider"], tmp_path)
    assert "1 passed" in said


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_make_gate_ends_the_processes_it_started(tmp_path: Path, number: signal.Signals) -> None:
    """With a command that never ends in the place of what the gate starts."""
    write(tmp_path, dict.fromkeys(("pyproject.toml", "constraints.txt", ".ci/locks/dev.txt"), ""))
    ours = f'[ "$1" != gate ] || PYTHONPATH={ROOT} exec {sys.executable} -m rankproof "$@"'
    write(tmp_path, {".venv/bin/rankproof": f"#!/bin/bash\n{ours}\ntouch asked\nexec sleep 600\n"}, mode=0o755)
    (tmp_path / ".venv/.ready").touch()
    run = Started(tmp_path, "make", "-f", ROOT / "Makefile", "gate", "MEGATRON=", f"PYTHON={sys.executable}")
    try:
        run.until((tmp_path / "asked").exists)
        run.stop(number)
    finally:
        run.end()
    assert run.process.returncode != 0


def test_pausing_a_check_does_not_end_its_workers() -> None:
    """Ctrl-Z and `fg`, or a debugger, interrupt the wait of a guard past its end."""
    command = guard.command([sys.executable, "-c", "import time; time.sleep(3)"], patience_s=1.0)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as paused:
        time.sleep(0.5)
        paused.send_signal(signal.SIGSTOP)
        time.sleep(2 * LOOKS_S)
        paused.send_signal(signal.SIGCONT)
        _, said = paused.communicate(timeout=PATIENCE_S)
    assert (paused.returncode, said) == (0, "")

"""How far a run is stands on stderr while it works: in place on a terminal, now and then in a log."""

import io
import os
import pty
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.court import record
from contracts.harness import progress, selftest
from contracts.harness.progress import Progress, Told
from contracts.spec.records import Kill, Result
from tests_unit._parties.law import LAW
from tests_unit._parties.running import RANKPROOF, environment, needs

HELD = Result(id="TOPO-02", case="pp2", outcome="holds")
WRONG = Result(id="TOPO-02", case="tp2", outcome="violated", words="dp is 4")
KILLED = Kill(mutant="M", of="TOPO-02", case="pp2", fate="killed", words="dp is 4")
GONE = "\n\x1b[?25h\r\x1b[1A\x1b[2K"  # the line is erased, and what follows begins there
SOON_S = 30.0  # a safety limit; what is waited for comes within a second


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _until(said: Callable[[], str], words: str) -> None:
    limit = time.monotonic() + SOON_S
    while words not in said() and time.monotonic() < limit:
        time.sleep(0.01)
    assert words in said()


def test_progress_on_a_terminal_is_one_line_that_is_erased(tmp_path: Path) -> None:
    told, terminal = Told(tmp_path / "done"), Terminal()
    with Progress(tmp_path / "done", terminal):
        _until(terminal.getvalue, "preparing")
        told.planned(3)
        told(HELD)
        _until(terminal.getvalue, "1 of 3")
        told(WRONG)
        told(KILLED)
        _until(terminal.getvalue, "3 of 3, 1 violated")
        assert "TOPO-02[pp2]" in terminal.getvalue()
    assert terminal.getvalue().endswith(GONE)
    assert "\n" not in terminal.getvalue().removesuffix(GONE)
    assert "\x1b[?25l" not in terminal.getvalue().partition("\x1b[?25h")[2], "the cursor stays, also after a kill"
    assert "1 holds" not in terminal.getvalue(), "only what needs attention is named"


def test_progress_in_a_log_is_whole_lines_without_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "FIRST_S", 0.0)
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    told, log = Told(tmp_path / "done"), io.StringIO()
    with Progress(tmp_path / "done", log):
        told.planned(2)
        told(WRONG)
        _until(log.getvalue, "1 of 2, 1 violated")
    assert not {"\r", "\x1b"} & set(log.getvalue())
    assert all(line.startswith("rankproof: ") for line in log.getvalue().splitlines())


@pytest.mark.parametrize("setting", [{"TERM": "dumb"}, {"RANKPROOF_PROGRESS": "0"}])
def test_progress_is_not_drawn_if_a_setting_forbids_it(
    setting: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    told, terminal = Told(tmp_path / "done"), Terminal()
    with Progress(tmp_path / "done", terminal):
        told.planned(1)
        told(HELD)
        time.sleep(3 * progress.LOOK_S)
    assert terminal.getvalue() == ""


def test_progress_does_not_count_an_older_record(tmp_path: Path) -> None:
    file, terminal = tmp_path / "done", Terminal()
    for result in (HELD, WRONG):
        Told(file)(result)
    Told(file).planned(7)
    with Progress(file, terminal):
        _until(terminal.getvalue, "preparing")
        (tmp_path / "newer").write_text(f'{{"planned": 5}}\n{record.line(HELD)}\n', encoding="utf-8")
        (tmp_path / "newer").replace(file)
        _until(terminal.getvalue, "1 of 5")
    assert "of 7" not in terminal.getvalue()


@pytest.mark.parametrize("words", [("check",), ("selftest", "--only", "TOPO-02b")], ids=["check", "selftest"])
@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=needs("xdist"))])
def test_a_run_shows_on_a_terminal_how_far_it_is(words: tuple[str, ...], jobs: str, tmp_path: Path) -> None:
    here, there = pty.openpty()
    profile = ("--profile", "TOPO-02") if words[0] == "check" else ()
    asked = [RANKPROOF, *words, *profile, "--jobs", jobs, "--with", "none", "--report", "out"]
    with subprocess.Popen(asked, cwd=tmp_path, env=environment(RANKPROOF_PROGRESS="1", TERM="xterm"), stderr=there,
                          stdout=subprocess.DEVNULL) as running:  # fmt: skip
        os.close(there)
        seen = b""
        try:
            while more := os.read(here, 1 << 16):
                seen += more
        except OSError:  # so Linux says that the other end was closed
            pass
        assert running.wait(SOON_S) == 0
    os.close(here)
    assert b"rankproof: preparing" in seen or b"rankproof: 0 of " in seen  # a plan may be there before the first line
    assert seen.endswith(GONE.replace("\n", "\r\n").encode())


def test_a_self_tests_progress_ends_at_its_planned_count() -> None:
    told: list[Result | Kill] = []
    law = selftest.part_of(LAW, ["BLK-06v", "TOPO-02"])  # the former is asked on leaner recipes too
    selftest.run(law, (), told.append)
    assert len(told) == selftest.judgements(law) > sum(len(each.cases) for each in law.contracts.values())

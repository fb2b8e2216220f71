"""Stacks that attack the gate: none hangs it, speaks in its name, breaks its reports or ends in another colour."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from contracts.spec.records import EXIT_CODES
from tests_unit._parties.running import Done, side_by_side

pytestmark = pytest.mark.unit

HOSTILE = "tests_unit._parties.hostile"
BROKEN, VIOLATED = EXIT_CODES["broken"], EXIT_CODES["violated"]
KILLED = "of hostile, and the alarm did not interrupt it: the process was ended"


@dataclass(frozen=True, kw_only=True)
class Attack:
    """The exit code that a stack deserves, and words that must be said; `judged` where there is a record."""

    exit: int
    says: str
    judged: bool = True


HANGS: dict[str, Attack] = {
    "PutsOutTheTimer": Attack(exit=BROKEN, says="no answer within 0.5 s"),  # the supervisor rings again
    "TakesTheHandler": Attack(exit=BROKEN, says=f"PAT-01[nam56r] {KILLED}", judged=False),
    "RetriesWhateverComes": Attack(exit=BROKEN, says=f"PAT-01[nam56r] {KILLED}", judged=False),
    "SwallowsEverything": Attack(exit=BROKEN, says=f"PAT-01[nam56r] {KILLED}", judged=False),
    "SwallowsWhileLoading": Attack(
        exit=BROKEN, says=f"{HOSTILE}:SwallowsWhileLoading while it was loaded, and the alarm", judged=False
    ),
    "BlocksSignals": Attack(exit=BROKEN, says=f"PAT-01[nam56r] {KILLED}", judged=False),
    "StopsItself": Attack(exit=BROKEN, says=f"PAT-01[nam56r] {KILLED}", judged=False),
}
FORGERIES: dict[str, Attack] = {
    "SpeaksForTheGate": Attack(exit=BROKEN, says="ended with exit code 0 before there was a verdict", judged=False),
    "AnswersALyingTuple": Attack(exit=BROKEN, says="(LyingTuple), which is not a"),
    "AnswersAnAssertingTuple": Attack(exit=BROKEN, says="a AssertingTuple (its repr raises AssertionError)"),
    "RaisesAnAssertingError": Attack(exit=BROKEN, says="(its words raise AssertionError)"),
    "AssertsInItsLabels": Attack(exit=BROKEN, says="hostile raised AssertionError when it was asked for blocks"),
}
WORDS: dict[str, Attack] = {
    "ColouredAndTorn": Attack(exit=BROKEN, says="raised RuntimeError on blocks"),
    "AnswersHalfCharacters": Attack(exit=VIOLATED, says="\\ud800"),
    "NamesAFileThatIsNotUtf8": Attack(exit=BROKEN, says="/data/caf\\udce9"),
    "SaysTenMegabytes": Attack(exit=BROKEN, says="characters, cut here"),
    "SaysThreeHundredMegabytes": Attack(exit=BROKEN, says="characters, cut here"),
    "AnswersAMillion": Attack(exit=BROKEN, says="(1000000 entries)"),
}
ATTACKS = HANGS | FORGERIES | WORDS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Done]:
    return side_by_side(
        {
            name: ("check", "--stack", f"{HOSTILE}:{name}", "--profile", "PAT-01[nam56r]", "--with", "none",
                   "--deadline", 0.5 if name in HANGS else 60, "--report", "out")
            for name in ATTACKS
        },
        folder,
    )  # fmt: skip


def _said(done: Done) -> str:
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gets_the_verdict_it_deserves(name: str, runs: dict[str, Done], folder: Path) -> None:
    expected, done = ATTACKS[name], runs[name]
    assert done.returncode == expected.exit, f"exit code {done.returncode}; said: {_said(done)[-600:]}"
    assert expected.says in _said(done)
    assert "Traceback" not in done.stdout + done.stderr
    assert (folder / name / "out/run.jsonl").exists() == expected.judged


@pytest.mark.parametrize("name", WORDS)
def test_whatever_a_stack_says_the_files_are_whole_and_small(name: str, runs: dict[str, Done], folder: Path) -> None:
    out, done = folder / name / "out", runs[name]
    assert {each.tag for each in ElementTree.parse(out / "junit.xml").iter()} >= {"testcase"}
    assert json.loads((out / "verdict.json").read_text(encoding="utf-8"))["exit_code"] == ATTACKS[name].exit
    for line in (out / "run.jsonl").read_text(encoding="utf-8").splitlines():
        json.loads(line)
    assert sum(file.stat().st_size for file in out.iterdir()) < 500_000
    said = done.stdout.splitlines()
    assert [line for line in said if line.startswith(("BROKEN: ", "VIOLATED: "))] == [said[-2]]
    assert not [line for line in said if line.lstrip().startswith("::") or "\x1b" in line]

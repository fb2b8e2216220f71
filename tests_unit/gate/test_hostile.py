"""Stacks that attack the gate: none hangs it, speaks in its name, breaks its reports or ends in another colour."""

import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from contracts.court import record
from contracts.spec.records import EXIT_CODES, USAGE_ERROR
from tests_unit._parties.hostile import DEEDS
from tests_unit._parties.running import Done, printed, side_by_side

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
    "SaysTenMegabytes": Attack(exit=BROKEN, says="BROKEN: hostile 1"),
    "SaysThreeHundredMegabytes": Attack(exit=BROKEN, says="BROKEN: hostile 1"),
    "AnswersAMillion": Attack(exit=BROKEN, says="(1000000 entries)"),
}
ATTACKS = HANGS | FORGERIES | WORDS
_BIG = ("SaysTenMegabytes", "SaysThreeHundredMegabytes")
GROUPS = ((*HANGS,)[:4], (*HANGS,)[4:], (*FORGERIES,), tuple(name for name in WORDS if name not in _BIG), _BIG)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def done(folder: Path) -> Callable[[str], Done]:
    """How a stack fared. Its group is run when the first of it is asked for: together they take too long for one."""
    runs: dict[str, Done] = {}

    def of(name: str) -> Done:
        if name not in runs:
            group = next(group for group in GROUPS if name in group)
            runs.update(
                side_by_side(
                    {
                        each: ("check", "--stack", f"{HOSTILE}:{each}", "--profile", "PAT-01[nam56r]", "--with", "none",
                               "--deadline", 0.5 if each in HANGS else 60, "--report", "out")
                        for each in group
                    },
                    folder,
                )
            )  # fmt: skip
        return runs[name]

    return of


@pytest.mark.parametrize("name", ATTACKS)
def test_each_hostile_stack_gets_its_expected_verdict(name: str, done: Callable[[str], Done], folder: Path) -> None:
    expected, run = ATTACKS[name], done(name)
    assert run.returncode == expected.exit, f"exit code {run.returncode}; said: {printed(run)[-600:]}"
    assert expected.says in printed(run)
    assert "Traceback" not in run.stdout + run.stderr
    assert (folder / name / "out/run.jsonl").exists() == expected.judged


@pytest.mark.parametrize("name", WORDS)
def test_a_hostile_stack_cannot_corrupt_or_bloat_the_report(
    name: str, done: Callable[[str], Done], folder: Path
) -> None:
    run, out = done(name), folder / name / "out"
    assert {each.tag for each in ElementTree.parse(out / "junit.xml").iter()} >= {"testcase"}
    assert json.loads((out / "verdict.json").read_text(encoding="utf-8"))["exit_code"] == ATTACKS[name].exit
    if name in _BIG:
        assert "characters, cut here" in (out / "verdict.json").read_text(encoding="utf-8")
    for line in (out / "run.jsonl").read_text(encoding="utf-8").splitlines():
        json.loads(line)
    assert sum(file.stat().st_size for file in out.iterdir()) < 500_000
    said = run.stdout.splitlines()
    assert [line for line in said if line.startswith(("BROKEN: ", "VIOLATED: "))] == [said[-1]]
    assert not [line for line in said if line.lstrip().startswith("::") or "\x1b" in line]


@pytest.mark.parametrize("group", [0, 1])
def test_a_stack_that_tampers_with_the_judge_is_never_conformant(
    group: int, folder: Path, subtests: pytest.Subtests
) -> None:
    """These were red when they were tried; none may become green."""
    names = (*DEEDS, "AnswersWhatEqualsAnything")[group::2]
    options = ("--profile", "PAT-01[nam56r]", "--with", "none", "--deadline", 20, "--report", "out")
    runs = side_by_side({name: ("check", "--stack", f"{HOSTILE}:{name}", *options) for name in names}, folder)
    reports = side_by_side({f"{name}-report": ("report", folder / name / "out") for name in names}, folder)
    for name in names:
        with subtests.test(name):
            assert runs[name].returncode in (VIOLATED, BROKEN, 128 + signal.SIGTERM), printed(runs[name])[-600:]
            assert reports[f"{name}-report"].returncode in (VIOLATED, BROKEN, USAGE_ERROR, EXIT_CODES["incomplete"])


def test_a_record_that_a_stack_rewrites_gives_no_verdict(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPORT", str(folder / "forged/out"))
    words = ("check", "--stack", f"{HOSTILE}:ForgesTheRecord", "--profile", "PAT-01[nam56r]", "--with", "none",
             "--report", "out")  # fmt: skip
    run = side_by_side({"forged": words}, folder)["forged"]
    assert run.returncode in (EXIT_CODES["violated"], EXIT_CODES["broken"], USAGE_ERROR), "a forged record was believed"
    assert "CONFORMANT: hostile" not in run.stdout


def test_an_isolated_stack_cannot_reach_the_judge(folder: Path) -> None:
    options = ("--profile", "PAT-01[nam56r]", "--with", "none", "--report", "out", "--isolated", "--stack")
    runs = side_by_side(
        {
            "patches": ("check", *options, f"{HOSTILE}:PatchesTheJudge"),
            "right": ("check", *options, f"{HOSTILE}:Right"),
            "ours": ("check", *options, "reference"),
        },
        folder,
    )
    assert runs["patches"].returncode == VIOLATED
    assert runs["right"].returncode == 0, printed(runs["right"])
    assert "contracts.stacks.serve" in (folder / "right/out/run.jsonl").read_text(encoding="utf-8")
    assert runs["ours"].returncode == USAGE_ERROR
    assert "is a stack of the suite itself" in runs["ours"].stderr


def test_one_run_at_a_time_writes_into_a_folder(folder: Path) -> None:
    report = folder / "shared"
    with record.only_writer(report):
        words = ("check", "--stack", f"{HOSTILE}:Right", "--profile", "PAT-01[nam56r]", "--report", report)
        second = side_by_side({"second": words}, folder)["second"]
    assert second.returncode == USAGE_ERROR
    assert "another run is writing into it" in second.stderr
    assert not report.exists(), "and nothing was written"


def test_no_secret_of_the_command_or_the_environment_is_in_any_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = {"HF_TOKEN": "PLANTED-in-the-environment", "DB_URL": "postgres://u:PLANTED-in-a-url@h/db"}
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    command = f"launched:{sys.executable} -m contracts.stacks.serve {HOSTILE}:Leaks --password PLANTED-in-the-command"
    options = ("--profile", "PAT-01[nam56r]", "--with", "none", "--report", "out", "--stack")
    runs = side_by_side(
        {"leaks": ("check", *options, f"{HOSTILE}:Leaks"), "command": ("check", *options, command)}, folder
    )
    for name, run in runs.items():
        assert run.returncode in (BROKEN, EXIT_CODES["incomplete"])
        files = [*(file.read_text(encoding="utf-8") for file in (folder / name).rglob("*") if file.is_file())]
        assert "PLANTED" not in "".join([*files, run.stdout, run.stderr])
    assert "[redacted]" in runs["leaks"].stdout

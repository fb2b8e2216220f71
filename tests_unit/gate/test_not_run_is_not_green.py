"""Incidents in which "did not run" was read as green, each rebuilt here. `docs/gate.md` lists them, with sources."""

import json
import subprocess
from pathlib import Path

import pytest

from contracts.spec.records import EXIT_CODES
from tests_unit._parties.running import BAD, RANKPROOF, Done, environment, printed, side_by_side

VIOLATED, INCOMPLETE, BROKEN = EXIT_CODES["violated"], EXIT_CODES["incomplete"], EXIT_CODES["broken"]
USAGE = 2

PROJECT = {
    "conftest.py": 'pytest_plugins = ["contracts.harness.plugin"]\n',
    "tests/test_law.py": 'from contracts.harness.suite import test_unit as test_law\n__all__ = ["test_law"]\n',
}
FORGIVES_EXIT_5 = """
pytest_plugins = ["contracts.harness.plugin"]
def pytest_sessionfinish(session, exitstatus):
    if exitstatus == 5:
        session.exitstatus = 0
"""
RETURNS_INSTEAD_OF_SKIPPING = """
pytest_plugins = ["contracts.harness.plugin"]
from contracts.contract import contract

@contract("DEMO-01", asks="topology", cases={"two-ranks": (2,)}, source="here")
def returns_where_it_cannot_judge(stack, ranks):
    \"\"\"Two ranks see the same weights.\"\"\"
    if ranks < 4:
        return
    assert stack.topology(None, ranks, "own-axis")
"""
RETRIES = """
pytest_plugins = ["contracts.harness.plugin"]
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    reports = runtestprotocol(item, nextitem=nextitem)
    if any(report.failed for report in reports):
        runtestprotocol(item, nextitem=nextitem)
    return True
"""
FLAKY = """
from contracts.stacks.reference.stack import Reference
from dataclasses import replace

class Flaky(Reference):
    asked = 0

    def topology(self, degrees, world, layout):
        type(self).asked += 1
        built = super().topology(degrees, world, layout)
        return replace(built, dp=built.dp + 1) if self.asked == 1 else built
"""

PLAIN = ("pytest", "-q", "-p", "no:cacheprovider", "--disable-plugin-autoload", "--rankproof-with=none")
GATE = (*PLAIN, "--rankproof-gate", "--rankproof-report=out")
CHECK = ("check", "--with", "none", "--report", "out")
ONE = "TOPO-02[pp2-tp2-on-4]"
EIGHT = ",".join(["PAT-01[nam56r]", "PAT-01[nam52]", *(f"ARGV-02[{case}]" for case in ("native", "author")), "PAT-10"])

RUNS: dict[str, tuple[object, ...]] = {
    "exit-5-forgiven-by-a-conftest": (*GATE, "--rankproof-profile=TOPO-02", "-k", "no_such_test"),
    "a-tier-missing": (*GATE, "--rankproof-profile=full", "-m", "gpu"),
    "folder-renamed": (*GATE, "--rankproof-profile=TOPO-02", "tests_that_were_here"),
    "folder-emptied": (*GATE, "--rankproof-profile=TOPO-02", "empty"),
    "never-triggered": ("report", "out"),
    "profile-misspelt": (*CHECK, "--profile", "lanch"),
    "option-misspelt": (*CHECK, "--profil", "launch"),
    "deviations-misspelt": (*CHECK, "--deviations", "deviatoins.toml"),
    "one-deselected": (*GATE, "--rankproof-profile=TOPO-02", "-k", "not pp13"),
    "prerequisite-missing": (*CHECK, "--profile", "PAT-10"),
    "six-of-eight-skipped": (*CHECK, "--profile", EIGHT, "--form", "json"),
    "return-instead-of-skip": (*GATE, "--rankproof-profile=DEMO-01"),
    "retried": (*GATE, f"--rankproof-profile={ONE}", "--rankproof-stack=flaky:Flaky"),
    "retried-never": (*GATE, f"--rankproof-profile={ONE}", "--rankproof-stack=flaky:Flaky"),
    "not-gating": (*PLAIN, "--rankproof-profile=PAT-10"),
    "addopts": (*CHECK, "--profile", "TOPO-02"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("not-run")


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Done]:
    return side_by_side(
        RUNS,
        folder,
        _=PROJECT,
        exit_5_forgiven_by_a_conftest={"conftest.py": FORGIVES_EXIT_5},
        folder_emptied={"empty/README": "the tests have moved"},
        return_instead_of_skip={"conftest.py": RETURNS_INSTEAD_OF_SKIPPING},
        retried={"conftest.py": RETRIES, "flaky.py": FLAKY},
        retried_never={"flaky.py": FLAKY},
        addopts={"pytest.ini": "[pytest]\naddopts = -k nothing --collect-only\n"},
    )


def _in_a_shell(script: str, cwd: Path, **changes: str) -> Done:
    return subprocess.run(
        ["sh", "-c", script.replace("rankproof", str(RANKPROOF))],
        cwd=cwd, env=environment(**changes), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_a_conftest_that_turns_exit_code_5_into_0_does_not_change_the_gate(runs: dict[str, Done]) -> None:
    done = runs["exit-5-forgiven-by-a-conftest"]
    assert done.returncode == INCOMPLETE, printed(done)[-400:]
    assert "INCOMPLETE: reference" in done.stdout


def test_a_script_that_turns_exit_code_5_into_0_does_not_change_the_gate(tmp_path: Path) -> None:
    forgiving = "rankproof check --with none --profile gpu --report out; code=$?; [ $code -eq 5 ] && exit 0; exit $code"
    assert _in_a_shell(forgiving, tmp_path).returncode == INCOMPLETE
    shorter = "rankproof check --with none --profile gpu --report out || [ $? -eq 5 ]"
    assert _in_a_shell(shorter, tmp_path).returncode == 1  # the shell's own, of a test that did not hold


def test_a_tier_that_is_missing_is_red(runs: dict[str, Done], folder: Path) -> None:
    done = runs["a-tier-missing"]
    assert done.returncode == INCOMPLETE, printed(done)[-400:]
    plan = json.loads((folder / "a-tier-missing/out/run.jsonl").read_text().splitlines()[1])["plan"]
    assert {"TOPO-02", "PREC-04b"} <= {item["id"] for item in plan["items"]}


def test_a_test_folder_that_was_renamed_or_emptied_is_red(runs: dict[str, Done], folder: Path) -> None:
    assert runs["folder-renamed"].returncode == 4  # pytest's usage error, before there is a verdict
    assert not (folder / "folder-renamed/out/run.jsonl").exists()
    assert runs["folder-emptied"].returncode == INCOMPLETE


def test_a_gate_that_was_never_triggered_has_no_record_to_show(runs: dict[str, Done]) -> None:
    done = runs["never-triggered"]
    assert done.returncode == USAGE
    assert "out" in done.stderr
    assert "cannot be read" in done.stderr


@pytest.mark.parametrize("name", ["profile-misspelt", "option-misspelt", "deviations-misspelt"])
def test_a_wrong_configuration_is_an_error_and_not_an_empty_success(
    name: str, runs: dict[str, Done], folder: Path
) -> None:
    assert runs[name].returncode == USAGE
    assert not (folder / name / "out").exists()


@pytest.mark.parametrize(("name", "words"), [
    ("one-deselected", "INCOMPLETE: reference 0.1.0, profile TOPO-02 (17 holds, 1 not run)"),
    ("prerequisite-missing", "nobody answers read_pattern"),
])  # fmt: skip
def test_a_deselected_test_or_one_without_its_prerequisite_is_no_pass(
    name: str, words: str, runs: dict[str, Done]
) -> None:
    assert runs[name].returncode == INCOMPLETE
    assert words in runs[name].stdout


def test_a_run_with_six_of_eight_cases_not_run_is_incomplete(runs: dict[str, Done]) -> None:
    told = json.loads(runs["six-of-eight-skipped"].stdout)
    assert (told["counts"]["holds"], told["counts"]["not run"]) == (2, 6)
    assert (told["word"], told["exit_code"]) == ("incomplete", INCOMPLETE)
    assert runs["six-of-eight-skipped"].returncode == INCOMPLETE


def test_json_and_junit_are_as_incomplete_as_the_printed_report(runs: dict[str, Done], folder: Path) -> None:
    out = folder / "six-of-eight-skipped/out"
    told = json.loads((out / "verdict.json").read_text())
    assert told["word"] == "incomplete"
    assert told["headline"].startswith("INCOMPLETE: ")
    assert "<failure" in (out / "junit.xml").read_text()  # JUnit knows only skips, so the verdict is a case of its own
    not_run = [(result["id"], result["case"]) for result in told["results"] if result["outcome"] == "not run"]
    assert len(not_run) == 6
    for name in ("summary.md", "report.html", "junit.xml"):
        text = (out / name).read_text()
        assert [item for item in not_run if not all(part in text for part in item)] == [], (
            f"{name} counts what it does not list"
        )


def test_a_check_that_returns_where_it_should_skip_is_broken(runs: dict[str, Done], folder: Path) -> None:
    done = runs["return-instead-of-skip"]
    assert done.returncode == BROKEN, printed(done)[-400:]
    assert "the check asked no question, so it judged nothing" in done.stdout


def test_a_case_that_fails_and_passes_on_a_retry_is_violated(runs: dict[str, Done]) -> None:
    assert runs["retried-never"].returncode == VIOLATED
    done = runs["retried"]
    assert done.returncode == VIOLATED, printed(done)[-400:]
    assert f"fault (plan): {ONE} has 2 results" in done.stdout


def test_the_gate_does_not_guess_from_the_environment_whether_it_gates(tmp_path: Path, runs: dict[str, Done]) -> None:
    check = "rankproof check --with none --profile PAT-10 --report out"
    assert {_in_a_shell(check, tmp_path, CI=value).returncode for value in ("true", "")} == {INCOMPLETE}
    assert runs["not-gating"].returncode == 0  # without --gate the plugin is a plain test run, in CI too


def test_pytest_addopts_and_pytest_plugins_do_not_remove_cases_from_a_check(
    tmp_path: Path, runs: dict[str, Done]
) -> None:
    assert runs["addopts"].returncode == 0
    assert "CONFORMANT: reference 0.1.0, profile TOPO-02 (18 holds)" in runs["addopts"].stdout
    check = f"rankproof check --with none --profile '{ONE}' --report out"
    done = _in_a_shell(check, tmp_path, PYTEST_ADDOPTS="-k nothing", PYTEST_PLUGINS="no.such.plugin")
    assert done.returncode == 0, printed(done)


def test_an_older_green_record_is_not_read_as_this_run(tmp_path: Path) -> None:
    one = f"rankproof check --with none --profile '{ONE}' --report out"
    assert _in_a_shell(one, tmp_path).returncode == 0
    assert _in_a_shell(f"{one} --stack {BAD}:CannotBeBuilt", tmp_path).returncode == INCOMPLETE
    told = json.loads((tmp_path / "out/verdict.json").read_text())
    assert (told["exit_code"], told["counts"]["holds"]) == (INCOMPLETE, 0)
    assert "CannotBeBuilt not loaded, profile" in (tmp_path / "out/summary.md").read_text()

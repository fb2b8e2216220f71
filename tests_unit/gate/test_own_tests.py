"""The installed plugin in a project's own pytest: what it leaves as it is, and `parametrize_with_contracts`."""

import datetime
import sys
from pathlib import Path

import pytest

from contracts.harness.gate import today
from tests_unit._parties.running import ROOT, Done, environment, metadata, needs, ran, write

OURS = (ROOT / "docs/examples/whole_periods/ours.py").read_text(encoding="utf-8")
OWN = """
import pytest
from rankproof import parametrize_with_contracts
from ours import Ours

@pytest.fixture
def promise(): return "mine"

@pytest.fixture(params=["a"])
def stack(request): return request.param

@parametrize_with_contracts([Ours()], profile="PAT-01")
def test_ours(contract, stack, promise):
    assert (stack, promise) == ("a", "mine")
    contract()

def test_of_the_project(promise): pass
"""
TWO = """
from rankproof import parametrize_with_contracts
from ours import Ours

class Theirs(Ours):
    name = "theirs"

@parametrize_with_contracts([Ours(), Theirs()], profile="PAT-01[nam56r]", deviations="declared.toml")
def test_both(contract):
    contract()
"""
LATER = today() + datetime.timedelta(days=90)
DECLARED = f"""
[[deviation]]
id = "PAT-01"
case = "nam56r"
says = "has # blocks"
reason = "whole periods until May"
issue = "#7"
owner = "patterns"
expires = {LATER}
"""
LAW = "from contracts.harness.suite import test_unit as test_law\n__all__ = ['test_law']\n"
FAULTS = {
    "no-stack": ("[]", "stacks = []: has no stack"),
    "twice": ("[Ours(), Ours()]", "'ours': is the name of 2 stacks"),
    "no-party": ("[object()]", "is not a stack: it has no name"),
    "of-no-process": ("[Ours()], profile='dist'", "profile = 'dist': has no contract of one process"),
    "no-profile": ("[Ours()], profile='PATT'", "profile = 'PATT': selects no contract"),
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose environment has rankproof as pip would install it: pytest finds the entry point by itself."""
    of_modules = "contracts/__init__.py,,\nrankproof/__init__.py,,\n"  # whose assertions pytest rewrites
    entry = "[pytest11]\nrankproof = rankproof.pytest_plugin\n"
    metadata(tmp_path / "site", "rankproof", "0", RECORD=of_modules, **{"entry_points.txt": entry})
    write(tmp_path / "project", {"ours.py": OURS, "declared.toml": DECLARED})
    return tmp_path / "project"


def own_pytest(project: Path, tests: str, *words: str, code: int | None = None, **variables: str) -> Done:
    (project / "test_ours.py").write_text(tests)
    path = f"{project.parent / 'site'}:{ROOT}:{project}"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "-ra", *words]
    return ran(command, code=code, cwd=project, env=environment(PYTHONPATH=path, CI="1", **variables))


def test_a_test_file_of_a_project_can_ask_its_stack_every_contract(project: Path) -> None:
    done = own_pytest(project, OWN, code=1)
    # the value stands in the short summary, in the words of the contract and no other
    red = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert any(
        line.endswith("test_ours[a-PAT-01-nam56r] - Failed: violated: AEMEAEMEAEMR at depth 52 has 48 blocks")
        or line.endswith("test_ours[PAT-01-nam56r-a] - Failed: violated: AEMEAEMEAEMR at depth 52 has 48 blocks")
        for line in red
    ), done.stdout  # fmt: skip
    assert "assert 48 ==" not in done.stdout
    assert "rankproof check --stack ours:Ours --profile 'PAT-01[nam56r]'" in done.stdout
    assert "1 passed" not in done.stdout.splitlines()[-1], "nothing holds"
    assert "test_of_the_project" not in "".join(red)


@needs("xdist")
def test_two_workers_see_the_same_tests(project: Path) -> None:
    alone, shared = own_pytest(project, OWN), own_pytest(project, OWN, "-n", "2")
    assert alone.stdout.splitlines()[-1].split(" in ")[0].strip("= ") in shared.stdout.splitlines()[-1]


def test_each_stack_has_its_tests_and_a_declared_deviation_is_an_expected_failure(project: Path) -> None:
    done = own_pytest(project, TWO, "--strict-markers", "-W", "error", code=0)
    assert f"XFAIL test_ours.py::test_both[ours-PAT-01-nam56r] - declared by patterns until {LATER}" in done.stdout
    assert "test_both[theirs-PAT-01-nam56r]" in done.stdout


@pytest.mark.parametrize("fault", FAULTS)
def test_a_stack_that_cannot_be_judged_is_one_clear_collection_error(fault: str, project: Path) -> None:
    given, words = FAULTS[fault]
    done = own_pytest(
        project, TWO.replace('[Ours(), Theirs()], profile="PAT-01[nam56r]"', given), code=pytest.ExitCode.INTERRUPTED
    )
    assert words in done.stdout
    assert "Traceback" not in done.stdout


@needs("xdist")
def test_the_verdict_decides_the_exit_code_if_gate_is_given(project: Path) -> None:
    (project / "pytest.ini").write_text(
        "[pytest]\nrankproof_stack = ours:Ours\nrankproof_profile = PAT-01[nam56r]\nrankproof_with = none\n"
    )
    words = ("--rankproof-gate", "--rankproof-report", "out")
    done = own_pytest(project, LAW, *words, code=1)
    assert "VIOLATED: ours 2026.11, profile PAT-01[nam56r] (1 violated)" in done.stdout
    shared = own_pytest(project, LAW, *words, "-n", "2")
    assert "VIOLATED: ours 2026.11, profile PAT-01[nam56r] (1 violated)" in shared.stdout
    (project / "pytest.ini").write_text("[pytest]\nrankproof_deviations = declared.toml\nrankproof_stack = no:Stack\n")
    done = own_pytest(project, LAW, *words, "--rankproof-profile=PAT-01[nam56r]", RANKPROOF_STACK="ours:Ours", code=0)
    assert "CONFORMANT: ours 2026.11" in done.stdout


def test_a_pytest_session_without_contracts_does_not_load_the_suite(project: Path) -> None:
    counts = """
import sys
def test_of_the_project(request):
    assert request.config.pluginmanager.has_plugin("rankproof")
    ours = {name for name in sys.modules if name.partition(".")[0] in ("contracts", "rankproof")}
    assert ours == {"rankproof", "rankproof.options", "rankproof.pytest_plugin", "rankproof.suite"}
    assert "torch" not in sys.modules
"""
    own_pytest(project, counts, "-W", "error", "--strict-markers", code=0)
    told = own_pytest(project, "", "--help").stdout
    ours = told[told.index("rankproof: conformance of a training stack") :].split("\n\n")[0]
    assert {word for word in ours.split() if word.startswith("--") and not word.startswith("--rankproof-")} == set()


def test_a_conftest_that_names_the_plugin_does_not_load_it_twice(project: Path) -> None:
    (project / "conftest.py").write_text('pytest_plugins = ["contracts.harness.plugin"]\n')
    done = own_pytest(project, LAW, "-q", "--rankproof-profile=PAT-01[nam56r]", "--rankproof-stack=ours:Ours", code=1)
    assert "violated: AEMEAEMEAEMR at depth 52 has 48 blocks" in done.stdout


@pytest.fixture
def with_contracts(project: Path) -> Path:
    """A project that has a package `contracts` of its own, as of smart contracts."""
    (project / "contracts").mkdir()
    (project / "contracts/__init__.py").write_text("X = 1\n")
    (project / "contracts/token.py").write_text("Y = 2\n")
    return project


THEIRS = "import contracts, contracts.token\ndef test_x():\n    assert (contracts.X, contracts.token.Y) == (1, 2)\n"


@pytest.mark.parametrize("said", ["", "--import-mode=importlib", "-p no:rankproof", "--assert=plain"])
def test_a_projects_own_package_called_contracts_still_imports(with_contracts: Path, said: str) -> None:
    assert "1 passed" in own_pytest(with_contracts, THEIRS, "-W", "error", *said.split(), code=0).stdout


def test_using_both_packages_called_contracts_is_one_clear_error(with_contracts: Path) -> None:
    for tests in (OWN, THEIRS + OWN):
        done = own_pytest(with_contracts, tests, code=pytest.ExitCode.INTERRUPTED)
        words = f"`contracts` is {with_contracts / 'contracts'}"
        assert words in done.stdout
        assert f"here, and rankproof's is {ROOT / 'contracts'}: one process cannot have both" in done.stdout
        assert "Judge the stack by `rankproof check`, in a process of its own" in done.stdout
        assert "AttributeError" not in done.stdout

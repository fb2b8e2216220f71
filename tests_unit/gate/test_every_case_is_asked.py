"""The law's own tests ask the reference every case of one process, numbers included.

A fault in a case that no mutant names is missed by every other test.
"""

import importlib.util
import re
from pathlib import Path

import pytest

from contracts.court import profiles
from contracts.court.judge import NO_TORCH
from tests_unit._parties.law import LAW
from tests_unit._parties.running import ROOT, printed, side_by_side

HERE = ("pytest", "-q", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml", f"--rootdir={ROOT}")
LAW_S_TESTS = ROOT / "tests_unit/test_law.py"
TORCHLESS = {
    "conftest.py": 'import sys\nsys.modules["torch"] = None\npytest_plugins = ["contracts.harness.plugin"]\n',
    "test_law.py": 'from contracts.harness.suite import test_unit as test_law\n__all__ = ["test_law"]\n',
}
NEEDS_TORCH = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def _marks_of_make_test() -> str:
    (marks,) = re.findall(r'^\t\$\(BIN\)/pytest -m "([^"]+)"', (ROOT / "Makefile").read_text(), re.MULTILINE)
    return str(marks)


def test_make_test_asks_every_case_of_one_process(tmp_path: Path) -> None:
    words = (*HERE, "--collect-only", LAW_S_TESTS, "-m")
    done = side_by_side({"all": (*words, _marks_of_make_test()), "quick": (*words, "unit")}, tmp_path)
    every = profiles.plan(LAW, profiles.ONE_PROCESS).items
    for name, wanted in (("all", every), ("quick", [item for item in every if not LAW.contracts[item.id].slow])):
        asked = re.findall(r"test_law\.py::test_the_reference_keeps_the_law\[(.*)\]$", done[name].stdout, re.MULTILINE)
        assert sorted(asked) == sorted(f"{item.id}-{item.case}" for item in wanted)


@NEEDS_TORCH
def test_a_fault_in_a_numeric_case_that_no_mutant_names_is_found(tmp_path: Path) -> None:
    from tests_unit._parties.planted import WHERE

    words = (*HERE, "-m", "unit", f"{LAW_S_TESTS}::test_the_reference_keeps_the_law[{WHERE.id}-{WHERE.case}]")
    done = side_by_side(
        {"sound": words, "planted": (*words, "--rankproof-stack=tests_unit._parties.planted:Planted")}, tmp_path
    )
    assert done["sound"].returncode == 0, done["sound"].stdout
    assert "1 passed" in done["sound"].stdout
    assert done["planted"].returncode == 1, printed(done["planted"])
    assert f"{WHERE} is violated" in printed(done["planted"])
    assert re.search(r"y (\w+ )*differs", printed(done["planted"]))


def test_without_torch_the_numbers_are_skipped_with_that_reason(tmp_path: Path) -> None:
    words = ("pytest", "-q", "-rs", "-p", "no:cacheprovider", "--disable-plugin-autoload", "-m", "unit")
    runs = {"all": words, "named": (*words, "--rankproof-profile=BLK-03a,PAT-01a")}
    done = side_by_side(
        {name: (*each, "-k", "BLK-03a or PAT-01a") for name, each in runs.items()}, tmp_path, _=TORCHLESS
    )
    numbers, others = (len(LAW.contracts[id].cases) for id in ("BLK-03a", "PAT-01a"))
    for each in done.values():
        assert each.returncode == 0, printed(each)
        assert f"SKIPPED [{numbers}]" in each.stdout
        assert NO_TORCH in printed(each)
        assert f"{others} passed, {numbers} skipped" in each.stdout

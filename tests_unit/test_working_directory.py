"""The command is the suite's own: a folder `contracts/` of whoever runs it is never taken for it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests_unit._parties.running import RANKPROOF, ROOT, environment, metadata, ran, write

STACK = """
from contracts.stacks.reference.stack import Reference
class Mine(Reference):
    name = "mine"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with contracts of their own, whose import fails, and a stack."""
    (tmp_path / "contracts").mkdir()
    (tmp_path / "contracts/__init__.py").write_text("raise RuntimeError('the contracts of somebody else')\n")
    (tmp_path / "mine.py").write_text(STACK)
    return tmp_path


def bare() -> dict[str, str]:
    """An environment as a user has it: the suite is found where it is installed, if it is this one that is."""
    outside = environment()
    found = "import contracts, pathlib; print(pathlib.Path(contracts.__file__).parents[1])"
    without = {name: value for name, value in outside.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-P", "-c", found], env=without, capture_output=True, text=True, check=False)
    return without if done.stdout.strip() == str(ROOT) else outside


def judged(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([RANKPROOF, *words], cwd=folder, env=bare(), capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("explain", "PAT-01"),
        ("check", "--stack", "mine:Mine", "--profile", "PAT-01", "--report", "out"),
        ("check", "--stack", "mine:Mine", "--profile", "PAT", "--jobs", "2", "--with", "none", "--report", "out"),
        ("selftest", "--only", "PAT-01", "--jobs", "2", "--report", "out"),
        ("check", "--stack", "mine:Mine", "--profile", "PAT-01", "--isolated", "--report", "out"),
        ("coverage", "--stack", "mine:Mine", "--profile", "PAT-01"),
    ],
    ids=["list", "explain", "check", "check-jobs", "selftest-jobs", "isolated", "coverage"],
)
def test_commands_import_the_installed_suite_and_not_the_working_directory(
    folder: Path, words: tuple[str, ...]
) -> None:
    done = judged(folder, *words)
    assert "somebody else" not in done.stdout + done.stderr
    assert done.returncode in (0, 3), done.stderr  # 3: a party that helps is not installed here


def test_processes_that_the_reference_starts_import_the_installed_suite(folder: Path) -> None:
    pytest.importorskip("torch")
    asked = (
        "from contracts.stacks.reference.stack import Reference; print(Reference().allocator_seen({}, 'cpu').device)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", asked], cwd=folder, env=bare(), capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert (done.stdout.strip(), done.returncode) == ("cpu", 0), done.stderr


@pytest.mark.torchrun
def test_ranks_import_the_installed_suite(folder: Path) -> None:
    pytest.importorskip("torch")
    done = judged(folder, "check", "--stack", "mine:Mine", "--profile", "TOPO-05d[own-axis-tp2-on-2]", "--ranks", "2",
                  "--report", "out")  # fmt: skip
    log = folder / "out/ranks.log"
    assert "somebody else" not in done.stdout + done.stderr + (log.read_text() if log.exists() else "")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["PYTHONPATH", "-m"])
def test_python_m_rankproof_imports_the_suite_with_any_order_of_sys_path(folder: Path, name: str) -> None:
    """`python -m` puts the current folder first, and so do many by PYTHONPATH."""
    path = f"{folder}:{ROOT}" if name == "PYTHONPATH" else str(ROOT)
    words = ("check", "--stack", "mine:Mine", "--profile", "PAT-01", "--with", "none", "--report", "out")
    done = ran([sys.executable, "-m", "rankproof", *words], cwd=folder, env=environment(PYTHONPATH=path), code=0)
    assert "CONFORMANT: mine" in done.stdout


def test_a_distribution_that_was_installed_over_the_suite_is_one_clear_line(tmp_path: Path) -> None:
    """PyContracts has the name too, and pip lets it overwrite `contracts/__init__.py`."""
    site = tmp_path / "site"
    shutil.copytree(ROOT / "rankproof", site / "rankproof", ignore=shutil.ignore_patterns("__pycache__"))
    write(site, {"contracts/__init__.py": "raise RuntimeError('of Python 2')\n"})
    metadata(site, "PyContracts", "1.8.12", RECORD="contracts/__init__.py,,\n")
    done = ran([sys.executable, "-m", "rankproof", "list"], cwd=tmp_path, env=environment(PYTHONPATH=str(site)), code=2)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"rankproof: {site}/contracts/__init__.py is not rankproof's: a distribution of ")
    assert "PyContracts" in line


def test_import_rankproof_loads_the_suite_only_on_use() -> None:
    asked = (
        "import sys, rankproof\n"
        "assert 'contracts' not in sys.modules and 'pytest' not in sys.modules\n"
        "from rankproof import NotOffered, Party, Refused, Stack, refuse, parametrize_with_contracts\n"
        "import contracts.spec.errors\n"
        "assert Refused is contracts.spec.errors.Refused\n"
        "assert sorted(rankproof.__all__) == rankproof.__all__\n"
    )
    ran([sys.executable, "-P", "-c", asked], env=environment(), code=0)


OTHERS = {"contracts/ranks/guard.py", "contracts/spec/interpreter.py"}
"""Who may make a command of this interpreter; the package of ranks stands by itself, and -I is more than -P."""


def test_python_subprocesses_are_started_by_one_function_only() -> None:
    command = re.compile(r"[\[(]\s*sys\.executable,\s*[^)\s]")
    found = {
        str(file.relative_to(ROOT))
        for package in ("contracts", "rankproof")
        for file in (ROOT / package).rglob("*.py")
        if command.search(file.read_text(encoding="utf-8"))
    }
    assert found == OTHERS

"""The command is the suite's own: a folder `contracts/` of whoever runs it is never taken for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests_unit._parties.running import RANKPROOF, ROOT, environment

pytestmark = pytest.mark.unit

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
    ],
    ids=["list", "explain", "check", "check-jobs", "selftest-jobs"],
)
def test_the_suite_is_the_installed_one(folder: Path, words: tuple[str, ...]) -> None:
    done = judged(folder, *words)
    assert "somebody else" not in done.stdout + done.stderr
    assert done.returncode in (0, 3), done.stderr  # 3: a party that helps is not installed here


def test_a_process_that_the_reference_starts_finds_the_suite(folder: Path) -> None:
    pytest.importorskip("torch")
    asked = (
        "from contracts.stacks.reference.stack import Reference; print(Reference().allocator_seen({}, 'cpu').device)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", asked], cwd=folder, env=bare(), capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert (done.stdout.strip(), done.returncode) == ("cpu", 0), done.stderr


@pytest.mark.torchrun
def test_the_ranks_have_the_installed_one_too(folder: Path) -> None:
    pytest.importorskip("torch")
    done = judged(folder, "check", "--stack", "mine:Mine", "--profile", "TOPO-05d[own-axis-tp2-on-2]", "--ranks", "2",
                  "--report", "out")  # fmt: skip
    log = folder / "out/ranks.log"
    assert "somebody else" not in done.stdout + done.stderr + (log.read_text() if log.exists() else "")
    assert done.returncode == 0, done.stdout + done.stderr

"""However ranks leave, a session with a failed or unrun test is red to torchrun, and nothing of it is left running."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests_unit.ranks import running
from tests_unit.ranks.running import needs_torch, torchrun

pytestmark = needs_torch()

RED = """
def test_passes():
    assert summed(1) == 2

def test_fails():
    assert RANK == 0, "rank 1 fails"
"""
LEAVE = "import os\n" + running.CONFTEST
WAYS = {  # where all ranks leave with 0 → the files
    "in-a-test": {
        "test_it.py": "def test_passes():\n    dist.barrier()\n    os._exit(0)\n\ndef test_never(): assert 0\n"
    },
    "in-a-teardown": {
        "test_it.py": RED
        + "\n@pytest.fixture(scope='session', autouse=True)\ndef world():\n    yield\n    os._exit(0)\n"
    },
    "in-sessionfinish": {"test_it.py": RED, "conftest.py": LEAVE + "def pytest_sessionfinish():\n    os._exit(0)\n"},
    "at-exit": {"test_it.py": RED, "conftest.py": LEAVE + "import atexit\natexit.register(lambda: os._exit(0))\n"},
    "natively": {"test_it.py": RED + "\ndef test_leaves():\n    import ctypes\n    ctypes.CDLL(None)._exit(0)\n"},
    "by-the-status": {
        "test_it.py": RED,
        "conftest.py": LEAVE + "def pytest_sessionfinish(session):\n    session.exitstatus = 0\n",
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_ranks_that_all_leave_with_0_are_red(tmp_path: Path, way: str) -> None:
    run = torchrun(tmp_path, WAYS[way], ranks=2, limit_s=90)
    assert run.code != 0, run.output[-3000:]
    if way not in ("at-exit", "by-the-status"):
        assert "left with exit code 0 before its session was over" in run.output

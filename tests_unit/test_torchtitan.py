"""The real torchtitan, where it is installed: scripts that confirm what it does otherwise, promises that it keeps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VERSION = "0.3.0"
BIN = ROOT / f".venv-torchtitan-{VERSION}" / "bin"
SCRIPTS = sorted((ROOT / "docs/confirmed").glob("torchtitan_*.py"))

needs_titan = pytest.mark.skipif(
    not (BIN / "lanegate").exists(),
    reason=f"torchtitan {VERSION} is not installed: make its environment with `make titan`",
)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{BIN}:{os.environ['PATH']}"}
    words = [str(word) for word in command]
    return subprocess.run(words, check=False, capture_output=True, text=True, cwd=ROOT, env=env, timeout=280)


@pytest.mark.titan
@needs_titan
@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_a_fault_that_is_declared_shows_without_the_suite(script: Path) -> None:
    ranks = "torchrun" in script.read_text()
    begin = [BIN / "torchrun", "--standalone", "--nproc-per-node", "2"] if ranks else [BIN / "python", "-W", "ignore"]
    done = run(*begin, script)
    assert done.returncode == 0, done.stdout[-600:] + done.stderr[-600:]


@pytest.mark.titan
def test_the_version_before_fails_at_the_same_degrees_in_its_own_words() -> None:
    """Of 0.2.2 the topology alone is asked; its environment is made by `make titan TITAN=0.2.2`."""
    python = ROOT / ".venv-torchtitan-0.2.2" / "bin" / "python"
    if not python.exists():
        pytest.skip("torchtitan 0.2.2 is not installed: make its environment with `make titan TITAN=0.2.2`")
    done = run(python, "-W", "ignore", ROOT / "docs/confirmed/torchtitan_ep_divides.py")
    assert done.returncode == 0, done.stdout[-600:] + done.stderr[-600:]


@pytest.mark.titan
@needs_titan
def test_two_ranks_of_it_keep_the_promises_of_a_step(tmp_path: Path) -> None:
    cases = "PAR-01e[fsdp2],PAR-01e[borrowed-tp2-sp-ep2-etp1],OPT-04e[fsdp2],MOE-06e[tp2-sp],CKPT-02h[fsdp2]"
    done = run(BIN / "lanegate", "check", "--stack", "torchtitan", "--ranks", "2", "--profile", cases,
               "--report", tmp_path / "report")  # fmt: skip
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-600:]


@pytest.mark.unit
@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_a_script_is_short_and_stands_without_the_suite(script: Path) -> None:
    text = script.read_text()
    assert len(text.splitlines()) <= 40
    assert "lanegate" not in text
    assert "contracts" not in text


@pytest.mark.unit
def test_another_version_than_the_installed_one_is_unreachable_with_the_command() -> None:
    code = (
        "from contracts.harness.parties import load\nfrom contracts.spec.errors import Unreachable\n"
        "try:\n    load('torchtitan==9.9.9')\nexcept Unreachable as error:\n    print(error)\n"
    )
    done = run(sys.executable, "-W", "ignore", "-c", code)
    assert ".ci/titan-env 9.9.9 .venv-torchtitan-9.9.9" in done.stdout, done.stdout + done.stderr

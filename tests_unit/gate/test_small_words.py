"""What is printed beside a verdict is true: commands run, paths are the repository's, nothing is green unasked."""

import json
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from contracts.spec.records import EXIT_CODES
from tests_unit._parties.running import ROOT, Done, environment, ran

needs_torch = pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed")

SCRIPT = """
import torch
m = torch.nn.Linear(4, 4)
o = torch.optim.SGD(m.parameters(), lr=.1)
for s in range(3):
    m(torch.randn(2, 4)).sum().backward()
    o.step()  # no zero_grad
"""
STACK = """
class Ours:
    name, version, offers, layouts, labels = "o", "1", frozenset({"blocks"}), frozenset(), {}

    def blocks(self, pattern, depth):
        return ()


class Raises(Ours):
    def blocks(self, pattern, depth):
        raise KeyError(pattern)
"""


def rankproof(*words: str, cwd: Path, code: int | None = None) -> Done:
    return ran([sys.executable, "-P", "-m", "rankproof", *words], code=code, cwd=cwd,
               env=environment(OMP_NUM_THREADS="1"))  # fmt: skip


@needs_torch
def test_the_command_that_judge_prints_judges_that_item_again(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(SCRIPT)
    rankproof("observe", "--out", "a b", "t.py", cwd=tmp_path, code=0)
    first = rankproof("judge", "a b", cwd=tmp_path, code=EXIT_CODES["violated"])
    (line, *_) = [each.split(maxsplit=1)[1] for each in first.stdout.splitlines() if each.split()[:1] == ["rerun"]]
    words = shlex.split(line)
    assert words[:3] == ["rankproof", "judge", "a b"]
    again = rankproof(*words[1:], cwd=tmp_path, code=EXIT_CODES["violated"])
    assert f"profile {words[-1]} (1 violated)" in again.stdout
    rankproof("judge", "a b", "--profile", "PAT-01", cwd=tmp_path, code=2)


@needs_torch
def test_a_session_of_only_gpu_tests_fails_without_a_gpu() -> None:
    if __import__("torch").cuda.is_available():
        pytest.skip("there is a device")
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "tests_gpu/test_law.py")
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment(), capture_output=True, text=True,
                          check=False, timeout=300)  # fmt: skip
    assert done.returncode not in (0, 5), done.stdout
    assert "torch sees no CUDA device" in done.stdout
    assert "no contract of this profile is judged on a GPU" not in done.stdout


def test_paths_for_ci_are_relative_to_the_root_of_the_repository(tmp_path: Path) -> None:
    trainer = tmp_path / "stacks/trainer"
    trainer.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (trainer / "ours.py").write_text(STACK)
    for stack in ("Ours", "Raises"):
        rankproof("check", "--stack", f"ours:{stack}", "--profile", "PAT-01[nam56r]", "--report", stack, cwd=trainer)
        report = trainer / stack
        place = "stacks/trainer/ours.py"
        assert f"file={place},line=" in (report / "annotations.txt").read_text()
        (found,) = json.loads((report / "results.sarif").read_text())["runs"][0]["results"]
        assert found["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == place
        assert f'file="{place}"' in (report / "junit.xml").read_text()
    (tmp_path / ".git").rmdir()
    rankproof("check", "--stack", "ours:Ours", "--profile", "PAT-01[nam56r]", "--report", "bare", cwd=trainer)
    assert "file=ours.py,line=" in (trainer / "bare/annotations.txt").read_text()

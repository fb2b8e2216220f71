"""The templates for CI services: each is read as its service reads it, and its commands run on two stacks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from contracts.spec.records import EXIT_CODES
from tests_unit._parties.running import RANKPROOF, ROOT, environment

pytestmark = pytest.mark.unit
CI = ROOT / "docs/ci"
WORKFLOW = ROOT / "docs/examples/github-actions.yml"

FORK = """
class Green:
    name, version, layouts, labels = "fork", "7", frozenset(), {}
    offers = frozenset({"blocks"})

    def blocks(self, pattern, depth):
        family = {"A": "ablock", "E": "eblock", "M": "mblock", "R": "rblock"}
        return tuple(family[(pattern * depth)[layer]] for layer in range(depth))


class Red(Green):
    def blocks(self, pattern, depth):
        return super().blocks(pattern, depth)[: depth // len(pattern) * len(pattern)]
"""
# What the services have and this machine lacks: each stub does its part of the work.
STUBS = {
    "srun": '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n',
    "buildkite-agent": '#!/bin/sh\nwhile [ "$1" != --context ]; do shift; done\ncat > "annotated-$2.md"\n',
}
CODES = {"Green": 0, "Red": EXIT_CODES["violated"]}


def _yaml(path: Path) -> Any:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML, of the extra dev")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A toy repository outside the tree, with the stubs on its PATH."""
    (tmp_path / "fork.py").write_text(FORK, encoding="utf-8")
    (tmp_path / "rankproof-deviations.toml").touch()
    (tmp_path / "bin").mkdir()
    for name, text in STUBS.items():
        (tmp_path / "bin" / name).write_text(text, encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def _run(script: str, repository: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script as the services do: with bash, ending at the first error."""
    path = os.pathsep.join([str(repository / "bin"), str(RANKPROOF.parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script], cwd=repository, text=True,
        env=environment(PATH=path, PROFILE="PAT-01", REPORT="reports/rankproof", **variables),
        capture_output=True, check=False, timeout=600,
    )  # fmt: skip


@pytest.mark.parametrize("stack", CODES)
def test_the_action_judges_and_shows_the_verdict(stack: str, repository: Path) -> None:
    steps = {step["name"]: step for step in _yaml(CI / "action/action.yml")["runs"]["steps"]}
    variables = dict.fromkeys(steps["judge"]["env"], "") | {"JOBS": "1", "SELFTEST": "false", "STACK": f"fork:{stack}"}
    for known in ("PROFILE", "REPORT"):
        del variables[known]
    files = {"GITHUB_OUTPUT": str(repository / "output"), "GITHUB_STEP_SUMMARY": str(repository / "summary")}
    done = _run(steps["judge"]["run"], repository, **variables, **files)
    assert done.returncode == CODES[stack], done.stderr
    assert (repository / "output").read_text() == f"exit-code={CODES[stack]}\n"
    word = {"Green": "CONFORMANT", "Red": "VIOLATED"}[stack]
    assert (repository / "summary").read_text().startswith(f"## {word}: fork 7")
    said = [line for line in done.stdout.splitlines() if line.startswith("::")]
    assert said[0].startswith(f"::{'notice' if stack == 'Green' else 'error'} title=rankproof::{word}: fork 7")
    if stack == "Red":
        line = FORK.splitlines().index("class Red(Green):") + 2
        assert said[1].startswith(f"::error file=fork.py,line={line},title=PAT-01[")
    done = _run(steps["content"]["run"], repository, GITHUB_OUTPUT=str(repository / "key"))
    assert done.returncode == 0, done.stderr
    assert len((repository / "key").read_text().strip().removeprefix("key=")) == 64


@pytest.mark.parametrize("stack", CODES)
def test_gitlab_s_script_ends_with_the_verdict(stack: str, repository: Path) -> None:
    job = _yaml(CI / "gitlab-ci.yml")["rankproof"]
    done = _run("\n".join(job["script"]), repository, STACK=f"fork:{stack}")
    assert done.returncode == CODES[stack], done.stderr
    assert (repository / job["artifacts"]["reports"]["junit"]).exists()
    assert job["artifacts"]["when"] == "always"


@pytest.mark.parametrize("stack", CODES)
def test_buildkite_s_command_ends_with_the_verdict(stack: str, repository: Path) -> None:
    [step] = _yaml(CI / "buildkite.yml")["steps"]
    # Buildkite reads $$ as $: one would be filled in when the pipeline is uploaded.
    done = _run(step["command"].replace("$$", "$"), repository, STACK=f"fork:{stack}")
    assert done.returncode == CODES[stack], done.stderr
    assert (repository / "annotated-rankproof.md").exists() == (stack == "Red")


@pytest.mark.parametrize("stack", CODES)
def test_slurm_s_script_ends_with_the_verdict_behind_tee(stack: str, repository: Path) -> None:
    script = (CI / "slurm.sh").read_text(encoding="utf-8")
    done = _run(script, repository, STACK=f"fork:{stack}", RANKS="1")
    assert done.returncode == CODES[stack], done.stderr
    assert "fork 7" in (repository / "rankproof.log").read_text().splitlines()[-1]


def test_the_workflow_uses_the_action_as_it_is() -> None:
    workflow, action = _yaml(WORKFLOW), _yaml(CI / "action/action.yml")
    assert {*workflow[True]} == {"pull_request", "merge_group"}  # YAML 1.1 reads `on` as true
    job = workflow["jobs"]["gate"]
    [step] = [step for step in job["steps"] if "rankproof" in step.get("uses", "")]
    assert {*step["with"]} <= {*action["inputs"]}
    required = {name for name, told in action["inputs"].items() if told.get("required")}
    assert required <= {*step["with"]}
    used = "".join(str(step) for step in action["runs"]["steps"])
    assert [name for name in action["inputs"] if f"inputs.{name}" not in used] == []
    # What a pull request may write reaches a shell as a variable, never as text of the script.
    assert [step["name"] for step in action["runs"]["steps"] if "${{" in step.get("run", "")] == []
    assert [step["name"] for step in action["runs"]["steps"] if "run" in step and step.get("shell") != "bash"] == []


def test_the_containerfile_s_instructions_are_known_and_its_files_exist() -> None:
    lines = [
        line for line in (CI / "Containerfile").read_text(encoding="utf-8").splitlines() if line[:1] not in ("", "#")
    ]
    words = [line.split()[0] for line in lines]
    assert words == ["FROM", "COPY", "RUN", "RUN", "USER", "WORKDIR", "ENTRYPOINT", "CMD"]
    assert (ROOT / "constraints.txt").exists()
    assert "torch = [" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")

"""The templates for CI services: each is read as its service reads it, and its commands run on two stacks."""

import datetime
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.court import report
from contracts.court.verdict import verdict
from contracts.spec.records import EXIT_CODES, Item
from tests_unit._parties.running import RANKPROOF, ROOT, Done, environment, ran, write
from tests_unit.gate._recorded_run import TODAY, recorded

CI = ROOT / "docs/ci"
DAY = datetime.date.fromisoformat(TODAY)
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
    "gh": f"#!{sys.executable}\n"
    + r"""
import json, re, sys
from pathlib import Path
words, git = sys.argv[1:], Path(".git")
path = next(each for each in words if each.startswith("repos/o/r/"))
if "/check-runs" in path:  # refused as GitHub refuses
    body, file = json.load(sys.stdin), git / "check-run"
    output = body["output"]
    annotations = output["annotations"]
    assert output["title"] and output["summary"] and len(output["summary"]) < 65_536 and len(annotations) <= 50
    for each in annotations:
        assert {*each} >= {"path", "start_line", "end_line", "annotation_level", "message"}
        assert each["annotation_level"] in ("notice", "warning", "failure") and Path(each["path"]).is_file()
    if "PATCH" in words:
        assert path.endswith("/check-runs/5") and "head_sha" not in body
        annotations = json.loads(file.read_text())["output"]["annotations"] + annotations
    else:
        assert path == "repos/o/r/check-runs" and re.fullmatch("[0-9a-f]{40}", body["head_sha"]) and body["name"]
        assert body["status"] == "completed" and body["details_url"].startswith("https://")
        print(5)
    file.write_text(json.dumps(body | {"output": output | {"annotations": annotations}}))
    sys.exit()
posted, text = git / "posted", [each.removeprefix("body=@") for each in words if each.startswith("body=@")]
if not text:  # a list of the comments whose text begins with a mark
    mark = re.search(r'startswith\("(.*)"\)', words[-1])[1]
    if posted.exists() and posted.read_text().splitlines()[0] == mark:
        print(1)
    sys.exit()
if not any(each.endswith("/comments/1") for each in words):
    with (git / "posted-anew").open("a") as anew:
        anew.write("made\n")
posted.write_text(Path(text[0]).read_text())
""",
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
    write(tmp_path, {"fork.py": FORK, "rankproof-deviations.toml": ""})
    write(tmp_path / "bin", STUBS, mode=0o755)
    return tmp_path


def _run(script: str, repository: Path, code: int | None = None, **variables: str) -> Done:
    """Run a script as the services do: with bash, ending at the first error."""
    path = os.pathsep.join([str(repository / "bin"), str(RANKPROOF.parent), os.environ["PATH"]])
    given = environment(**{"PATH": path, "PROFILE": "PAT-01", "REPORT": "reports/rankproof"} | variables)
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return ran(words, code=code, limit_s=600, cwd=repository, env=given)


class Service:
    """GitHub, as far as our files go: evaluates expressions, runs the steps of the action, and has a cache."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self.cache: dict[str, dict[str, bytes]] = {}

    def run(self, event: str, branch: str) -> tuple[int, str, str]:
        """The worst exit code of the workflow's rows, the summary and the log."""
        workflow = _yaml(self.repository / ".github/workflows/rankproof.yml")
        told: dict[str, Any] = {
            "github.event_name": event, "github.ref_name": branch, "github.event.repository.default_branch": "main",
            "github.base_ref": "main" if event == "pull_request" else "", "github.job": "gate", "runner.os": "Linux",
            "github.repository": "o/r", "github.token": "t", "github.event.pull_request.number": "7",
            "github.event.pull_request.head.sha": self.git("rev-parse", branch) if event == "pull_request" else "",
            "github.sha": self.git("rev-parse", "HEAD"), "runner.arch": "X64", "strategy.job-index": "0",
        }  # fmt: skip
        if event not in workflow[True] or branch not in (workflow[True][event] or {}).get("branches", [branch]):
            return -1, "", ""
        job = workflow["jobs"]["gate"]
        [step] = [step for step in job["steps"] if "rankproof" in step.get("uses", "")]
        ended = [self._row(step["with"], told | {f"matrix.{name}": value for name, value in row.items()})
                 for row in job["strategy"]["matrix"]["include"]]  # fmt: skip
        return max(code for code, _, _ in ended), *(
            "".join(part) for part in zip(*(each[1:] for each in ended), strict=True)
        )

    def _row(self, given: dict[str, str], told: dict[str, Any]) -> tuple[int, str, str]:
        shutil.rmtree(self.repository / "reports", ignore_errors=True)  # each job has a machine of its own
        self.git("checkout", "--", ".")
        action = _yaml(CI / "action/action.yml")
        inputs = {name: about.get("default", "") for name, about in action["inputs"].items()}
        inputs |= {name: self._filled(value, told) for name, value in given.items()}
        told |= {f"inputs.{name}": value for name, value in inputs.items()} | {"code": 0}
        summary, log = self.repository / "reports/summary", ""
        for step in action["runs"]["steps"]:
            if not self._holds(step.get("if", "true"), told) or (told["code"] and "always()" not in step.get("if", "")):
                continue
            if "uses" in step:
                self._use(step, told)
                continue
            output = self.repository / "reports/output"
            output.parent.mkdir(exist_ok=True)
            output.write_text("")
            variables = {name: self._filled(value, told) for name, value in step.get("env", {}).items()}
            files = {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary)}
            done = _run(step["run"], self.repository, **variables, **files)
            told["code"], log = told["code"] or done.returncode, log + done.stdout + done.stderr
            for line in output.read_text().splitlines():
                name, _, value = line.partition("=")
                told[f"steps.{step.get('id')}.outputs.{name}"] = value
            told[f"steps.{step.get('id')}.outcome"] = "failure" if done.returncode else "success"
        return told["code"], summary.read_text() if summary.exists() else "", log

    def _use(self, step: dict[str, Any], told: dict[str, Any]) -> None:
        what, words = step["uses"].partition("@")[0], {k: self._filled(v, told) for k, v in step["with"].items()}
        folder = self.repository / words["path"]
        if what == "actions/cache/save":
            self.cache.setdefault(words["key"], {each.name: each.read_bytes() for each in folder.iterdir()})
        elif what == "actions/cache/restore":
            starts = [words["key"], *words.get("restore-keys", "").split()]
            found = [key for start in starts for key in reversed(self.cache) if key.startswith(start)]
            if "id" in step:
                told[f"steps.{step['id']}.outputs.cache-matched-key"] = "".join(found[:1])
            for name, kept in self.cache[found[0]].items() if found else ():
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(kept)
        else:
            assert what == "actions/upload-artifact", what
            told["steps.kept.outputs.artifact-url"] = "https://example.invalid/report"

    def _filled(self, text: str, told: dict[str, Any]) -> str:
        return re.sub(r"\$\{\{ (.*?) \}\}", lambda found: self._value(found[1], told), text)

    def _holds(self, expression: str, told: dict[str, Any]) -> bool:
        return self._value(expression, told) not in ("", "false")

    def _value(self, expression: str, told: dict[str, Any]) -> str:
        known = {"true": True, "always()": True, **told}
        named = re.sub(
            r"'[^']*'|always\(\)|format|&&|\|\||[A-Za-z_][\w.-]*",
            lambda found: {"&&": " and ", "||": " or ", "format": "str.format"}.get(found[0])
            or (found[0] if found[0][0] == "'" else repr(known.get(found[0], "") if found[0].startswith("steps.")
                                                        else known[found[0]])),
            expression,
        )  # fmt: skip
        value = eval(named)
        return {True: "true", False: "false"}.get(value, value) if isinstance(value, bool) else value

    def git(self, *words: str) -> str:
        given = ("-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", *given, *words], cwd=self.repository, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, branch: str, *replaced: str) -> None:
        """A change of the stack on a branch from main."""
        if branch != "main":
            self.git("checkout", "-qb", branch, "main")
        text = (self.repository / "fork.py").read_text(encoding="utf-8")
        (self.repository / "fork.py").write_text(text.replace(*replaced) if replaced else text, encoding="utf-8")
        self.git("add", "-A")
        self.git("commit", "-qm", "a change")
        self.git("update-ref", "refs/remotes/origin/main", "main")


def test_a_copied_workflow_gates_a_red_and_a_green_change(repository: Path) -> None:
    (repository / ".github/workflows").mkdir(parents=True)
    (repository / ".gitignore").write_text("reports\n__pycache__\n")
    text = WORKFLOW.read_text(encoding="utf-8")
    [first, *others] = re.findall(r" *- \{name: .*\n", text)
    for row in others:  # what the toy answers nothing of
        text = text.replace(row, "")
    text = text.replace(first, first.replace("our_stack.gate:Stack", "fork:Green").replace("launch,machine", "PAT-01"))
    # What is installed here already; and the suite's own test, which takes minutes, has its own tests.
    text = re.sub(r"install: >-\n(?: {12}.*\n)+", 'selftest: "false"\n', text)
    (repository / ".github/workflows/rankproof.yml").write_text(text)
    subprocess.run(["git", "init", "-qb", "main"], cwd=repository, check=True)
    github = Service(repository)
    github.commit("main")
    (planted := repository / "reports/rankproof-baseline/run.jsonl").parent.mkdir(parents=True)
    planted.write_text("a baseline of the change's own")
    github.git("add", "-f", str(planted))
    github.commit("too-early", *("version, layouts",) * 2)
    code, summary, log = github.run("pull_request", "too-early")
    assert (code, summary[:13]) == (EXIT_CODES["incomplete"], "## INCOMPLETE"), log
    assert "baseline: none: the default branch has left no record" in log
    assert "Baseline: `none: the default branch has left no record" in summary
    github.git("checkout", "-q", "main")
    code, summary, log = github.run("push", "main")
    assert (code, summary[:19]) == (0, "## CONFORMANT: fork"), log
    assert "baseline: none was wanted" in log
    assert [key[:14] for key in github.cache] == ["rankproof-run-"]

    github.commit("faster", "for layer in range(depth)", "for layer in [*range(depth)]")
    for event in ("pull_request", "merge_group"):
        code, summary, log = github.run(event, "faster")
        assert code == 0, log
        assert "0 new, 0 fixed, 0 lost" in summary
        assert f"Baseline: `{next(iter(github.cache))}`" in summary
        assert ("1 file changed" in log) == (event == "pull_request")

    whole_periods = "for layer in range(depth // len(pattern) * len(pattern))"
    github.commit("whole-periods", "for layer in range(depth)", whole_periods)
    for event in ("pull_request", "merge_group"):
        code, summary, log = github.run(event, "whole-periods")
        assert code == EXIT_CODES["violated"], log
        assert summary.startswith("## VIOLATED: fork 7")
        assert " new, 0 fixed, 0 lost" in summary
        line = next(number for number, text in enumerate(FORK.splitlines(), 1) if "def blocks" in text)
        comment = (repository / ".git/posted").read_text()
        assert "### VIOLATED: fork 7" in comment
        assert f"at fork.py:{line}: " in comment
        assert "[The report](https://example.invalid/report)" in comment
        assert (repository / ".git/posted-anew").read_text() == "made\n", "the comment is one, written over"
        check = json.loads((repository / ".git/check-run").read_text())
        assert (check["conclusion"], check["head_sha"]) == ("failure", github.git("rev-parse", "whole-periods"))
        assert check["name"] == "rankproof: fork, PAT-01"
        seen = check["output"]["annotations"][0]
        assert (seen["path"], seen["start_line"], seen["annotation_level"]) == ("fork.py", line, "failure")
        assert f"::error file=fork.py,line={line},title=PAT-01" in log
    assert github.run("push", "whole-periods") == (-1, "", ""), "a push elsewhere judges nothing"
    assert len(github.cache) == 1, "the records of pull requests are compared with nothing"


def test_a_github_check_run_of_many_causes_takes_several_calls() -> None:
    run = recorded(*((Item(id="TOPO-02", case=f"case-{n}"), "violated") for n in range(120)))
    said = ["".join(chr(97 + int(digit)) for digit in f"{n:03}") for n in range(120)]  # a number would be one cause
    answered = tuple(replace(each, words=f"saw {word}") for each, word in zip(run.results, said, strict=True))
    subject = replace(run.header.subject, places={"topology": "fork.py:4"})
    run = replace(run, results=answered, header=replace(run.header, subject=subject))
    calls = [json.loads(line) for line in report.render(run, verdict(run, DAY), "check-run").splitlines()]
    each = [call["output"]["annotations"] for call in calls]
    assert [len(some) for some in each] == [50, 50, 20]
    assert len({seen["message"] for some in each for seen in some}) == 120
    assert {call["conclusion"] for call in calls} == {"failure"}
    outside = replace(subject, places={"topology": "/elsewhere/fork.py:4"})
    run = replace(run, header=replace(run.header, subject=outside))
    [call] = [json.loads(line) for line in report.render(run, verdict(run, DAY), "check-run").splitlines()]
    assert call["output"]["annotations"] == [], "GitHub refuses a path outside the repository"
    assert "saw aaa" in call["output"]["summary"]


@pytest.mark.parametrize("stack", CODES)
def test_the_gitlab_script_ends_with_the_exit_code_of_the_verdict(stack: str, repository: Path) -> None:
    job = _yaml(CI / "gitlab-ci.yml")["rankproof"]
    for part, code in (("script", CODES[stack]), ("after_script", CODES[stack])):
        _run("\n".join(job[part]), repository, STACK=f"fork:{stack}", code=code)
    assert (repository / job["artifacts"]["reports"]["junit"]).exists()
    entries = json.loads((repository / job["artifacts"]["reports"]["codequality"]).read_text())
    assert [each["severity"] for each in entries] == (["blocker", "major", "major"] if stack == "Red" else ["info"])
    assert len({each["fingerprint"] for each in entries}) == len(entries)
    for each in entries:
        assert {*each} == {"check_name", "description", "severity", "fingerprint", "location"}
        assert each["location"]["lines"]["begin"] > 0
    assert [each["location"]["path"] for each in entries] == ["run.jsonl", "fork.py", "fork.py"][: len(entries)]
    assert job["artifacts"]["when"] == "always"


@pytest.mark.parametrize("stack", CODES)
def test_the_buildkite_command_ends_with_the_exit_code_of_the_verdict(stack: str, repository: Path) -> None:
    [step] = _yaml(CI / "buildkite.yml")["steps"]
    # Buildkite reads $$ as $: one would be filled in when the pipeline is uploaded.
    _run(step["command"].replace("$$", "$"), repository, STACK=f"fork:{stack}", code=CODES[stack])
    assert (repository / "annotated-rankproof.md").exists() == (stack == "Red")


@pytest.mark.parametrize("stack", CODES)
def test_the_slurm_script_ends_with_the_exit_code_of_the_verdict(stack: str, repository: Path) -> None:
    script = (CI / "slurm.sh").read_text(encoding="utf-8")
    _run(script, repository, STACK=f"fork:{stack}", RANKS="1", code=CODES[stack])
    assert "fork 7" in (repository / "rankproof.log").read_text().splitlines()[-1]


def test_the_example_workflow_uses_inputs_that_the_action_has() -> None:
    workflow, action = _yaml(WORKFLOW), _yaml(CI / "action/action.yml")
    assert {*workflow[True]} == {"pull_request", "merge_group", "push"}  # YAML 1.1 reads `on` as true
    [step] = [step for step in workflow["jobs"]["gate"]["steps"] if "rankproof" in step.get("uses", "")]
    assert {*step["with"]} <= {*action["inputs"]}
    assert {name for name, told in action["inputs"].items() if told.get("required")} <= {*step["with"]}
    used = "".join(str(step) for step in action["runs"]["steps"])
    assert [name for name in action["inputs"] if f"inputs.{name}" not in used] == []
    # What a pull request may write reaches a shell as a variable, never as text of the script.
    assert [step["name"] for step in action["runs"]["steps"] if "${{" in step.get("run", "")] == []
    assert [step["name"] for step in action["runs"]["steps"] if "run" in step and step.get("shell") != "bash"] == []


def test_the_containerfile_s_instructions_are_known_and_its_files_exist() -> None:
    text = (CI / "Containerfile").read_text(encoding="utf-8").replace("\\\n", "")
    lines = [line for line in text.splitlines() if line[:1] not in ("", "#")]
    words = [line.split()[0] for line in lines]
    assert words == ["FROM", "COPY", "RUN", "RUN", "USER", "WORKDIR", "ENTRYPOINT", "CMD"]
    named = [name for name in re.findall(r"/rankproof/(\S+)", text) if name]
    assert {*named} == {".ci/locks/dev.txt", "constraints.txt"}
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert "torch = [" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")

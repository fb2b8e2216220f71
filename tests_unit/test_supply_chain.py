"""CI and a release name what they run by its content: actions and images by digest, packages by hashes of a lock."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests_unit._parties.running import ROOT
from tests_unit.test_ci import CI, WORKFLOW, _yaml

OURS = sorted((ROOT / ".github/workflows").glob("*.yml"))
WORKFLOWS = [*OURS, WORKFLOW]
LOCKS = sorted((ROOT / ".ci/locks").glob("*.txt"))
DIGEST = re.compile(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
OF_THE_READER = ("OWNER/rankproof/docs/ci/action@COMMIT", "github/codeql-action/upload-sarif@COMMIT")  # fills it in
WRITES = {  # job → what it may write, with the reason beside it in the file
    ("release.yml", "sign"): {"id-token", "attestations", "contents"},
    ("release.yml", "publish"): {"id-token"},
    ("github-actions.yml", "gate"): {"pull-requests", "checks"},
    ("site.yml", "publish"): {"id-token", "pages"},
}
IMAGE = re.compile(r"^(?:FROM|\s*image:)\s+(\S+)", re.MULTILINE)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _named(*files: Path) -> list[str]:
    """Every action that is used, with what follows it in its line."""
    return [use for file in files for use in re.findall(r"(?<!`)\buses: (.*)", file.read_text(encoding="utf-8"))]


def test_every_action_is_named_by_a_commit_and_its_version() -> None:
    used = _named(*WORKFLOWS, CI / "action/action.yml")
    assert len(used) > 12
    assert [each for each in used if not DIGEST.match(each) and each not in OF_THE_READER] == []
    versions: dict[str, set[str]] = {}
    for each in used:
        name, _, pin = each.partition("@")
        versions.setdefault("/".join(name.split("/")[:2]), set()).add(pin)
    assert {name: pins for name, pins in versions.items() if len(pins) > 1} == {}


def test_every_image_is_named_by_its_digest() -> None:
    found = [image for file in sorted(CI.iterdir()) if file.is_file()
             for image in IMAGE.findall(file.read_text(encoding="utf-8"))]  # fmt: skip
    assert len(found) == 2
    assert [each for each in found if not re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", each)] == []


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_every_workflow_has_the_least_permissions(file: Path) -> None:
    workflow = _yaml(file)
    assert workflow["permissions"] in ({}, {"contents": "read"})
    for name, job in workflow["jobs"].items():
        allowed: dict[str, str] = job.get("permissions", {})
        assert {what for what, how in allowed.items() if how != "read"} == WRITES.get((file.name, name), set())
        assert job["timeout-minutes"] <= 120
        steps: list[dict[str, Any]] = job["steps"]
        checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
        assert [step["with"]["persist-credentials"] for step in checkouts] == [False] * len(checkouts)
        # What whoever makes a pull request, a branch or a tag may write reaches a shell as a variable.
        assert [step["run"] for step in steps if "${{" in step.get("run", "")] == []
        if "id-token" in allowed:
            assert not checkouts, "code of the project runs where an identity can be had"


def test_a_release_is_signed_attested_and_has_its_bill_of_materials() -> None:
    workflow = _yaml(ROOT / ".github/workflows/release.yml")
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true
    steps = {
        step.get("uses", step.get("run", "")).partition("@")[0]: step for step in workflow["jobs"]["sign"]["steps"]
    }
    signed = steps["sigstore/gh-action-sigstore-python"]["with"]["inputs"].split()
    assert {*signed} == {"./dist/*.whl", "./dist/*.tar.gz", "./dist/sbom.cdx.json", "./dist/SHA256SUMS"}
    assert steps["actions/attest-sbom"]["with"]["sbom-path"] == "dist/sbom.cdx.json"
    assert {"actions/attest-build-provenance", "sha256sum --check --strict SHA256SUMS"} <= {*steps}
    (last,) = [run for run in steps if run.startswith("gh release create")]
    assert {"dist/*.sigstore.json", "dist/SHA256SUMS", "dist/sbom.cdx.json", "--verify-tag"} <= {*last.split()}


def test_every_ci_job_runs_an_existing_script() -> None:
    jobs = _yaml(ROOT / ".github/workflows/ci.yml")["jobs"]
    named = re.findall(r"^  ([a-z-]+)\)$", (ROOT / ".ci/job").read_text(encoding="utf-8"), re.MULTILINE)
    assert [*jobs["as-a-user"]["strategy"]["matrix"]["job"], "versions"] == named
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert runs == [".ci/run", '.ci/job "$JOB"']


def test_the_nightly_ci_tries_every_python_and_the_oldest_and_newest_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [least] = re.findall(r"torch>=(.*)", project["optional-dependencies"]["torch"][0])
    matrix = _yaml(ROOT / ".github/workflows/nightly.yml")["jobs"]["versions"]["strategy"]["matrix"]
    said = [each.rpartition(" ")[2] for each in project["classifiers"] if "Python :: 3." in each]
    assert matrix == {"python": said, "torch": [f"=={least}.0", ""]}


@pytest.mark.parametrize("file", LOCKS, ids=lambda file: file.stem)
def test_a_lock_file_has_the_pins_of_constraints_txt_with_hashes(file: Path) -> None:
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
    pinned = {_normal(name): version for name, version in pins.items()}
    text = file.read_text(encoding="utf-8")
    named = re.findall(r"^([\w.-]+)==([^ ;]+)", text, re.MULTILINE)
    hashed = re.findall(r"^([\w.-]+)==[^\n]*\\\n    --hash=sha256:[0-9a-f]{64}(?: \\)?$", text, re.MULTILINE)
    assert hashed == [name for name, _ in named]
    assert len(named) > 10
    other = {name: version for name, version in named if pinned.get(_normal(name), version) != version}
    assert other == {}, "run .ci/lock"
    assert not {"torch", "triton"} & {_normal(name) for name, _ in named}


def test_the_lock_files_have_every_package_that_ci_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    held = {
        file.stem: {_normal(name) for name in re.findall(r"^([\w.-]+)==", file.read_text(), re.MULTILINE)}
        for file in LOCKS
    }
    asked = {_normal(re.split(r"[<>=\[]", each)[0]) for each in project["dependencies"]}
    dev = {_normal(re.split(r"[<>=\[]", each)[0]) for each in project["optional-dependencies"]["dev"]}
    assert asked <= held["core"] <= held["dev"]
    assert dev <= held["dev"]
    assert {"build", "check-wheel-contents", "cyclonedx-bom", "setuptools", "twine"} <= held["release"]
    told = [(ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", ".ci/release", ".ci/job")]
    assert all("--require-hashes" in each for each in told)

"""A release: what it refuses, and what it builds. Tried with a tag in a scratch repository; nothing is published."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests_unit._parties.running import ROOT, Done, ran
from tests_unit.test_packaging import NO_REGISTRY

VERSION = "0.1.0"
AT = "https://example.invalid/rankproof"
PROVED = """
from contracts.contract import LAW
from contracts.harness import kill_matrix, selftest
from contracts.harness.families import read_checks
read_checks()
matrix = selftest.run(selftest.part_of(LAW, ["PAT-01"]))
here = kill_matrix.here(threads=kill_matrix.threads(), helping=kill_matrix.helping(()))
about = kill_matrix.About(content=kill_matrix.content(), tier="unit", only="", surroundings=here)
kill_matrix.SHIPPED.mkdir()
kill_matrix.write(kill_matrix.SHIPPED, kill_matrix.Proof(about=about, matrix=matrix))
"""
FAULTS = {
    "dirty": ("echo change >> README.md", "the tree is dirty: commit or remove README.md"),
    "untracked": ("touch new.py", "the tree is dirty: commit or remove new.py"),
    "tag": ("git tag -d v0.1.0", "HEAD is not tagged v0.1.0"),
    "version": ("sed -i 's/^version = .*/version = \"0.2.0\"/' pyproject.toml; $commit", 'set version = "0.1.0"'),
    "notes": ("sed -i 's/^## 0.1.0$/## 0.0.9/' CHANGELOG.md; $commit", "CHANGELOG.md has no section ## 0.1.0"),
    "repository": (
        "sed -i 's/^repository=.*//; s/ repository=[^ ]*$/ repository=/' .ci/release; $commit",
        "REPOSITORY is not set",
    ),
    "law": ("rm contracts/law/releases/2*.json; $commit", "is not frozen"),
}


@pytest.fixture(scope="module")
def snapshot_of_the_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that git knows, committed anew, with the law frozen, a section of the changelog, and a tag."""
    folder = tmp_path_factory.mktemp("release") / "tree"
    known = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, known.split("\0")):
        if (ROOT / name).is_file():
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((ROOT / name).read_bytes())
            copy.chmod((ROOT / name).stat().st_mode)
    assert f"\n## {VERSION}\n" in (folder / "CHANGELOG.md").read_text()
    shell(
        folder,
        "rm contracts/law/releases/*; python -m contracts.harness.law_release 2026.11; git init -q; $commit",
        code=0,
    )
    return folder


@pytest.fixture
def clone(snapshot_of_the_tree: Path, tmp_path: Path) -> Path:
    subprocess.run(["git", "clone", "-q", snapshot_of_the_tree, tmp_path / "clone"], check=True, capture_output=True)
    return tmp_path / "clone"


def shell(folder: Path, script: str, code: int | None = None) -> Done:
    commit = "git add -A && git -c user.name=t -c user.email=t@example.invalid -c commit.gpgsign=false commit -qm r"
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    variables = outside | {"PYTHONPATH": str(folder), "PYTHON": sys.executable, "LC_ALL": "C", "REPOSITORY": AT,
                           "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # fmt: skip
    script = script.replace("$commit", f"{commit} && git tag -f v{VERSION} > /dev/null")
    return ran(["bash", "-c", script], code=code, cwd=folder, env=variables)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_malformed_release_is_refused_before_anything_is_built(fault: str, clone: Path) -> None:
    spoils, words = FAULTS[fault]
    shell(clone, spoils, code=0)
    assert words in shell(clone, f".ci/release {VERSION}", code=2).stderr
    assert not (clone / "dist").exists()


@pytest.mark.registry
def test_a_release_is_a_wheel_with_its_proof_an_sdist_notes_and_checksums(clone: Path, tmp_path: Path) -> None:
    shell(clone, f"python - <<'END'\n{PROVED}\nEND", code=0)
    done = shell(clone, f".ci/release {VERSION}")
    if done.returncode and any(words in done.stderr for words in NO_REGISTRY):
        pytest.skip("the package registry cannot be reached")
    assert done.returncode == 0, done.stdout + done.stderr
    dist = clone / "dist"
    [wheel], [sdist] = list(dist.glob("*.whl")), list(dist.glob("*.tar.gz"))
    proof = (clone / "contracts/proof/kills.json").read_bytes()
    with zipfile.ZipFile(wheel) as packed:
        assert packed.read("contracts/proof/kills.json") == proof
        told = packed.read(f"rankproof-{VERSION}.dist-info/METADATA").decode()
        assert {"contracts/law/releases/2026.11.json", "contracts/harness/samples/map.toml"} <= {*packed.namelist()}
    with tarfile.open(sdist) as packed_too:
        assert any(name.endswith("/contracts/proof/kills.json") for name in packed_too.getnames())
    assert f"Project-URL: Source, {AT}\n" in told
    assert f"({AT}/raw/v{VERSION}/docs/images/report.png)" in told
    assert f"[Your fork]({AT}/blob/v{VERSION}/docs/your-fork.md)" in told
    assert not re.findall(r"\]\((?!https://)[^)]*\)", told), "an index has no file beside a page"
    notes = (dist / "NOTES.md").read_text()
    assert notes.startswith(f"# rankproof {VERSION}\n")
    assert "### Added" in notes
    sums = dict(reversed(line.split("  ")) for line in (dist / "SHA256SUMS").read_text().splitlines())
    sbom = dist / "sbom.cdx.json"
    assert sums == {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in (wheel, sdist, sbom)}
    told = json.loads(sbom.read_text())
    assert told["bomFormat"] == "CycloneDX"
    listed = {each["name"].lower(): each["version"] for each in told["components"]}
    pinned = dict(re.findall(r"^([\w.-]+)==([^ ]+)", (ROOT / ".ci/locks/core.txt").read_text(), re.MULTILINE))
    assert {*listed.items()} >= {("rankproof", VERSION), ("click", pinned["click"]), ("pytest", pinned["pytest"])}
    assert {*listed} - {"rankproof"} <= {each.lower() for each in pinned}
    assert shell(clone, "git status --porcelain").stdout == "", "the tree is as clean as it was"
    # Of the content in the wheel: what reads the shipped proof takes it.
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    read = "from contracts.harness import kill_matrix as k; print(k.load(k.SHIPPED).about.content == k.content())"
    said = subprocess.run([sys.executable, "-c", read], cwd=tmp_path, env=os.environ | {"PYTHONPATH": "site"},
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert said.stdout.strip() == "True", said.stdout + said.stderr

"""The real transformers, where it is installed: scripts that confirm its defects, promises that it keeps."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from contracts.court.deviations import load
from contracts.stacks.transformers.abilities import VERSIONS
from tests_unit._parties import scripts

ROOT = Path(__file__).parents[1]
VERSION = VERSIONS[0]
BIN = ROOT / f".venv-transformers-{VERSION}" / "bin"
SCRIPTS = sorted((ROOT / "docs/confirmed").glob("transformers_*.py"))
DECLARED = load(ROOT / "docs/deviations/transformers.toml")

needs_transformers = pytest.mark.skipif(
    not (BIN / "rankproof").exists(),
    reason=f"transformers {VERSION} is not installed: make its environment with `make transformers`",
)


ENV = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PATH": f"{BIN}:{os.environ['PATH']}"}


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, check=False, capture_output=True, text=True, cwd=ROOT, env=ENV, timeout=280)


@pytest.fixture(scope="module")
def forked() -> Iterator[scripts.Run]:
    with scripts.forked(ENV, "torch") as ran:
        yield ran


def version_of(script: Path) -> str:
    """The first version in the list of those that were tried of which a script's fault is declared."""
    named = [each.versions for each in DECLARED if each.issue.startswith(f"docs/confirmed/{script.name}")]
    patterns = [pattern for versions in named for pattern in versions or ("*",)]
    return next(version for version in VERSIONS if any(fnmatch(version, each) for each in patterns))


@pytest.mark.transformers
@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_a_defect_shows_without_the_suite(script: Path, forked: scripts.Run) -> None:
    version = version_of(script)
    python = ROOT / f".venv-transformers-{version}/bin/python"
    if not python.exists():
        pytest.skip(f"transformers {version} is not installed: make it with `make transformers TRANSFORMERS={version}`")
    done = forked(python, script)
    assert done.returncode == 0, done.stdout[-600:] + done.stderr[-600:]


@pytest.mark.transformers
@needs_transformers
def test_its_blocks_and_its_trainer_are_judged_by_their_numbers(tmp_path: Path) -> None:
    promises = (
        "BLK-03a,BLK-03b,BLK-04a,BLK-06a,BLK-06h,BLK-06t,BLK-07c,CKPT-01a,MOE-01b,MOE-02a[mixed],MOE-02c,OPT-02a,OPT-04a,"
        "OPT-05d,PAR-05a,PAR-06a,PAR-06k,PAT-12a,PAT-12e"
    )
    done = run(BIN / "rankproof", "check", "--stack", "transformers", "--profile", promises, "--with", "none",
               "--deviations", "docs/deviations/transformers.toml", "--report", tmp_path)  # fmt: skip
    results = [json.loads(line).get("result") for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    found = {(each["id"], each["case"]): each for each in results if each}
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-600:]
    for item in (("BLK-03a", "packed"), ("BLK-06a", "packed"), ("BLK-06h", "relu2"), ("BLK-04a", "a-large-epsilon"),
                 ("BLK-06t", "bf16@pairs"), ("BLK-07c", "seven-dense@dense"), ("PAT-12a", "one-layer"),
                 ("PAT-12e", "every-family@pairs"),
                 ("MOE-01b", "sigmoid-3-of-12-with-bias"), ("MOE-02a", "mixed"), ("OPT-02a", "dense"),
                 ("OPT-04a", "dense"), ("OPT-05d", "dense"), ("PAR-05a", "dense"),
                 ("PAR-06a", "two-ranks-share-whole-steps"), ("PAR-06k", "2-to-the-63")):  # fmt: skip
        assert found[item]["outcome"] == "holds", found[item]
    for item in (("BLK-03b", "wide-eps"), ("CKPT-01a", "adamw@pairs")):
        assert found[item]["outcome"] == "violated", found[item]
    for item, reason in ((("BLK-04a", "packed-with-state"), "refuses packed documents"),
                         (("PAT-12e", "custom-mixers"), "no model has an M²RNN")):  # fmt: skip
        assert found[item]["outcome"] == "not offered", found[item]
        assert reason in found[item]["words"], found[item]


@pytest.mark.transformers
@needs_transformers
def test_two_ranks_of_it_keep_the_promises_of_a_step(tmp_path: Path) -> None:
    done = run(BIN / "rankproof", "check", "--stack", "transformers", "--ranks", "2", "--profile",
               "PAR-01e[dense-dp2],OPT-04e[dp2]", "--report", tmp_path / "report")  # fmt: skip
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-600:]


def test_another_version_than_the_installed_one_is_unreachable_with_the_command() -> None:
    code = (
        "from contracts.harness.parties import load\nfrom contracts.spec.errors import Unreachable\n"
        "try:\n    load('transformers==9.9.9')\nexcept Unreachable as error:\n    print(error)\n"
    )
    done = run(sys.executable, "-W", "ignore", "-c", code)
    assert "make transformers TRANSFORMERS=9.9.9" in done.stdout, done.stdout + done.stderr

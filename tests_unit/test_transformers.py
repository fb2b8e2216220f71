"""The real transformers, where it is installed: scripts that confirm its defects. The gate judges it."""

import os
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

ENV = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PATH": f"{BIN}:{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def forked() -> Iterator[scripts.Run]:
    with scripts.forked(ENV, "torch") as ran:
        yield ran


def version_of(script: Path) -> str:
    """The first version in the list of those that were tried of which a script's fault is declared; the newest, if none
    declares it."""
    named = [each.versions for each in DECLARED if each.issue.startswith(f"docs/confirmed/{script.name}")]
    patterns = [pattern for versions in named or [()] for pattern in versions or ("*",)]
    return next(version for version in VERSIONS if any(fnmatch(version, each) for each in patterns))


@pytest.mark.transformers
@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_each_confirmed_defect_can_be_reproduced_without_the_suite(script: Path, forked: scripts.Run) -> None:
    version = version_of(script)
    python = ROOT / f".venv-transformers-{version}/bin/python"
    if not python.exists():
        pytest.skip(f"transformers {version} is not installed: make it with `make transformers TRANSFORMERS={version}`")
    done = forked(python, script)
    assert done.returncode == 0, done.stdout[-600:] + done.stderr[-600:]

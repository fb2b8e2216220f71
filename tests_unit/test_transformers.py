"""The real transformers, where it is installed: scripts that confirm its defects. The gate judges it."""

import io
import os
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import wraps
from pathlib import Path
from types import ModuleType

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


def test_a_fused_step_counts_in_float32_where_a_call_is_widened() -> None:
    """The kernel on CUDA reads the bits of a float32: a count in float64 is 0 there, and the step is not finite."""
    import torch

    from contracts.stacks.transformers import shims

    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW([weight], fused=True)
    shims.Wide.pause_in(optimizer)
    with shims.widened():
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        assert torch.ones(2).to(torch.float32).dtype is torch.float64
    state = optimizer.state[weight]
    assert (state["step"].dtype, state["exp_avg"].dtype) == (torch.float32, torch.float64)


def test_a_file_that_is_read_where_a_call_is_widened_keeps_its_dtypes() -> None:
    """A count of steps in float32 was read as float64: the storage of the file is too small for it."""
    import torch

    from contracts.stacks.transformers import shims

    saved, load = io.BytesIO(), torch.load
    torch.save({"step": torch.tensor(3.0), "exp_avg": torch.ones(2, dtype=torch.float64)}, saved)
    saved.seek(0)
    with shims.widened():
        state = torch.load(saved)
        assert torch.ones(2).to(torch.float32).dtype is torch.float64
    assert (state["step"].dtype, float(state["step"]), state["exp_avg"].dtype) == (torch.float32, 3.0, torch.float64)
    assert torch.load is load


def test_a_model_computes_by_its_own_operations_and_then_by_the_kernels_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from contracts.stacks.transformers import shims

    def scan() -> str:
        return "own"

    @wraps(scan)
    def kernel() -> str:
        return "mamba-ssm's"

    model = ModuleType("transformers.model")
    vars(model).update(scan=kernel)
    monkeypatch.setitem(sys.modules, "transformers", ModuleType("transformers"))
    monkeypatch.setitem(sys.modules, "transformers.model", model)
    with shims.own_operations("model"):
        assert vars(model)["scan"]() == "own"
    assert vars(model)["scan"]() == "mamba-ssm's"

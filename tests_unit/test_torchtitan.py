"""The real torchtitan, where it is installed: scripts that confirm what it does otherwise. The gate judges it."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests_unit._parties import scripts
from tests_unit._parties.running import Done, metadata, ran

ROOT = Path(__file__).parents[1]
VERSION = "0.3.0"
BIN = ROOT / f".venv-torchtitan-{VERSION}" / "bin"
EVERY = sorted((ROOT / "docs/confirmed").glob("torchtitan_*.py"))
OLDER = ("torchtitan_cosine_rises_again.py", "torchtitan_ddp_divides_twice.py", "torchtitan_ep_divides.py",
         "torchtitan_router_gradient_of_one_rank.py")  # fmt: skip
"""What 0.2.2 does."""
GONE = ("torchtitan_ddp_divides_twice.py", "torchtitan_router_gradient_of_one_rank.py")
"""What 0.3.0 does no longer."""
SCRIPTS = [each for each in EVERY if each.name not in GONE]

needs_titan = pytest.mark.skipif(
    not (BIN / "rankproof").exists(),
    reason=f"torchtitan {VERSION} is not installed: make its environment with `make titan`",
)


ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{BIN}:{os.environ['PATH']}"}


def run(*command: str | Path, code: int | None = None) -> Done:
    return ran(command, code=code, cwd=ROOT, env=ENV)


@pytest.fixture(scope="module")
def forked() -> Iterator[scripts.Run]:
    with scripts.forked(ENV, "torch") as ran:
        yield ran


@pytest.mark.titan
@needs_titan
@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_each_declared_fault_can_be_reproduced_without_the_suite(script: Path, forked: scripts.Run) -> None:
    ranks = "torchrun" in script.read_text()
    torchrun = (BIN / "torchrun", "--standalone", "--nproc-per-node", "2")
    done = run(*torchrun, script) if ranks else forked(BIN / "python", script)
    assert done.returncode == 0, done.stdout[-600:] + done.stderr[-600:]


@pytest.fixture
def older() -> Path:
    """The programs of the environment of 0.2.2."""
    found = ROOT / ".venv-torchtitan-0.2.2" / "bin"
    if not found.exists():
        pytest.skip("torchtitan 0.2.2 is not installed: make its environment with `make titan`")
    return found


@pytest.mark.titan
@pytest.mark.parametrize("name", OLDER)
def test_faults_of_the_previous_version_can_be_reproduced_without_the_suite(name: str, older: Path) -> None:
    script = ROOT / "docs/confirmed" / name
    ranks = "torchrun" in script.read_text()
    torchrun = (older / "torchrun", "--standalone", "--nproc-per-node", "2")
    run(*(torchrun if ranks else (older / "python", "-W", "ignore")), script, code=0)


@pytest.mark.titan
def test_the_previous_torchtitan_is_violated_for_its_router_weights_on_replicas(older: Path, tmp_path: Path) -> None:
    """Under FSDP it is right, and under TP without experts."""
    cases = "PAR-01e[fsdp2],PAR-01e[dense-tp2-sp],PAR-01e[dense-dp2],PAR-02e[tp2-sp@pairs]"
    done = run(older / "rankproof", "check", "--stack", "torchtitan", "--ranks", "2", "--profile", cases,
               "--report", tmp_path / "report", code=1)  # fmt: skip
    assert "(2 holds, 2 violated)" in done.stdout, done.stdout[-600:]
    assert "hold different values of layers.1.mixer.router.weight" in " ".join(done.stdout.split())
    norms = re.search(r"norm is (\S+) and not (\S+):", done.stdout)
    assert norms is not None, done.stdout[-1500:]
    assert float(norms[1]) / float(norms[2]) == pytest.approx(0.5, rel=1e-3)  # of two replicas


DECLARED = ("--deviations", "docs/deviations/torchtitan.toml")


@pytest.mark.parametrize(
    ("stack", "made"),
    [("torchtitan", "make titan TITAN=9.9.9"), ("transformers", "make transformers TRANSFORMERS=9.9.9")],
)
def test_a_version_that_is_not_installed_is_unreachable_and_the_command_is_shown(stack: str, made: str) -> None:
    code = (
        "from contracts.harness.parties import load\nfrom contracts.spec.errors import Unreachable\n"
        f"try:\n    load('{stack}==9.9.9')\nexcept Unreachable as error:\n    print(error)\n"
    )
    done = run(sys.executable, "-W", "ignore", "-c", code)
    assert made in done.stdout, done.stdout + done.stderr


@pytest.mark.titan
@needs_titan
def test_a_declared_case_does_not_hide_a_second_fault(tmp_path: Path) -> None:
    planted = "tests_unit._parties.scaled_gradients:RoutersHalved"
    done = run(BIN / "rankproof", "check", "--stack", planted, "--ranks", "2", "--profile", "PAR-08h[1f1b]", *DECLARED,
               "--report", tmp_path / "report", code=1)  # fmt: skip
    assert "not declared: the gradient of layers.3.mixer.router.weight" in done.stdout, done.stdout[-3000:]


UNTRIED = """
import sys; sys.path.insert(0, {folder!r})
from contracts.harness.parties import load
from contracts.spec.errors import NotOffered
from contracts.spec.recipe import Recipe
from contracts.spec.training import Session
small = Recipe(name="small", family="dense", pattern="AE", depth=2, hidden=32, ffn_hidden=32, heads=4, kv_groups=2,
               seq_length=8, dtype="fp32", activation="swiglu", moe=None)
stack = load("torchtitan")
assert stack.version.startswith("9.9.9+files.") and not stack.abilities.claims
assert stack.labels["train"].startswith(f"untried: {{stack.version}} was never tried, 0.3.0 were; shimmed")
print(len(stack.block_weights(small, 0, "nemo_native")), "weights of a block")
import torchtitan.models.qwen3 as gone
del gone.parallelize_qwen3
try:
    stack.train(Session(recipe=small, steps=0))
except NotOffered as declined:
    print(declined.lack, declined)
"""


@pytest.mark.titan
@needs_titan
def test_an_untried_version_answers_what_its_adapter_can_and_declines_the_rest(tmp_path: Path) -> None:
    """0.3.0 under the name of a later version, which has lost a function."""
    metadata(tmp_path, "torchtitan", "9.9.9")
    done = run(BIN / "python", "-W", "ignore", "-c", UNTRIED.format(folder=str(tmp_path)))
    assert "weights of a block" in done.stdout, done.stdout + done.stderr
    assert re.search(r"adapter torchtitan 9\.9\.9\+files\.\w+ was never tried, 0\.3\.0 were", done.stdout), (
        done.stdout + done.stderr
    )
    assert "cannot import name 'parallelize_qwen3'" in done.stdout, done.stdout

"""The numbers of the real Megatron-Core: scripts that confirm what it does otherwise. The gate judges it.

Both run in the interpreter that has it, each in a process of its own.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.court.deviations import load
from contracts.stacks.megatron import VERSIONS, installed
from contracts.stacks.megatron.stack import environment
from tests_unit._parties import scripts
from tests_unit._parties.running import Done, ran

pytestmark = pytest.mark.megatron

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "docs/confirmed").glob("megatron_*.py"))
OLD, *_, NEW = VERSIONS
LATER = {
    "megatron_router_in_bfloat16", "megatron_counts_what_was_kept", "megatron_drops_flags",
    "megatron_accepts_what_it_cannot_run", "megatron_refuses_without_words", "megatron_balance_by_labels",
    "megatron_bias_with_padding", "megatron_balance_with_padding", "megatron_tracker_is_not_atomic",
    "megatron_trusts_its_tracker", "megatron_runs_pickles", "megatron_damage_without_a_name",
    "megatron_balance_by_rows", "megatron_balance_under_tp", "megatron_counts_in_bfloat16",
}  # fmt: skip
"""What 0.16.1 has not, or not without Transformer Engine; its package has no argument parser."""
FIRST = {"megatron_empty_stage": "0.18.1", **dict.fromkeys(LATER, "0.17.1")}
"""Script → the first version that can run it, where that is not the oldest."""
DECLARED = load(ROOT / "docs/deviations/megatron.toml")


def python(version: str) -> Path:
    """The interpreter that has a version, or a skip where nobody made its environment."""
    if version not in installed():
        pytest.skip(f"Megatron-Core {version} is not installed: make it with `make megatron`")
    return installed()[version]


ENV = environment() | {"OMP_NUM_THREADS": "1"}


def run(*command: str | Path, code: int | None = None) -> Done:
    return ran(command, code=code, cwd=ROOT, env=ENV)


@pytest.fixture(scope="module")
def forked() -> Iterator[scripts.Run]:
    with scripts.forked(ENV, "torch", "torch._dynamo") as ran:  # megatron.core brings both
        yield ran


def declared_of(script: Path) -> tuple[str, ...]:
    """The versions of which a script's fault is declared; all where it is a convention."""
    named = [each.versions for each in DECLARED if each.issue.startswith(f"docs/confirmed/{script.name}")]
    every = not named or not all(named)
    return tuple(version for version in VERSIONS if every or any(version in versions for versions in named))


def shown() -> Iterator[tuple[str, Path]]:
    """Each script on every version of which it is declared and that can run it."""
    for script in SCRIPTS:
        first = FIRST.get(script.stem, OLD)
        declared = declared_of(script)
        yield from ((version, script) for version in declared if VERSIONS.index(version) >= VERSIONS.index(first))


@pytest.mark.parametrize(("version", "script"), [*shown()], ids=lambda each: getattr(each, "stem", each))
def test_each_declared_fault_can_be_reproduced_without_the_suite(
    version: str, script: Path, forked: scripts.Run
) -> None:
    done = forked(python(version), script)
    assert done.returncode == 0, done.stdout[-600:] + done.stderr[-600:]


@pytest.mark.parametrize("version", [OLD, NEW])
def test_a_declared_case_does_not_hide_a_second_fault(version: str, tmp_path: Path) -> None:
    rankproof = python(version).with_name("rankproof")
    if not rankproof.exists():
        pytest.skip(f"the environment of {version} is older than its suite: run `make megatron`")
    done = run(rankproof, "check", "--stack", "tests_unit._parties.scaled_gradients:SharedExpertsTwice", "--ranks", "2",
               "--profile", "PAR-01e[tp2-sp]", "--deviations", ROOT / "docs/deviations/megatron.toml",
               "--report", tmp_path, code=1)  # fmt: skip
    assert "not declared: the gradient of layers.3.mixer.shared." in done.stdout, done.stdout[-3000:]


ON_A_DEVICE = "BLK-01a[gqa],BLK-04a[plain],MOE-01c[softmax],OPT-06a[letters@dense],CKPT-01a[dense@dense]"


def test_no_tensor_of_these_cases_stays_on_the_host(tmp_path: Path) -> None:
    done = run(python(NEW), "-m", "benchmarks.imitated_card", "check", "--stack", "megatron", "--device", "cuda",
               "--profile", ON_A_DEVICE, "--report", tmp_path, code=0)  # fmt: skip
    assert "with memory allocated there for 5 of 5 results" in done.stdout, done.stdout[-3000:]


UNTRIED = """
import contracts.stacks.megatron.stack as adapter
adapter.VERSIONS = ("0.0.1",)
from contracts.spec.errors import NotOffered
from contracts.spec.recipe import Recipe
small = Recipe(name="small", family="dense", pattern="AM", depth=2, hidden=32, ffn_hidden=32, heads=4, kv_groups=2,
               seq_length=8, dtype="fp32")
stack = adapter.Megatron()
assert not stack.abilities.claims
assert stack.labels["train"].startswith(f"untried: {stack.version} was never tried, 0.0.1 were"), stack.labels
print(len(stack.block_weights(small, 0, "nemo_native")), "weights of a block")
import megatron.core.ssm.mamba_mixer as gone
del gone.MambaMixerSubmodules
try:
    stack.block_weights(small, 1, "nemo_native")
except NotOffered as declined:
    print(declined.lack, declined)
"""


def test_an_untried_version_answers_what_its_adapter_can_and_declines_the_rest() -> None:
    """A version that the adapter takes for an untried one, and that has lost a class."""
    done = run(python(NEW), "-W", "ignore", "-c", UNTRIED)
    assert "weights of a block" in done.stdout, done.stdout + done.stderr
    assert f"adapter megatron {NEW} was never tried, 0.0.1 were" in done.stdout, done.stdout + done.stderr
    assert "MambaMixerSubmodules" in done.stdout, done.stdout


FORK = """
from contracts.spec.errors import Unreachable
from contracts.spec.topology import Degrees
from contracts.stacks.megatron import Megatron
stack = Megatron()
print(*(each.path for each in stack.answering), len({each.code for each in stack.answering}), stack.version)
try:
    stack.topology(Degrees(tp=2), 4, "borrowed")
except Unreachable as error:
    print(error)
"""


def test_a_megatron_fork_on_pythonpath_answers_topology_too(tmp_path: Path) -> None:
    """A fork that raises at import: of the installed release nothing is asked."""
    core = Path(run(python(NEW), "-c", "import megatron.core; print(megatron.core.__path__[0])").stdout.strip())
    fork = tmp_path / "megatron/core"
    shutil.copytree(core, fork, ignore=shutil.ignore_patterns("__pycache__"))
    with (fork / "__init__.py").open("a", encoding="utf-8") as file:
        file.write("raise RuntimeError('the fork was imported')\n")
    done = run("env", f"PYTHONPATH={tmp_path}", python(NEW), "-W", "ignore", "-c", FORK)
    who, *words = done.stdout.splitlines()
    assert who.startswith(f"{fork} {fork} 1 {NEW}+files."), done.stdout + done.stderr
    assert "RuntimeError: the fork was imported" in "".join(words), done.stdout + done.stderr

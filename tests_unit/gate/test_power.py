"""A green verdict needs the power to fail: what takes it from the checks is refused, said, or does not take it."""

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from contracts.court import record
from contracts.harness import kill_matrix, power
from contracts.instruments import numerics
from contracts.spec import EXACT, FLOAT32, FLOAT64, interpreter
from contracts.spec.records import EXIT_CODES
from tests_unit._parties.running import ROOT, Done, environment, ran

numbers = pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed")

STACKS = """
class Wrong:
    name, version, offers, layouts, labels = "wrong", "1", frozenset({"blocks"}), frozenset(), {}

    def blocks(self, pattern, depth):
        return ("ablock",) * depth


class Right(Wrong):
    def blocks(self, pattern, depth):
        families = {"A": "ablock", "E": "eblock", "M": "mblock", "R": "rblock"}
        return tuple(families[pattern[layer % len(pattern)]] for layer in range(depth))
"""
OWN = """
from rankproof import parametrize_with_contracts
from stacks import Right, Wrong

@parametrize_with_contracts([Wrong()], profile="PAT-01")
def test_wrong(contract):
    contract()
"""
LAW = "from contracts.harness.suite import test_unit as test_law\n__all__ = ['test_law']\n"
CHECK = ("-m", "contracts.harness.cli", "check", "--with", "none", "--profile", "PAT-01", "--report", "out")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--disable-plugin-autoload")
PLUGIN = (*PYTEST, "-p", "contracts.harness.plugin", "--rankproof-with=none", "--rankproof-profile=PAT-01",
          "--rankproof-stack=stacks:Wrong")  # fmt: skip
ENTRIES = {
    "check": (*CHECK, "--stack", "stacks:Wrong"),
    "isolated": (*CHECK, "--stack", "stacks:Wrong", "--isolated"),
    "ranks": (*CHECK, "--stack", "stacks:Wrong", "--ranks", "2"),
    "selftest": ("-m", "contracts.harness.cli", "selftest", "--only", "PAT-01"),
    "judge": ("-m", "contracts.harness.cli", "judge", "trace", "--report", "out"),
    "diff": ("-m", "contracts.harness.cli", "diff", "trace", "trace"),
    "observe": ("-m", "contracts.harness.cli", "observe", "--out", "trace", "stacks.py"),
    "serve": ("-m", "contracts.stacks.serve", "stacks:Wrong"),
    "plugin": (*PLUGIN, "test_law.py"),
    "plugin-gate": (*PLUGIN, "test_law.py", "--rankproof-gate", "--rankproof-report=out"),
    "own-tests": (*PYTEST, "-p", "rankproof.pytest_plugin", "test_own.py"),
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, text in {"stacks": STACKS, "test_own": OWN, "test_law": LAW}.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def python(place: Path, *words: str, code: int | None = None, **variables: str) -> Done:
    """An interpreter of its own: how it is started is what is tried."""
    found = environment(PYTHONPATH=f"{ROOT}:{place}", OMP_NUM_THREADS="1", **variables)
    return ran([sys.executable, *words], code=code, cwd=place, env=found, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_command_refuses_python_with_assertions_off(entry: str, place: Path) -> None:
    by_option = entry in ("check", "own-tests")
    done = python(place, *(("-OO",) if by_option else ()), *ENTRIES[entry], PYTHONOPTIMIZE="" if by_option else "1")
    said = done.stdout + done.stderr
    # pytest's own codes: 4 for a plugin that refuses, 2 for a test file that cannot be collected
    assert done.returncode == (4 if entry.startswith("plugin") else 2), said
    assert f"PYTHONOPTIMIZE = '{'-OO' if by_option else '1'}': assertions are stripped" in said
    assert "Traceback" not in said
    assert not (place / "out").exists()
    assert not (place / "trace").exists()


def test_a_rank_of_a_plain_torchrun_refuses_too(place: Path) -> None:
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "29533", "PYTHONOPTIMIZE": "1"}
    done = python(
        place, *PYTEST, "-p", "contracts.ranks.plugin", "test_law.py", **rank, code=pytest.ExitCode.USAGE_ERROR
    )
    assert "no test can fail: unset PYTHONOPTIMIZE" in done.stderr


def test_judging_a_case_directly_is_broken_without_assertions(place: Path) -> None:
    asked = """
from contracts.contract import LAW
from contracts.court.judge import judge
from contracts.harness.families import read_checks
from stacks import Wrong
read_checks("PAT-01")
result = judge(LAW.contracts["PAT-01"], "nam56r", Wrong())
print(result.outcome, result.words)
"""
    assert "violated layer 2 (1-based) is ablock" in python(place, "-c", asked).stdout
    assert "broken assertions are stripped" in python(place, "-O", "-c", asked).stdout


@pytest.mark.parametrize("words", [("-W", "error"), ("-W", "ignore"), ("-bb", "-X", "dev"), ("-I",)], ids=" ".join)
def test_other_python_options_do_not_weaken_the_check(words: tuple[str, ...], place: Path) -> None:
    here = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(place)!r}]; from contracts.harness.cli import main; main()"
    for stack, code in (("Right", 0), ("Wrong", EXIT_CODES["violated"])):
        python(place, *words, "-c", here, *CHECK[2:], "--stack", f"stacks:{stack}", "--report", stack, code=code)
        if words[0] == "-W":
            run, _ = record.load(place / stack)
            assert f"-W {words[1]}" in run.header.interpreter


@pytest.mark.parametrize("said", ["--assert=plain", "--assert=rewrite", "--runxfail", "-W error"])
def test_no_option_of_pytest_makes_a_wrong_stack_right(said: str, place: Path) -> None:
    words = said.split()
    python(
        place, *PLUGIN, "test_law.py", "--rankproof-gate", "--rankproof-report=out", *words, code=EXIT_CODES["violated"]
    )
    own = python(
        place, *PYTEST, "-p", "rankproof.pytest_plugin", "test_own.py", *words, code=pytest.ExitCode.TESTS_FAILED
    )
    assert "violated: layer 2 (1-based) is ablock, expected eblock (E)" in own.stdout
    assert " passed" not in own.stdout


BLUNTING = {
    "check": "check = LAW.contracts['PAT-01'].check\ncheck.__code__ = (lambda stack, pattern, depth, expected: "
    "stack.blocks(pattern, depth)).__code__",
    "judge": "from contracts.harness import power\nfrom contracts.spec.records import Result\n"
    "power.judge = lambda contract, case, *rest, **more: Result(id=contract.id, case=case, outcome='holds')",
}


@pytest.mark.parametrize("how", BLUNTING)
def test_a_stack_that_disables_checks_when_imported_ends_the_gate(how: str, place: Path) -> None:
    (place / "blunt.py").write_text("from contracts.harness.families import read_checks\nread_checks('PAT-01')\n"
                                    f"from contracts.contract import LAW\n{BLUNTING[how]}\n"
                                    "from stacks import Wrong\n")  # fmt: skip
    done = python(place, *CHECK, "--stack", "blunt:Wrong", code=EXIT_CODES["broken"])
    assert "rankproof: this process would not find a bug" in done.stderr
    assert "PAT-01[nam56r] holds on a stack with a known bug" in done.stderr
    assert not (place / "out/run.jsonl").exists()
    python(place, *PLUGIN[:-1], "--rankproof-stack=blunt:Wrong", "test_law.py", "--rankproof-gate",
           "--rankproof-report=out", code=EXIT_CODES["broken"])  # fmt: skip
    own = python(place, *PYTEST, "-p", "rankproof.pytest_plugin", "test_own.py", "-k", "nam52", "-p", "blunt",
                 code=pytest.ExitCode.TESTS_FAILED)  # fmt: skip
    assert "broken: PAT-01[nam56r] holds on a stack with a known bug" in own.stdout


LATER = """
from contracts.stacks.reference.stack import Reference

class Later(Reference):
    def run_block(self, *asked, **named):
        from contracts.instruments import numerics
        numerics.difference = lambda *compared, **how: ""
        return super().run_block(*asked, **named)
"""


@numbers
def test_a_comparison_that_a_stack_replaces_while_it_is_asked_ends_the_gate(place: Path) -> None:
    (place / "later.py").write_text(LATER)
    done = python(place, *CHECK, "--profile", "BLK-04a", "--stack", "later:Later", code=EXIT_CODES["broken"])
    assert "differences sees no difference in a wrong element" in done.stderr + (place / "out/output.log").read_text()
    assert not (place / "out/run.jsonl").exists()


BLIND = {
    "distance": "diff.distance = lambda one, other: 0.0", "loss": "diff._Phases.loss = lambda self, step: []",
    "gradient": "diff._Phases.gradients = lambda self, step: []",
    "rate": "diff._Phases.settings = lambda self, step: []",
    "update": "diff._Phases.updates = lambda self, step: []", "floor": "diff.UNITS = float('inf')",
    "all": "diff._Phases.walk = lambda self, steps: ((), '')",
}  # fmt: skip


@numbers
@pytest.mark.parametrize("how", BLIND)
def test_a_diff_whose_comparison_was_disabled_is_broken(how: str, place: Path) -> None:
    asked = ("from contracts.harness.cli import main\nfrom contracts.observe import diff, trace\n"
             f"trace.read = lambda folder: None\n{BLIND[how]}\nmain(['diff', 'one', 'other'])")  # fmt: skip
    done = python(place, "-c", asked, code=EXIT_CODES["broken"])
    assert done.stderr.startswith("rankproof: this process would not see a difference"), done.stderr
    assert done.stdout == ""


LEFT = {
    "meta": "torch.set_default_device('meta')", "float64": "torch.set_default_dtype(torch.float64)",
    "inference": "torch.inference_mode().__enter__()", "no-grad": "torch.set_grad_enabled(False)",
    "deterministic": "torch.use_deterministic_algorithms(True)",
}  # fmt: skip


@numbers
@pytest.mark.parametrize("what", LEFT)
def test_torch_settings_that_a_stack_changes_do_not_weaken_the_check(what: str, place: Path) -> None:
    imports = "from contracts.harness import power\nfrom contracts.observe import power as of_diff\n"
    asked = f"import torch\n{LEFT[what]}\n{imports}print([power.lost(numbers=True), of_diff.lost()])"
    done = python(place, "-c", asked)
    assert done.stdout == "['', '']\n", done.stdout + done.stderr


@numbers
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("tolerance", [FLOAT64, FLOAT32, EXACT], ids=lambda each: each.name)
def test_every_comparison_reports_nan_and_inf(value: str, dtype: str, tolerance: object) -> None:
    import torch

    whole = torch.ones(3, 5, dtype=getattr(torch, dtype))
    for place in ((0, 0), (2, 4), (1, 2)):
        bad = whole.clone()
        bad[place] = float(value)
        for got, want in ((bad, whole), (whole, bad), (bad, bad)):
            if value != "nan" and got is want and tolerance is EXACT:
                continue  # bits that agree
            one, other = ({"a": whole, "x": each, "z": whole} for each in (got, want))
            assert numerics.differences("it", numerics.arrays(one), other, tolerance)  # type: ignore[arg-type]
            assert numerics.gradient_differences("it", numerics.arrays(one), other, tolerance)  # type: ignore[arg-type]


def test_the_test_for_a_disabled_check_takes_under_30_ms() -> None:
    import timeit

    assert power.lost(numbers=False) == ""
    assert min(timeit.repeat(lambda: power.lost(numbers=False), number=1, repeat=20)) < 0.03


def test_the_options_of_the_interpreter_are_in_record_and_proof(place: Path) -> None:
    words = ("-W", "ignore::UserWarning", "-X", "dev", *CHECK, "--stack", "stacks:Right")
    python(place, *words, PYTHONHASHSEED="7", PYTHONPLATLIBDIR="lib", code=0)
    run, _ = record.load(place / "out")
    assert {"-W ignore::UserWarning", "-X dev", "PYTHONHASHSEED=7"} <= {*run.header.interpreter}
    assert not any("PYTHONPATH" in each for each in run.header.interpreter)
    assert "-X dev PYTHONHASHSEED=7" in (place / "out/report.html").read_text()
    ours = kill_matrix.here(threads=1, helping=())
    assert ours.interpreter == interpreter.settings()
    (found,) = kill_matrix.differences(replace(ours, interpreter=("-W error",)), ours)
    assert found.startswith("started with ")
    assert found.endswith(" instead of -W error")

"""Ranks beside pytest's own options and beside other plugins: hypothesis, syrupy, pytest-timeout, JUnit, the cache."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests_unit.ranks.running import needs_torch, torchrun

pytestmark = needs_torch()

TOGETHER = """
import json, random
from pathlib import Path
from hypothesis import assume, given, settings, strategies as st

long = pytest.mark.timeout(60)

def everybody(value):
    said = [None] * dist.get_world_size()
    dist.all_gather_object(said, value)
    return said

def test_temporary_folders(tmp_path, shared_tmp_path):
    mine = everybody(str(tmp_path))
    assert len(set(mine)) == 3
    assert all(f"/base/rank{rank}/" in path for rank, path in enumerate(mine)), mine
    assert set(everybody(str(shared_tmp_path))) == {mine[0]}

def test_dice(test_seed, rank_seed):
    assert len(set(everybody((random.random(), torch.rand(1).item(), test_seed)))) == 1
    assert len(set(everybody(rank_seed))) == 3

def test_other_dice():
    Path(f"dice{RANK}").write_text(str(random.random()))

@long
@given(st.integers(0, 10**6))
@settings(max_examples=20)
def test_draws_alike(n):
    assert everybody(n) == [n] * 3

@long
@given(st.integers(0, 10**6))
@settings(max_examples=30)
def test_assumes_alike(n):
    assume(n % 3)
    assert summed(n) == 3 * n

@long
@given(st.integers(0, 10**6))
@settings(max_examples=100)
def test_shrinks_in_step(n):
    assert summed(1) == 3
    if RANK == 2:
        assert n <= 1000, f"n={n}"

@long
@given(st.integers(0, 10**6))
@settings(max_examples=40)
def test_shrinks_where_one_never_reaches_the_collective(n):
    if RANK == 1 and n > 1000:
        raise ValueError("too large for rank one")
    assert summed(1) == 3

@pytest.mark.dist(timeout=4)
@given(st.integers(0, 10**6))
@settings(max_examples=5)
def test_hangs_in_an_example(n):
    if RANK != 2:
        summed(1)

def test_after_hypothesis():
    assert summed(2) == 6

@pytest.mark.parametrize("name", ["first", "second"])
def test_snapshot(snapshot, name):
    assert f"{name} of rank {RANK}" == snapshot
    assert [name] == snapshot(name="again")

@pytest.mark.timeout(1)
def test_limit_of_a_marker():
    time.sleep(3 if RANK == 1 else 0)

def test_limit_of_the_option():
    time.sleep(4 if RANK == 0 else 0)

def test_prints():
    print(f"said by rank {RANK}")
    if RANK == 1:
        raise ValueError("with what it printed")

def test_lf_again():
    assert summed(1) == 3
"""

needs_neighbours = pytest.mark.skipif(
    not all(find_spec(name) for name in ("hypothesis", "syrupy", "pytest_timeout")),
    reason="hypothesis, syrupy and pytest-timeout are needed; pip install -e '.[dev]'",
)


@needs_neighbours
def test_pytest_plugins_for_one_process_work_on_several_ranks(tmp_path: Path, subtests: pytest.Subtests) -> None:
    options = ("--basetemp=base", "--snapshot-update", "--timeout=3", "--timeout-method=thread", "--dist-grace=0.2")
    run = torchrun(tmp_path, {"test_together.py": TOGETHER}, *options)
    passing = ("test_temporary_folders", "test_dice", "test_other_dice", "test_draws_alike", "test_assumes_alike",
               "test_after_hypothesis", "test_snapshot[first]", "test_snapshot[second]", "test_lf_again")  # fmt: skip
    assert run.outcomes, run.output[-4000:]
    for name in passing:
        with subtests.test(name):
            assert run.outcome(name) == "passed", run.words(name)
    failing = {
        "test_shrinks_in_step": ("rank 2 diverged first", "{'n': 1001}", "n=1001"),
        "test_shrinks_where_one_never_reaches_the_collective": ("{'n': 1001}", "too large for rank one"),
        "test_hangs_in_an_example": ("in the example {'n': ", "4 s for all", "summed(1)"),
        "test_limit_of_a_marker": ("rank 1 did not finish", "within 1 s", "time.sleep(3 if RANK == 1 else 0)"),
        "test_limit_of_the_option": ("rank 0 did not finish", "within 3 s"),
        "test_prints": ("rank 1 diverged first", "Captured stdout call of rank 1", "said by rank 1"),
    }
    for name, words in failing.items():
        with subtests.test(name):
            assert run.outcome(name) == "failed", run.words(name)
            for part in words:
                assert part in run.words(name) + run.output
    with subtests.test("seeds differ from test to test and not from rank to rank"):
        assert len({path.read_text() for path in tmp_path.glob("dice*")}) == 1
    with subtests.test("each snapshot is written once, by rank 0"):
        (written,) = tmp_path.glob("__snapshots__/*.ambr")
        text = written.read_text()
        assert text.count("# name:") == 4
        assert "first of rank 0" in text
        assert "second of rank 0" in text
        assert "of rank 1" not in text
    with subtests.test("one console, and a log for each other rank"):
        assert run.output.count("test session starts") == 1
        assert [path.name for path in run.left("*.log")] == ["rank1.0.log", "rank2.0.log"]
        assert all("test session starts" in path.read_text() for path in run.left("*.log"))


STOPS = """
def test_a(): assert summed(1) == 3
def test_b():
    if RANK == 1: raise ValueError("b")
    summed(1)
def test_c(): assert summed(1) == 3
def test_d(): assert RANK != 2
def test_e(): assert summed(1) == 3
"""


def test_maxfail_and_last_failed_work_on_all_ranks_alike(tmp_path: Path, subtests: pytest.Subtests) -> None:
    files = {"test_stops.py": STOPS}
    with subtests.test("--maxfail"):
        run = torchrun(tmp_path, files, "--maxfail=2", "-o", "cache_dir=cache", "-p", "cacheprovider")
        assert {name: run.outcome(name) for name in run.outcomes} == {
            "test_a": "passed", "test_b": "failed", "test_c": "passed", "test_d": "failed",
        }  # fmt: skip
        assert run.code == 1
    with subtests.test("--lf"):
        remembered = json.loads((tmp_path / "cache/v/cache/lastfailed").read_text())
        assert list(remembered) == ["test_stops.py::test_b", "test_stops.py::test_d"]
        early = {**files, "conftest.py": ""}
        options = ("-p", "contracts.ranks.plugin", "--lf", "-x")
        run = torchrun(tmp_path, early, *options, "-s", "-o", "cache_dir=cache", "-p", "cacheprovider")
        assert {name: run.outcome(name) for name in run.outcomes} == {"test_b": "failed"}


NEVER = "def test_never():\n    open('ran', 'a').close()\n"
DISAGREE = {  # files, options → exit codes, words
    "parameters": (
        {"test_p.py": '@pytest.mark.parametrize("n", [RANK])\ndef test_of(n): pass\n' + NEVER},
        (),
        ("tests' ids: rank 0:", "only on rank 1, not on 0: test_p.py::test_of[1]"),
    ),
    "order": (
        {"test_o.py": '@pytest.mark.parametrize("n", "ab" if RANK else "ba")\ndef test_of(n): pass\n' + NEVER},
        (),
        ("order: test_o.py::test_of[b] on rank 0 where test_o.py::test_of[a] on rank 1",),
    ),
    "import": (
        {"test_i.py": 'if RANK == 1: import no_such_module\n' + NEVER, "test_j.py": NEVER},
        (),
        ("collection of test_i.py: rank 0: (nothing); rank 1:", "No module named 'no_such_module'"),
    ),
    "environment": (
        {"test_e.py": NEVER, "conftest.py": 'import os\nos.environ["NCCL_ALGO"] = os.environ["RANK"]\n'
         'pytest_plugins = ["contracts.ranks.plugin"]\n'},
        (),
        ("NCCL_ALGO: rank 0: 0; rank 1: 1",),
    ),
    "xdist": ({"test_x.py": NEVER}, ("-n", "2"), ("xdist under torchrun",)),
    "conftest": (
        {"test_c.py": NEVER, "conftest.py": 'import os\nif os.environ["RANK"] == "1": raise ValueError("the culprit")\n'
         'pytest_plugins = ["contracts.ranks.plugin"]\n'},
        (),
        ("ValueError: the culprit",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DISAGREE)
def test_no_test_runs_if_ranks_would_run_different_tests(tmp_path: Path, case: str) -> None:
    files, options, words = DISAGREE[case]
    run = torchrun(tmp_path, files, *options, ranks=2)
    assert run.code == 1
    assert not (tmp_path / "ran").exists()
    for part in words:
        assert part in run.output, run.output[-3000:]


EMPTY = """
@pytest.mark.parametrize("number", range(400))
def test_empty(number): pass
"""
CLOCK = """
import time
pytest_plugins = ["contracts.ranks.plugin"]
began = []
def pytest_runtestloop(): began.append(time.process_time())
def pytest_sessionfinish(): print("seconds of CPU:", time.process_time() - began[0])
"""


def test_agreeing_on_each_test_takes_little_cpu_time(tmp_path: Path) -> None:
    """400 empty tests on 2 ranks, in CPU time, which other work on the machine does not change; pytest's own is in it.

    Time by the clock is what benchmarks/ranks.py measures.
    """
    run = torchrun(tmp_path, {"test_empty.py": EMPTY, "conftest.py": CLOCK}, "-q", "-s", ranks=2)
    assert run.code == 0
    seconds = float(run.output.rpartition("seconds of CPU: ")[2].split()[0])
    assert seconds / 400 < 0.01, f"{1000 * seconds / 400:.1f} ms a test"


def test_the_ranks_plugin_is_not_loaded_for_one_rank(tmp_path: Path) -> None:
    alone = {"test_alone.py": "import sys\ndef test_alone(request):\n"
             "    assert request.config.pluginmanager.getplugin('ranks') is None\n"}  # fmt: skip
    run = torchrun(tmp_path, alone, ranks=1)
    assert run.code == 0
    assert run.outcome("test_alone") == "passed"
    assert not run.left("*")

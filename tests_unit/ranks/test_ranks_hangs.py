"""What a test comes to where a rank does not come back: a hang costs its limit and no more, and says where it was."""

from pathlib import Path

import pytest

from tests_unit.ranks.running import ROOT, needs_torch, torchrun

pytestmark = needs_torch()

HANGS = """
import ctypes, datetime, faulthandler
from torch.distributed import distributed_c10d

two = pytest.mark.dist(timeout=2)

def fds():
    return len(os.listdir("/proc/self/fd"))

@two
def test_groups_that_do_not_match():
    a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
    if RANK < 2:
        summed(1, a if RANK == 0 else b)

def test_after_groups():
    assert summed(1) == 3

@two
def test_a_ring_in_which_all_receive():
    dist.recv(torch.zeros(1), src=(RANK + 1) % 3)

def test_after_the_ring():
    assert summed(2) == 6

@two
def test_a_group_that_not_all_make():
    if RANK != 2:
        dist.new_group([0, 1, 2])

def test_after_a_group():
    assert summed(3) == 9

@two
def test_a_loop_in_python():
    while RANK == 1:
        pass
    summed(1)

def test_after_a_loop():
    assert summed(4) == 12

@two
def test_a_loop_that_swallows_exceptions():
    while RANK == 0:
        try:
            time.sleep(0.01)
        except Exception:
            pass

def test_after_that():
    assert summed(5) == 15

def test_a_tracer_after_an_abort():
    import sys
    lines = []
    def tracer(frame, event, arg):
        lines.append(event)
        return tracer
    sys.settrace(tracer)
    try:
        assert summed(5) == 15
    finally:
        sys.settrace(None)
    assert 10 < len(lines) < 100_000

@two
def test_a_sleep_past_the_limit():
    time.sleep(3.5 if RANK == 2 else 0)

def test_after_a_sleep():
    assert summed(6) == 18

def test_groups_of_the_code_under_test_are_bounded():
    bound = distributed_c10d.default_pg_timeout
    assert bound < datetime.timedelta(minutes=3), bound
    group = dist.new_group([0, 1, 2])
    assert group.bound_device_id is None
    assert distributed_c10d._get_default_timeout(dist.Backend("gloo")) == bound
    dist.barrier(group)  # a rank that leaves at once closes what a slower one still connects to
    dist.destroy_process_group(group)

@pytest.mark.parametrize("number", range(40))
@pytest.mark.dist(timeout=5)
def test_divergence(number):
    if RANK == number % 3:
        raise ValueError(f"divergence {number}")
    summed(1)

@pytest.mark.parametrize("number", range(40))
def test_sum(number):
    assert summed(RANK + number) == 3 + 3 * number

def test_nothing_has_piled_up():
    assert summed(1) == 3
    assert fds() < 120, os.listdir("/proc/self/fd")

def test_leaves_groups_behind():
    dist.new_group([0, 2])
"""

ALTERNATE = """
def pytest_collection_modifyitems(items):
    by = lambda name: [item for item in items if item.name.startswith(name)]
    pairs = [item for pair in zip(by("test_divergence"), by("test_sum["), strict=True) for item in pair]
    last = by("test_nothing") + by("test_leaves")
    items[:] = [item for item in items if item not in pairs + last] + pairs + last
"""

EXPECTED = {  # a hang → words that stand in its failure
    "test_groups_that_do_not_match": ("did not finish the call", "within 2 s", "summed(1, a if RANK == 0 else b)",
                                      "last collective of group 1", "last collective of group 2"),
    "test_a_ring_in_which_all_receive": ("within 2 s", "dist.recv(torch.zeros(1), src=(RANK + 1) % 3)", "0, 1, 2:"),
    "test_a_group_that_not_all_make": ("within 2 s", "dist.new_group([0, 1, 2])"),
    "test_a_loop_in_python": ("within 2 s", "while RANK == 1", "gloo:all_reduce"),
    "test_a_loop_that_swallows_exceptions": ("rank 0 did not finish", "time.sleep(0.01)"),
    "test_a_sleep_past_the_limit": ("rank 2 did not finish", "time.sleep(3.5 if RANK == 2 else 0)"),
}  # fmt: skip


def test_a_hang_fails_one_test_and_shows_where_every_rank_was(tmp_path: Path, subtests: pytest.Subtests) -> None:
    files = {"test_hangs.py": HANGS, "conftest.py": 'pytest_plugins = ["contracts.ranks.plugin"]\n' + ALTERNATE}
    run = torchrun(tmp_path, files, "--dist-grace=0.1", "--dist-max-aborts=99")
    assert run.outcomes, run.output[-4000:]
    for name, words in EXPECTED.items():
        with subtests.test(name):
            assert run.outcome(name) == "failed", run.output[-4000:]
            for part in words:
                assert part in run.words(name)
    with subtests.test("the tests after a hang have their own outcome"):
        after = {
            name: run.outcome(name)
            for name in run.outcomes
            if name.startswith(("test_after", "test_groups_of", "test_a_tracer"))
        }
        assert len(after) == 8
        assert set(after.values()) == {"passed"}, {name: run.words(name) for name in after if after[name] != "passed"}
    with subtests.test("forty divergences in a row, and right sums after each"):
        for number in range(40):
            assert f"rank {number % 3} diverged first: ValueError: divergence {number}" in run.words(
                f"test_divergence[{number}]"
            )
            assert run.outcome(f"test_sum[{number}]") == "passed", run.words(f"test_sum[{number}]")
    with subtests.test("no connection and no group piles up"):
        assert run.outcome("test_nothing_has_piled_up") == "passed", run.words("test_nothing_has_piled_up")
        assert "1 process groups were made and never destroyed: test_hangs.py::test_leaves_groups_behind" in run.output


def test_the_example_of_faults_charges_each_to_its_own_test(tmp_path: Path) -> None:
    text = (ROOT / "docs/examples/faults_of_ranks/test_faults.py").read_text(encoding="utf-8")
    run = torchrun(tmp_path, {"test_faults.py": text}, "--dist-timeout=8", ranks=2)
    faulty = ("test_with_a_bug_on_rank_1", "test_that_leaves_a_call_in_flight", "test_that_hangs_on_rank_0")
    sound = ("test_that_is_right", "test_after_the_bug", "test_after_the_call", "test_after_the_hang")
    wanted = {**dict.fromkeys(faulty, "failed"), **dict.fromkeys(sound, "passed")}
    assert {name: run.outcome(name) for name in wanted} == wanted, run.output[-3000:]

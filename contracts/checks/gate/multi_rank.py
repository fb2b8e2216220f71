"""The gate under torchrun: it runs a file in which ranks go wrong, and the checks judge its report of each test.

Plain pytest under torchrun misreports. A rank that raises before a collective goes on to the next test, and the
collective of that test meets the one in which the other ranks still wait. The broken test passes, and a correct one
fails. The files below are plain pytest files and do not know what runs them.
"""

from __future__ import annotations

from contracts.contract import contract
from contracts.spec.stack import Court
from contracts.spec.world import RanksRun

LIMIT_S = 5.0  # the time limit of a phase of a test
LATEST_S = 20.0  # the time by which its ranks are back, on a loaded machine

Expected = dict[str, tuple[str, ...]]  # test → its outcome, and what the message of a failure must name

HEAD = '''
import datetime, os, signal, time
import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.dist
RANK = int(os.environ["RANK"])

@pytest.fixture(autouse=True, scope="session")
def world():
    plain = not dist.is_initialized()
    if plain:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
    yield
    if plain:
        time.sleep(3 * RANK)  # torchrun ends everybody after the first that fails; rank 0 has a report to write

def total(value):
    """The sum over the ranks: 1 + 10 times `value` on two of them, 111 on three."""
    x = torch.tensor([value * 10 ** RANK])
    dist.all_reduce(x)
    return int(x.item())
'''

_WRONG_TURNS = """
def test_before():
    assert total(1) == 11

def test_raises():
    if RANK == 1:
        raise ValueError("found 41, expected 42")
    total(2)

def test_after_the_raise():
    assert total(3) == 33

def test_skips():
    if RANK == 1:
        pytest.skip("not here")
    total(4)

def test_after_the_skip():
    assert total(5) == 55
"""

_HANG = """
def test_before():
    assert total(1) == 11

def test_hangs():
    while RANK == 1:
        time.sleep(0.01)
    total(2)

def test_after_the_hang():
    assert total(3) == 33
"""

_DEATHS = """
def test_before():
    assert total(1) == 11

def test_is_killed():
    if RANK == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    total(2)

def test_after_the_kill():
    assert total(3) == 33

def test_leaves_with_0():
    if RANK == 1:
        os._exit(0)
    total(4)

def test_after_the_leave():
    assert total(5) == 55
"""

_OTHER_TESTS = """
@pytest.mark.parametrize("name", ["common", "of-rank-0" if RANK == 0 else "of-another"])
def test_each(name):
    assert total(1) == 11
"""

# file, ranks, what the report must say
FILES: dict[str, tuple[str, int, Expected]] = {
    "raises-and-skips": (
        HEAD + _WRONG_TURNS, 2,
        {"test_before": ("passed",), "test_raises": ("failed", "rank 1", "found 41, expected 42"),
         "test_after_the_raise": ("passed",), "test_skips": ("failed", "rank 1", "not here"),
         "test_after_the_skip": ("passed",)},
    ),
    "hangs": (
        HEAD + _HANG, 2,
        {"test_before": ("passed",), "test_hangs": ("failed", "rank 1"), "test_after_the_hang": ("passed",)},
    ),
    "dies-twice": (
        HEAD + _DEATHS, 2,
        {"test_before": ("passed",), "test_is_killed": ("failed", "rank 0 died"), "test_after_the_kill": ("passed",),
         "test_leaves_with_0": ("failed", "rank 1 died"), "test_after_the_leave": ("passed",)},
    ),
}  # fmt: skip


@contract("GATE-05", asks="run_ranks", cases=FILES, source="torchrun -m pytest, measured", tier="dist", slow=True)
def a_rank_that_goes_wrong_costs_one_test(court: Court, tests: str, ranks: int, expected: Expected) -> None:
    """When one rank raises, skips, hangs or dies, exactly one test fails, within the deadline, and names the rank. The
    tests before and after it keep their own outcomes.
    """
    found = court.run_ranks(tests, ranks, LIMIT_S)
    is_told(found, expected)
    assert found.exit_code != 0, f"{ranks} ranks end with 0 after a failed test"


@contract(
    "GATE-05a", asks="run_ranks", cases={"by-parameter": (HEAD + _OTHER_TESTS, 2, ("of-rank-0", "of-another"))},
    source="torchrun -m pytest, measured", tier="dist", slow=True,
)  # fmt: skip
def ranks_with_other_tests_do_not_start(court: Court, tests: str, ranks: int, differ: tuple[str, ...]) -> None:
    """If ranks have collected different tests, no test runs, and the difference is named.

    Otherwise ranks would meet in each other's collectives: as long as the shapes fit, everything passes.
    """
    found = court.run_ranks(tests, ranks, LIMIT_S)
    ran = [name for name, told in found.tests.items() if told.outcome == "passed"]
    assert not ran, f"{', '.join(ran)} passed, though the ranks had collected different tests"
    assert found.exit_code != 0, "the run ends with 0, though the ranks had collected different tests"
    missing = [name for name in differ if name not in found.console]
    assert not missing, f"the console does not name {missing}: {found.console[-400:]}"


_TWO_FAIL = """
def test_two_fail():
    if RANK == 1:
        time.sleep(1.5)  # a busy machine lets a rank wait for its core, and rank 2 is to come first
        assert RANK == 99, "rank one came second"
    assert RANK != 2, "rank two found 17, expected 18"
    total(1)
"""

FIRST = {"the-third-of-three": (HEAD + _TWO_FAIL, 3, "test_two_fail", "rank 2 diverged first", "found 17, expected 18")}


@contract("GATE-06d", asks="run_ranks", cases=FIRST, source="torchrun -m pytest, measured", tier="dist", slow=True)
def the_rank_that_diverged_first_is_named(
    court: Court, tests: str, ranks: int, name: str, first: str, values: str
) -> None:
    """The report of a failure on several ranks begins with the rank that diverged first and the values that it found.

    The other ranks only report a broken connection, and the longest traceback is not the cause.
    """
    found = court.run_ranks(tests, ranks, LIMIT_S)
    assert name in found.tests, unreported(name, found)
    line = found.tests[name].words.partition("\n")[0]
    assert first in line, f"the first line of the failure does not say {first!r}: {line[:300]}"
    assert values in line, f"the first line of the failure does not say {values!r}: {line[:300]}"


def is_told(found: RanksRun, expected: Expected) -> None:
    """The outcome of each test, and what its failure names."""
    for name, (outcome, *named) in expected.items():
        assert name in found.tests, unreported(name, found)
        told = found.tests[name]
        assert told.outcome == outcome, f"{name} is {told.outcome}, expected {outcome}: {told.words[-400:]}"
        missing = [words for words in named if words not in told.words]
        assert not missing, f"the failure of {name} does not name {missing}: {told.words[-400:]}"
        assert told.seconds < LATEST_S, f"{name} took {told.seconds:g} s, the limit of a test is {LIMIT_S:g} s"


def unreported(name: str, found: RanksRun) -> str:
    """The message for a test without an outcome, with the launcher's last line, which shows a timeout."""
    last = (found.console.strip().splitlines() or ["nothing"])[-1]
    return f"{name} has no outcome; reported are {', '.join(found.tests) or 'none'}; last was printed: {last[-200:]}"

"""The gate under torchrun: however the ranks leave, torchrun hears of what failed or did not run."""

from __future__ import annotations

from contracts.checks.gate.multi_rank import HEAD, LIMIT_S
from contracts.contract import contract
from contracts.spec.stack import Court

_RED = """
def test_passes():
    assert total(1) == 11

def test_fails():
    assert RANK == 0, "rank 1 fails"
"""
_AT_THE_END = """
class AtTheEnd:
    def pytest_sessionfinish(self, session):
        {deed}

@pytest.fixture(scope="session", autouse=True)
def at_the_end(pytestconfig):
    pytestconfig.pluginmanager.register(AtTheEnd())
"""
_UNSAID = "left with exit code 0 before its session was over"

_IN_A_TEST = """
def test_leaves():
    total(1)
    os._exit(0)

def test_never():
    assert 0
"""
_IN_A_FIXTURE = """
@pytest.fixture(scope="session", autouse=True)
def leaves():
    yield
    os._exit(0)
"""

# file, words of the console
WAYS: dict[str, tuple[str, str]] = {
    "in-a-test": (HEAD + _IN_A_TEST, _UNSAID),
    "in-a-session-fixture": (HEAD + _RED + _IN_A_FIXTURE, _UNSAID),
    "in-sessionfinish": (HEAD + _RED + _AT_THE_END.format(deed="os._exit(0)"), _UNSAID),
    "at-exit": (HEAD + "import atexit\natexit.register(lambda: os._exit(0))\n" + _RED, "1 failed"),
    "by-the-status": (HEAD + _RED + _AT_THE_END.format(deed="session.exitstatus = 0"), "1 failed"),
}


@contract("GATE-14", asks="run_ranks", cases=WAYS, source="law: GATE-14", tier="dist", slow=True)
def a_session_that_is_not_through_and_green_never_ends_with_0(court: Court, tests: str, says: str) -> None:
    """A session in which a test failed, or planned tests never ran, never ends with 0, however its ranks leave.

    A launcher sees exit codes and nothing else, and whatever runs in a rank can leave with 0: a red session was green
    to torchrun, and so was one whose tests had not run.
    """
    found = court.run_ranks(tests, 2, LIMIT_S)
    assert found.exit_code != 0, f"2 ranks end with 0, though a test failed or did not run: {found.console[-300:]}"
    assert says in found.console, f"the console does not say {says!r}: {found.console[-400:]}"

"""However ranks leave, a session with a failed or unrun test is red to torchrun, and nothing of it is left running."""

import contextlib
import re
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from contracts.ranks import plugin_compatibility
from contracts.ranks.diagnostics import OddOne, odd_one
from contracts.ranks.merge import Post, blamed, merge
from tests_unit.ranks import running
from tests_unit.ranks.running import needs_torch, torchrun

pytestmark = needs_torch()

RED = """
def test_passes():
    assert summed(1) == 2

def test_fails():
    assert RANK == 0, "rank 1 fails"
"""
LEAVE = "import os\n" + running.CONFTEST
UNSAID = "left with exit code 0 before its session was over"
ALL_LEAVE = """
def test_leaves():
    summed(1)
    os._exit(0)

def test_never():
    assert 0
"""
IN_A_FIXTURE = """
@pytest.fixture(scope="session", autouse=True)
def leaves():
    yield
    os._exit(0)
"""
AT_THE_END = """
class AtTheEnd:
    def pytest_sessionfinish(self, session):
        {deed}

@pytest.fixture(scope="session", autouse=True)
def at_the_end(pytestconfig):
    pytestconfig.pluginmanager.register(AtTheEnd())
"""
WAYS: dict[str, tuple[str, str]] = {  # file, words of the console
    "in a test": (ALL_LEAVE, UNSAID),
    "in a session fixture": (RED + IN_A_FIXTURE, UNSAID),
    "in sessionfinish": (RED + AT_THE_END.format(deed="os._exit(0)"), UNSAID),
    "at exit": (f"import atexit\natexit.register(lambda: os._exit(0))\n{RED}", "1 failed"),
    "by the status": (RED + AT_THE_END.format(deed="session.exitstatus = 0"), "1 failed"),
}


def is_red(run: running.Run, says: str) -> None:
    assert run.code != 0, f"2 ranks end with 0, though a test failed or did not run: {run.output[-300:]}"
    assert says in run.output, f"the console does not say {says!r}: {run.output[-400:]}"


@pytest.mark.parametrize("way", WAYS)
def test_a_session_that_failed_or_ended_early_never_exits_with_0(way: str, tmp_path: Path) -> None:
    """A launcher sees exit codes and nothing else, and whatever runs in a rank can leave with 0."""
    file, says = WAYS[way]
    is_red(torchrun(tmp_path, {"test_it.py": file}, ranks=2, restarts=3), says)


BELIEVED: dict[str, tuple[str, str]] = {  # a rank whose exit code is believed → the way that passes then
    "no guard": ("in a session fixture", running.PLAIN),
    "over as soon as it begins": (
        "in sessionfinish",
        f"{running.CONFTEST}\ndef pytest_sessionstart():\n"
        "    from contracts.ranks import exit\n    exit.through(0)\n",
    ),
    "the status decides": (
        "by the status",
        f"{running.CONFTEST}\ndef pytest_unconfigure(config):\n"
        "    config.pluginmanager.getplugin('ranks').session.testsfailed = 0\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", BELIEVED)
def test_the_test_of_exit_codes_fails_for_a_guard_that_trusts_0(why: str, tmp_path: Path) -> None:
    way, conftest = BELIEVED[why]
    file, says = WAYS[way]
    run = torchrun(tmp_path, {"test_it.py": file, "conftest.py": conftest}, ranks=2)
    with pytest.raises(AssertionError, match="2 ranks end with 0, though a test failed or did not run"):
        is_red(run, says)


STARTS = f"""{LEAVE}
with open("starts", "a") as starts:
    starts.write(os.environ["TORCHELASTIC_RESTART_COUNT"])
"""

RED_WITH_RESTARTS = """
import signal
caught = []

def test_fails():
    assert summed(1) == 3

def test_has_a_handler_of_its_own():
    old = signal.signal(signal.SIGTERM, lambda *_: caught.append(1))
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
        assert caught
    signal.signal(signal.SIGTERM, old)

def test_after_the_handler():
    time.sleep(1)
    assert summed(1) == 2

def test_forks():
    if RANK == 1:
        copy = os.fork()
        if copy == 0:
            raise ValueError("in the copy")
        os.waitpid(copy, 0)
    assert summed(1) == 2

def test_after_the_fork():
    assert summed(1) == 2
"""


def test_a_failed_session_uses_no_restart(tmp_path: Path) -> None:
    run = torchrun(tmp_path, {"test_red.py": RED_WITH_RESTARTS, "conftest.py": STARTS}, ranks=2, restarts=3)
    assert run.code == 1
    assert {*(tmp_path / "starts").read_text()} == {"0"}, "the ranks were started again"
    outcomes = {name: run.outcome(name) for name in run.outcomes}
    red = [name for name, said in outcomes.items() if said != "passed"]
    assert red == ["test_fails", "test_forks"], run.output[-3000:]
    assert len(outcomes) == 5
    assert "that rank 1 forked in the call of test_red.py::test_forks came back into pytest" in run.words("test_forks")
    assert "ValueError: in the copy" in run.words("test_forks")


LEAVES = """
import signal, subprocess, sys

def test_leaves_processes():
    subprocess.Popen(["sleep", "300"])
    subprocess.Popen(["sleep", "301"], start_new_session=True)
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(302)"
    child = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"deaf\\n"
    if os.fork() == 0:  # a daemon: its parent is gone before the session is over
        subprocess.Popen(["sleep", "303"], start_new_session=True)
        os._exit(0)
    os.wait()
    assert summed(1) == 2

def test_dies():
    if RANK == 1 and os.path.exists("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    assert summed(1) == 2
"""


@pytest.mark.parametrize("dies", [False, True], ids=["green", "a rank dies"])
def test_processes_that_tests_leave_end_with_the_session(dies: bool, tmp_path: Path) -> None:
    if dies:
        (tmp_path / "die").touch()
    mark = uuid.uuid4().hex
    conftest = f"{LEAVE}os.environ['LEFT_BY'] = {mark!r}\n"
    run = torchrun(tmp_path, {"test_it.py": LEAVES, "conftest.py": conftest}, ranks=2, limit_s=90)
    assert (run.code, run.outcome("test_leaves_processes")) == (int(dies), "passed"), run.output[-3000:]
    left = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if entry.name.isdecimal() and mark.encode() in (entry / "environ").read_bytes():
                left.append((entry / "cmdline").read_bytes())
    assert left == []


FULL = """
import glob

def test_passes():
    assert summed(1) == 2

def test_fills_the_disk():
    if RANK == 0:
        full = os.open("/dev/full", os.O_WRONLY)
        for fd in os.listdir("/proc/self/fd"):
            if os.path.exists(f"/proc/self/fd/{fd}") and os.readlink(f"/proc/self/fd/{fd}").endswith("journal.jsonl"):
                os.dup2(full, int(fd))
        os.rename(glob.glob("out/*")[0], "gone")

def test_never():
    pass
"""


def test_a_full_disk_ends_the_session_with_a_failure_that_names_it(tmp_path: Path) -> None:
    run = torchrun(tmp_path, {"test_full.py": FULL}, ranks=2, restarts=3, limit_s=90)
    assert run.code != 0
    assert "journal.jsonl cannot be written: No space left on device; give --dist-out a folder with space" in run.output
    assert run.outcome("test_never") == "absent"
    assert run.output.count("test session starts") == 1, "the ranks were started again"


def test_an_unwritable_log_folder_is_refused(tmp_path: Path) -> None:
    run = torchrun(tmp_path, {"test_it.py": RED}, "--dist-out=/proc/nowhere", ranks=2, limit_s=90)
    assert run.code != 0
    assert "--dist-out: /proc/nowhere" in run.output
    assert "cannot be written" in run.output


@pytest.mark.unit
@pytest.mark.parametrize(("args", "addopts"), [(("-q", "--dist-out", "out"), ""), (("-q",), "--dist-out out")])
def test_a_log_folder_with_a_space_is_refused(
    args: tuple[str, ...], addopts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Config:
        option = SimpleNamespace()
        invocation_params = SimpleNamespace(args=args)

    monkeypatch.setenv("PYTEST_ADDOPTS", addopts)
    with pytest.raises(pytest.UsageError, match="write --dist-out=DIR"):
        plugin_compatibility.refuse(Config())  # type: ignore[arg-type]  # what of a config is read


COMES_BACK = """
def pytest_sessionfinish():
    if os.environ["RANK"] == "1" and (copy := os.fork()):
        os.waitpid(copy, 0)
"""


def test_a_forked_child_that_returns_after_the_last_test_fails_the_session(tmp_path: Path) -> None:
    files = {"test_it.py": "def test_passes():\n    assert summed(1) == 2\n", "conftest.py": LEAVE + COMES_BACK}
    run = torchrun(tmp_path, files, ranks=2, limit_s=90)
    assert run.code == 1, run.output[-3000:]
    log = "".join(path.read_text() for path in run.left("rank1.*.log"))
    assert "a process that rank 1 forked in the end of the session came back into pytest" in run.output + log
    assert run.left("")[0].stat().st_mode & 0o077 == 0, "others may look into the logs"


REPEATS = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):  # as pytest-rerunfailures: the whole of it again, within the hook
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if any(report.failed for report in reports):
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
"""
FLAKY = """
tried = []

def test_flaky_before_its_collective():
    tried.append(1)
    if len(tried) == 1 and RANK == 1:
        raise ValueError("the first time")
    assert summed(1) == 2

def test_after_the_first():
    assert summed(RANK) == 1

def test_flaky_after_its_collective():
    tried.append(2)
    assert summed(1) == 2
    assert tried.count(2) == 2 or RANK == 0

def test_always():
    if RANK == 1:
        raise ValueError("always")
    summed(1)

def test_after_it_all():
    assert summed(RANK) == 1
"""


def test_a_test_repeated_after_an_abort_gets_a_new_group(tmp_path: Path) -> None:
    run = torchrun(tmp_path, {"test_flaky.py": FLAKY, "conftest.py": running.CONFTEST + REPEATS}, ranks=2, limit_s=90)
    assert run.code == 1
    outcomes = {name: run.outcome(name) for name in run.outcomes}
    assert outcomes.pop("test_always") == "failed"
    assert set(outcomes.values()) == {"passed"}, run.output[-3000:]
    assert len(outcomes) == 4


def _of_group_0(*calls: str) -> dict[str, object]:
    return {"history": {"0": list(calls)}}


def test_a_rank_whose_collectives_differ_is_named_and_not_its_victim() -> None:
    usual, other = _of_group_0("all_reduce [[1]] Float"), _of_group_0("all_reduce [[1]] Double")
    assert odd_one({0: usual, 1: other}) is None, "of two, neither is odd"
    words = "rank 2 differs: all_reduce [[1]] Double in group 0, where rank 1, 3 called all_reduce [[1]] Float"
    assert odd_one({1: usual, 2: other, 3: usual}) == OddOne(2, words, certain=True)
    more = odd_one({0: usual, 1: _of_group_0("all_reduce [[1]] Float", "barrier"), 2: usual})
    assert (more.rank, more.certain) == (1, False), "the others may have raised before it"
    assert odd_one({0: usual, 1: usual, 2: {"stack": "", "collectives": []}}) is None, "who called nothing has raised"
    three, four = _of_group_0("all_to_all [[3]]"), _of_group_0("all_to_all [[4]]")
    assert not odd_one({0: three, 1: four, 2: three}).certain, "an uneven exchange may be right"
    assert odd_one({0: usual, 1: usual, 2: _of_group_0("all_to_all [[1]]")}).certain
    posts = [Post(rank=0, kind="failed", text="RuntimeError: Connection closed by peer", raised=True, order=1),
             Post(rank=1, aborted="rank 0 did not pass", kind="failed")]  # fmt: skip
    perhaps, certain = (OddOne(1, "rank 1 differs: x", certain=each) for each in (False, True))
    merged = blamed(merge(posts), perhaps)
    assert merged.crash.startswith("rank 1 differs: x; rank 0 diverged first: RuntimeError: Connection closed")
    assert merged.primary == 1
    own = merge([Post(rank=0, kind="failed", text="E   assert 1 == 2", raised=True, order=1), Post(rank=1)])
    assert blamed(own, perhaps) == own, "an error of the test's own names its rank"
    assert blamed(own, certain).crash.startswith("rank 1 differs: x; rank 0 diverged first: ")


SHAPES = """
def test_one_rank_reduces_more():
    some = torch.ones(4 if RANK == 2 else 2)
    dist.all_reduce(some)
    assert some.sum() == 2 * dist.get_world_size()

def test_all_fail_alike():
    some = torch.ones(2)
    dist.all_reduce(some)
    assert some.sum() == 0
"""


def test_a_wrong_shape_is_charged_to_the_rank_that_has_it(tmp_path: Path) -> None:
    run = torchrun(tmp_path, {"test_shapes.py": SHAPES}, ranks=4, limit_s=120)
    assert run.code == 1, run.output[-3000:]
    assert re.search(r"test_one_rank_reduces_more.*: rank 2 differs: gloo:all_reduce \[\[4\]\]", run.output)
    assert re.search(r"test_all_fail_alike \(call\): assert", run.output)
    assert run.output.count("where each rank was") == 1


KEPT = """
import resource

def test_few_files_may_be_open():
    there = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (there + 200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

@pytest.mark.parametrize("n", range(30))
def test_destroys_groups_that_a_cycle_holds(n):
    groups = [dist.new_group([0, 1]) for _ in range(4)]
    groups.append(groups)
    for group in groups[:4]:
        assert summed(1, group) == 2
        dist.destroy_process_group(group)
"""


def test_destroyed_groups_free_their_file_descriptors(tmp_path: Path) -> None:
    run = torchrun(tmp_path, {"test_kept.py": KEPT}, ranks=2, limit_s=90)
    assert run.code == 0, run.output[-3000:]
    assert len(run.outcomes) == 31


NODES = """
kept = []

def test_begins():
    assert summed(1) == 4

def test_leaves_a_collective_on_one_node():
    if RANK > 1:
        kept.append(dist.all_reduce(torch.tensor([100]), async_op=True))

def test_after_the_collective():
    assert summed(1) == 4

def test_raises_on_one_node():
    if RANK == 3:
        raise ValueError("on the other node")
    summed(1)

def test_ends():
    assert summed(RANK) == 6
"""


def test_two_nodes_report_the_failure_of_one_and_use_no_restart(tmp_path: Path) -> None:
    files = {"test_nodes.py": NODES, "conftest.py": STARTS}
    run, other = running.two_nodes(tmp_path, files, ranks=2, restarts=3)
    assert (run.code, other) == (1, 1), run.output[-3000:]
    assert {*(tmp_path / "starts").read_text()} == {"0"}, "the ranks were started again"
    outcomes = {name: run.outcome(name) for name in run.outcomes}
    assert [name for name, said in outcomes.items() if said == "passed"] == [
        "test_begins", "test_after_the_collective", "test_ends",
    ]  # fmt: skip
    assert len(outcomes) == 5
    left = "rank 2 left 1 collective of group 0 [0,1,2,3] in flight, which rank 0, 1 never entered"
    assert left in run.words("test_leaves_a_collective_on_one_node")
    assert "rank 3 diverged first: ValueError: on the other node" in run.words("test_raises_on_one_node")


def test_two_nodes_whose_ranks_all_leave_with_0_are_red_on_both(tmp_path: Path) -> None:
    run, other = running.two_nodes(tmp_path, {"test_nodes.py": ALL_LEAVE})
    assert 0 not in (run.code, other), run.output[-3000:]
    assert UNSAID in run.output

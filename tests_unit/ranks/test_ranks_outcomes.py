"""What a test comes to where its ranks do not all pass: torchrun for real, three ranks, one run."""

from pathlib import Path

import pytest

from tests_unit.ranks.running import needs_torch, torchrun

pytestmark = needs_torch()

OUTCOMES = """
def test_begins_well():
    assert summed(RANK + 1) == 6

def test_fails_before_a_collective():
    if RANK == 1:
        raise ValueError("bug on rank one")
    assert summed(10) == 30

def test_is_not_paired_with_the_one_before():
    assert summed(7) == 21

def test_fails_after_the_last_collective():
    assert summed(1) == 3
    assert RANK != 2, "only rank two is wrong"

def test_fails_while_peers_sit_in_a_subgroup():
    pair = dist.new_group([0, 1])
    try:
        if RANK == 1:
            raise KeyError("the frame holds the group")
        if RANK == 0:
            summed(1, pair)
    finally:
        kept.append(pair)
kept = []

def test_after_a_subgroup():
    assert summed(5) == 15

@pytest.fixture
def breaks_in_setup():
    if RANK == 0:
        raise OSError("no disk on rank zero")
    yield

def test_setup(breaks_in_setup):
    assert summed(1) == 3

@pytest.fixture
def breaks_in_teardown():
    yield
    if RANK == 2:
        raise OSError("teardown of rank two")
    summed(1)

def test_teardown(breaks_in_teardown):
    assert summed(1) == 3

@pytest.fixture
def hangs_in_teardown():
    yield
    if RANK == 1:
        summed(1)

@pytest.mark.dist(timeout=1)
def test_teardown_that_hangs(hangs_in_teardown):
    assert summed(2) == 6

def test_after_teardowns():
    assert summed(9) == 27

@pytest.mark.skipif("int(__import__('os').environ['RANK']) == 2")
def test_skipif_on_one_rank():
    assert summed(1) == 3

def test_skips_on_one_rank_in_the_middle():
    if RANK == 0:
        pytest.skip("rank zero has something better to do")
    assert summed(1) == 3

def test_after_a_skip():
    assert summed(4) == 12

def test_skips_everywhere():
    pytest.skip("not here")

@pytest.mark.xfail(reason="known")
def test_xfail_on_one_rank():
    if RANK == 1:
        raise ValueError("known bug")
    assert summed(1) == 3

@pytest.mark.xfail(strict=True, reason="known")
def test_strict_xfail_on_one_rank():
    if RANK == 1:
        raise ValueError("known bug")
    assert summed(1) == 3

@pytest.mark.xfail(strict=True, reason="known")
def test_strict_xfail_that_passes():
    assert summed(1) == 3

def test_alike_and_apart():
    raise ValueError("never mind" if RANK else "another reason")

@pytest.mark.dist(ranks=2)
def test_of_two_ranks(request):
    assert RANK < 2
    request.node.user_properties.append(("seen", RANK))

@pytest.mark.dist(world=2)
def test_of_a_world_of_two(request):
    assert (RANK, dist.get_world_size(), summed(1)) == (RANK, 2, 2)

@pytest.mark.dist(world=2)
def test_breaks_a_world_of_two():
    if RANK == 1:
        raise ValueError("bug in a small world")
    summed(1)

@pytest.mark.dist(world=2)
def test_of_a_world_of_two_again():
    assert (dist.get_world_size(), summed(1)) == (2, 2)

@pytest.mark.dist(ranks=4)
def test_of_four_ranks():
    raise AssertionError("there are three")

@pytest.fixture(scope="session")
def mesh():
    return dist.device_mesh.init_device_mesh("cpu", (3,), mesh_dim_names=("all",))

def test_mesh(mesh):
    assert summed(1, mesh.get_group("all")) == 3

def test_poisons_the_mesh(mesh):
    if RANK == 0:
        raise ValueError("before")
    summed(1, mesh.get_group("all"))

def test_mesh_again(mesh):
    assert summed(2, mesh.get_group("all")) == 6

def test_decided_by_rank_two(record_property):
    record_property("said by", RANK)
    assert RANK != 2, "rank two decides"

def test_a_subtest_fails_on_one_rank(subtests):
    for n in range(3):
        with subtests.test(n=n):
            assert (RANK, n) != (1, 2), "part two of rank one"
    assert summed(1) == 3

def test_ends_the_group():
    dist.destroy_process_group()

def test_has_a_group_again():
    assert summed(3) == 9

def test_fails_on_two_ranks():
    if RANK == 1:
        time.sleep(1.5)  # on a busy machine a rank may wait for its core, and rank 2 is to come first
        assert RANK == 99, "rank one came second"
    assert RANK != 2, "rank two found 17, expected 18"
    summed(1)

def test_stops_the_session_on_one_rank_only_by_exit_code():
    if RANK == 1:
        import sys
        sys.exit(3)
    summed(1)

def test_ends_well():
    assert summed(RANK) == 3
"""

EXPECTED = {  # test → what JUnit says, words that stand in it
    "test_of_a_world_of_two": ("passed", ()),  # tests of a small world come first, and together
    "test_breaks_a_world_of_two": ("failed", ("rank 1 diverged first: ValueError: bug in a small world",)),
    "test_of_a_world_of_two_again": ("passed", ()),
    "test_begins_well": ("passed", ()),
    "test_fails_before_a_collective": (
        "failed",
        ("rank 1 diverged first: ValueError: bug on rank one", "rank 0, 2:", "assert summed(10) == 30",
         "gloo:all_reduce", "outcome per rank: 0:failed(aborted), 1:failed, 2:failed(aborted)"),
    ),
    "test_is_not_paired_with_the_one_before": ("passed", ()),
    "test_fails_after_the_last_collective": ("failed", ("rank 2 diverged first", "0:passed, 1:passed, 2:failed")),
    "test_fails_while_peers_sit_in_a_subgroup": ("failed", ("rank 1 diverged first: KeyError", "0:failed(aborted)")),
    "test_after_a_subgroup": ("passed", ()),
    "test_setup": ("error", ("rank 0 diverged first: OSError: no disk on rank zero",)),
    "test_teardown": ("error", ("rank 2 diverged first: OSError: teardown of rank two",)),
    "test_teardown_that_hangs": ("error", ("rank 1 did not finish the teardown", "within 1 s", "summed(1)")),
    "test_after_teardowns": ("passed", ()),
    "test_skipif_on_one_rank": ("error", ("ranks disagree on the outcome: passed on ranks 0, 1; skipped on rank 2",)),
    "test_skips_on_one_rank_in_the_middle": ("failed", ("skipped", "rank zero has something better to do")),
    "test_after_a_skip": ("passed", ()),
    "test_skips_everywhere": ("skipped", ("not here",)),
    "test_xfail_on_one_rank": ("skipped", ("known",)),
    "test_strict_xfail_on_one_rank": ("skipped", ("known",)),
    "test_strict_xfail_that_passes": ("failed", ("[XPASS(strict)] known",)),
    "test_alike_and_apart": ("failed", ("----- rank 0 -----", "another reason", "----- ranks 1, 2 -----")),
    "test_of_two_ranks": ("passed", ()),
    "test_of_four_ranks": ("skipped", ("needs 4 ranks, and there are 3",)),
    "test_mesh": ("passed", ()),
    "test_poisons_the_mesh": ("failed", ("rank 0 diverged first",)),
    "test_mesh_again": ("passed", ()),
    "test_decided_by_rank_two": ("failed", ("rank 2 diverged first: AssertionError: rank two decides",)),
    "test_a_subtest_fails_on_one_rank": ("failed", ("rank 1 diverged first: ", "part two of rank one")),
    "test_ends_the_group": ("passed", ()),
    "test_has_a_group_again": ("passed", ()),
    "test_fails_on_two_ranks": (
        "failed", ("rank 2 diverged first: AssertionError: rank two found 17, expected 18",),
    ),
    "test_stops_the_session_on_one_rank_only_by_exit_code": ("failed", ("rank 1 diverged first: SystemExit: 3",)),
    "test_ends_well": ("passed", ()),
}  # fmt: skip


def test_each_test_has_one_outcome_over_all_ranks_and_the_next_is_unaffected(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    run = torchrun(tmp_path, {"test_outcomes.py": OUTCOMES})
    assert list(run.outcomes) == list(EXPECTED), run.output[-4000:]
    for name, (outcome, words) in EXPECTED.items():
        with subtests.test(name):
            wanted = f"passed+{outcome}" if name in ("test_teardown", "test_teardown_that_hangs") else outcome
            assert run.outcome(name) in (outcome, wanted), run.words(name)
            for part in words:
                assert part in run.words(name)
    with subtests.test("an ending in order"):
        assert run.code == 1
        assert "SIGABRT" not in run.output
        assert "SIGTERM" not in run.output
        assert f"of {len(EXPECTED)} tests failed" in run.output  # in torchrun's own last page
        assert run.output.count("short test summary info") == 1
    with subtests.test("the properties are those of the rank that decided"):
        xml = (tmp_path / "junit.xml").read_text()
        assert '<property name="said by" value="2" />' in xml
        assert '<property name="said by" value="0" />' not in xml


ABUSED = """
import signal

def test_leaves_with_0_by_an_exception():
    if RANK == 1:
        raise SystemExit(0)
    summed(1)

def test_after_1():
    assert summed(1) == 2

def test_has_no_memory():
    if RANK == 0:
        bytearray(1 << 60)
    summed(1)

def test_after_2():
    assert summed(1) == 2

def test_has_no_depth():
    def deeper():
        return deeper()
    if RANK == 1:
        deeper()
    summed(1)

def test_after_3():
    assert summed(1) == 2

def test_says_50_megabytes():
    if RANK == 1:
        raise ValueError("x" * 50_000_000)
    summed(1)

def test_after_4():
    assert summed(1) == 2

def test_has_no_words():
    class Wordless(Exception):
        def __str__(self):
            raise RuntimeError("no words")
        __repr__ = __str__
    if RANK == 1:
        raise Wordless()
    summed(1)

def test_after_5():
    assert summed(1) == 2

def test_says_what_no_file_holds(record_property):
    record_property("an object", object())
    record_property("half a character", "\\ud800")
    if RANK == 1:
        raise ValueError("\\ud800 \\x00 \\x1b[31m ]]> <script>")
    summed(1)

def test_after_6():
    assert summed(1) == 2

def test_forgets_who_it_is():
    if RANK == 1:
        os.chdir("/")
        os.environ["RANK"], os.environ["WORLD_SIZE"] = "0", "1"
        os.umask(0o777)
    signal.set_wakeup_fd(-1)

def test_after_7():
    assert summed(1) == 2

def test_closes_its_descriptors():
    if RANK == 1:
        os.closerange(3, 2048)
    summed(1)

def test_after_8():
    assert summed(1) == 2

@pytest.mark.dist(timeout=2)
def test_blocks_all_signals():
    if RANK == 1:
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
        time.sleep(600)
    summed(1)

def test_after_9():
    assert summed(1) == 2
"""


def test_a_test_that_damages_its_process_does_not_change_the_next_outcome(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    run = torchrun(tmp_path, {"test_abused.py": ABUSED}, ranks=2, restarts=3)
    assert run.code == 1
    assert len(run.outcomes) == 18, run.output[-4000:]
    for name in run.outcomes:
        with subtests.test(name):
            right = name.startswith("test_after") or name == "test_forgets_who_it_is"
            assert run.outcome(name) == ("passed" if right else "failed"), run.words(name)[-2000:]
    with subtests.test("a long message is cut"):
        assert (tmp_path / "junit.xml").stat().st_size < 1_000_000

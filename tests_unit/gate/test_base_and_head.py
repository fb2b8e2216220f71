"""`check --at BASE..HEAD`: the verdict is about the change, whatever both sides violate."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.court.base_and_head import KINDS, Pair, difference, lines
from contracts.harness import checkout
from contracts.spec import Refused
from contracts.spec.records import Header, Item, OnRanks, Outcome, Plan, Result, Run, Subject, Violation
from tests_unit._parties.running import Done, rankproof
from tests_unit.test_answering import checkout as repository
from tests_unit.test_answering import git

FAR, FURTHER, NEAR = (f"y differs: L2 error {error} over 1e-06" for error in ("1.2e-5", "3.9e-3", "1.4e-5"))


EPSILON, TWO, EDGE = (
    f"y differs: L2 error {error} over 1e-12 (float64); {got} at [1, 2, 9], expected -0.66369"
    for error, got in (("2.4e+00", "-3.00519"), ("2.5e+00", "-3.00764"), ("2.5e+00", "-3.00519"))
)


QUOTED, QUOTES = (
    f"a file of step 4 was cut off, and the refusal does not name it: {raised}"
    for raised in ("RuntimeError: Missing key: rng/0/torch.", "AttributeError: 'Chunk' has no 'sizes'\nin line 4")
)


def said(outcome: Outcome, *words: str) -> Result:
    parts = tuple(Violation(words=each) for each in words) if outcome == "violated" else ()
    return Result(id="BLK-03a", case="one", outcome=outcome, words="; ".join(words), violations=parts)


def on_ranks(first: int, *words: str) -> Result:
    """What each rank said, of which one was the first; a rank that said nothing held."""
    every = [said("violated", each).parts if each else () for each in words]
    told = tuple(OnRanks(ranks=(rank,), violations=parts) for rank, parts in enumerate(every))
    return replace(said("violated", words[first]), rank=first, on_ranks=told)


KIND = {
    "the same, and another rank is the first": (on_ranks(0, FAR, "dp is 4"), on_ranks(1, FAR, "dp is 4"), "both"),
    "another count on a rank": (on_ranks(0, FAR, "dp is 4"), on_ranks(0, FAR, "dp is 8"), "worse"),
    "a rank that held": (on_ranks(0, FAR, ""), on_ranks(0, FAR, FAR), "new"),
    "a rank that is mended": (on_ranks(0, FAR, FAR), on_ranks(1, "", FAR), "both"),
    "a new violation": (said("holds"), said("violated", FAR), "new"),
    "another thing beside a known one": (said("violated", FAR), said("violated", FAR, "z differs"), "new"),
    "the same with other last digits": (said("violated", FAR), said("violated", NEAR), "both"),
    "the same and further off": (said("violated", FAR), said("violated", FURTHER), "worse"),
    "a second fault that moves the same answer": (said("violated", EPSILON), said("violated", TWO), "worse"),
    "one of two faults mended": (said("violated", TWO), said("violated", EPSILON), "both"),
    "an error at the edge of its digits": (said("violated", EPSILON), said("violated", EDGE), "both"),
    "the same and nearer": (said("violated", FURTHER), said("violated", FAR), "both"),
    "no number any more": (said("violated", FAR), said("violated", FAR.replace("1.2e-5", "nan")), "worse"),
    "another count": (said("violated", "dp is 4, expected 2"), said("violated", "dp is 8, expected 2"), "worse"),
    "the same, and other words of an exception": (said("violated", QUOTED), said("violated", QUOTES), "both"),
    "another thing, and the words of an exception": (
        said("violated", QUOTED),
        said("violated", QUOTED.replace("cut off", "emptied")),
        "new",
    ),
    "the same in another temporary folder": (
        said("violated", "refused: load = '/dev/shm/checkpoints-3m4hxxs1/step-2'"),
        said("violated", "refused: load = '/dev/shm/checkpoints-upaza7vw/step-2'"),
        "both",
    ),
    "the same by another measure": (
        said("violated", FAR),
        said("violated", FAR.replace("L2", "largest")),
        "both",
    ),
    "one more of a kind": (
        said("violated", "layer 1 decays"),
        said("violated", "layer 1 decays", "layer 2 decays"),
        "worse",
    ),
    "mended": (said("violated", FAR), said("holds"), "better"),
    "as before": (said("holds"), said("holds"), "hold"),
    "answered for the first time": (said("not run", "moved"), said("holds"), "hold"),
    "an adapter that breaks": (said("holds"), said("broken", "TypeError"), "unknown"),
    "a name that has moved": (said("violated", FAR), said("not run", "moved"), "unknown"),
    "violated, and unknown at the base": (said("broken", "TypeError"), said("violated", FAR), "unknown"),
    "given up": (said("holds"), said("not offered", "no such block"), "lost"),
    "broken at the base, and declined": (said("broken", "TypeError"), said("not offered", "not today"), "lost"),
    "broken on both sides": (said("broken", "TypeError"), said("broken", "TypeError"), "neither"),
    "planned only at the head, and violated": (None, said("violated", FAR), "unknown"),
    "planned only at the base": (said("holds"), None, "unknown"),
}


@pytest.mark.parametrize("name", KIND)
def test_two_results_of_an_item_give_its_kind_of_change(name: str) -> None:
    base, head, kind = KIND[name]
    assert Pair(base=base, head=head).kind == kind


def run(*results: Result) -> Run:
    subject = Subject(name="ours", version="1", origin="ours:Ours", offers=frozenset(), layouts=frozenset())
    header = Header(
        schema="rankproof.run/1", suite="1", revision="r", profile="BLK", subject=subject, assistants=(),
        started="2026-11-26T00:00:00+00:00", command=("rankproof", "check"), python="3", platform="p",
    )  # fmt: skip
    return Run(header=header, plan=Plan(items=tuple(each.item for each in results)), results=results)


WORDS: dict[str, tuple[Sequence[str], str, int]] = {
    "new outweighs what is unknown": (["a new violation", "an adapter that breaks"], "violated", 1),
    "worse is red": (["the same and further off", "as before"], "violated", 1),
    "given up is red": (["given up", "as before"], "violated", 1),
    "broken is incomplete": (["an adapter that breaks", "as before"], "incomplete", 3),
    "old faults do not count": (
        ["the same with other last digits", "mended", "as before"],
        "conformant",
        0,
    ),
    "nothing was judged": (["broken on both sides"], "nothing ran", 5),
}


@pytest.mark.parametrize("name", WORDS)
def test_a_changes_verdict_and_exit_code_follow_from_its_kinds(name: str) -> None:
    kinds, word, code = WORDS[name]
    both = [KIND[each][:2] for each in kinds]
    named = [[None if side is None else Result(**{**vars(side), "case": str(number)}) for side in pair]
             for number, pair in enumerate(both)]  # fmt: skip
    change = difference(*(run(*(pair[at] for pair in named if pair[at] is not None)) for at in (0, 1)))
    assert (change.word, change.exit_code) == (word, code)
    assert sum(len(found) for found in change.of.values()) == len(kinds)
    assert lines(change)[-1].startswith(f"{word.upper()}: the change ours 1 → ours 1, profile BLK (")


def test_an_item_without_a_result_was_not_run() -> None:
    planned = Plan(items=(Item(id="BLK-03a", case="one"),))
    base, head = run(said("holds")), Run(header=run().header, plan=planned, results=())
    assert difference(base, head).word == "incomplete"


def test_every_kind_of_change_is_tested_here() -> None:
    assert {kind for _, _, kind in KIND.values()} == {*KINDS}


ADAPTER = """
class Ours:
    name, version, package = "ours", "1", "forked"
    offers, layouts, labels = frozenset({"blocks"}), frozenset(), {}

    def blocks(self, pattern, depth):
        import forked
        return forked.build(pattern, depth)
"""
RIGHT = """
FAMILY = {"A": "ablock", "E": "eblock", "M": "mblock", "R": "rblock"}
def build(pattern, depth):
    return tuple(FAMILY[pattern[at % len(pattern)]] for at in range(depth))
"""
VERSIONS = {
    "wrong": RIGHT.replace("range(depth)", "range(depth // len(pattern) * len(pattern))"),
    "right": RIGHT,
    "other": RIGHT.replace('"mblock"', '"block"'),
    "moved": RIGHT.replace("def build", "def made"),
}


@pytest.fixture(scope="module")
def fork(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a tag for each version, and beside it the adapter in a folder `work`."""
    folder = tmp_path_factory.mktemp("change") / "fork"
    for name, text in VERSIONS.items():
        if name == "wrong":
            repository(folder, {"forked/__init__.py": text})
        else:
            (folder / "forked/__init__.py").write_text(text, encoding="utf-8")
            git(folder, "commit", "-q", "-a", "-m", name)
        git(folder, "tag", name)
    (folder.parent / "work").mkdir()
    (folder.parent / "work/ours.py").write_text(ADAPTER, encoding="utf-8")
    return folder


def judged(fork: Path, at: object, *words: object, code: int | None = None) -> Done:
    given = ("check", "--stack", "ours:Ours", "--at", at, "--profile", "PAT-01", "--report", "report", *words)
    return rankproof(*given, cwd=fork.parent / "work", code=code)


def test_a_new_violation_is_shown_first_with_both_sides(fork: Path) -> None:
    _, first, items, base, head, rerun, *_, last = judged(fork, f"{fork}@right..wrong", code=1).stdout.splitlines()
    assert first == "Violated at the head and not at the base: 6 items"
    assert items.startswith("  PAT-01[nam56r, ")
    assert base == "    base  holds"
    assert head == "    head  violated: AEMEAEMEAEMR at depth 52 has 48 blocks"
    assert rerun.startswith(f"    rerun rankproof check --stack ours:Ours --at {fork}@wrong --profile ")
    one, other = (git(fork, "rev-parse", name)[:9] for name in ("right", "wrong"))
    assert last == f"VIOLATED: the change ours 1 at {one} → ours 1 at {other}, profile PAT-01 (6 new, 3 hold)"
    told = json.loads((fork.parent / "work/report/change.json").read_text(encoding="utf-8"))
    assert told["counts"]["new"] == 6
    assert told["items"][0]["base"]["outcome"] == "holds"


def test_old_violations_are_counted_and_fixed_ones_named(fork: Path) -> None:
    assert json.loads(judged(fork, f"{fork}@wrong..wrong", "--json", code=0).stdout)["counts"]["both"] == 6
    mended = judged(fork, f"{fork}@wrong..right", code=0)
    assert "Violated at the base, and holds at the head: 6 items" in mended.stdout


def test_an_old_fault_does_not_hide_a_new_one_in_the_same_items(fork: Path) -> None:
    assert "new" in judged(fork, f"{fork}@wrong..other", code=1).stdout.splitlines()[-1]


def test_an_adapter_that_does_not_fit_one_side_makes_the_verdict_incomplete(fork: Path) -> None:
    done = judged(fork, f"{fork}@right..moved", code=3)
    assert done.stdout.splitlines()[-1].startswith("INCOMPLETE: the change ours 1 at ")
    assert "Not judged on one side: 9 items" in done.stdout


def test_two_folders_or_the_working_tree_can_be_compared(fork: Path) -> None:
    done = judged(fork, f"{fork}@right..")  # HEAD is `moved`
    assert done.returncode == 3, done.stdout + done.stderr
    judged(fork, f"{fork}..{fork}", "--profile", "PAT-01a", code=5)


@pytest.mark.parametrize(("words", "said"), [
    (["--form", "junit"], "--form = 'junit': is no form of a difference"),
    (["--baseline", "x"], "--baseline = 'x': does not go with two sides"),
    (["--profile", "NONE"], "profile"),
])  # fmt: skip
def test_options_that_do_not_fit_two_commits_are_refused(fork: Path, words: list[str], said: str) -> None:
    assert said in judged(fork, f"{fork}@right..wrong", *words, code=2).stderr


@pytest.mark.parametrize(("at", "found"), [
    ("x@a..b", ("x@a", "x@b")), ("a..b", (".@a", ".@b")), ("a..", (".@a", ".")), ("x@a..", ("x@a", "x")),
    ("../x@a", None), ("..", None), ("../nowhere", None), ("x", None),
])  # fmt: skip
def test_a_range_of_commits_is_split_into_base_and_head(at: str, found: tuple[str, str] | None) -> None:
    assert checkout.sides(at) == found


def test_three_dots_are_refused_with_the_command_that_names_the_base() -> None:
    with pytest.raises(Refused, match="git merge-base"):
        checkout.sides("main...topic")


NAMING = """
import forked
from contracts.stacks.reference.stack import Reference
from contracts.stacks.reference.training.trainer import Trainer

state, load = Trainer.state, Trainer.load
Trainer.state = lambda self: {name.replace("q_norm", forked.NORM): each for name, each in state(self).items()}
Trainer.load = lambda self, given, position: load(
    self, {name.replace(forked.NORM, "q_norm"): each for name, each in given.items()}, position
)

class Naming(Reference):
    name, version, package = "naming", "1", "forked"
"""


def test_a_head_that_renames_what_it_saves_does_not_load_what_the_base_has_saved(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    repository(tmp_path / "fork", {"forked/__init__.py": 'NORM = "q_norm"\n'})
    (tmp_path / "fork/forked/__init__.py").write_text('NORM = "norm_of_q"\n', encoding="utf-8")
    git(tmp_path / "fork", "commit", "-q", "-a", "-m", "renamed")
    (tmp_path / "naming.py").write_text(NAMING, encoding="utf-8")
    words = ("check", "--stack", "naming:Naming", "--profile", "CKPT-08a[dense@dense]", "--report", "report", "--at")
    done = rankproof(*words, f"{tmp_path}/fork@HEAD~1..HEAD", cwd=tmp_path, code=1, numbers=True)
    assert "    base  holds" in done.stdout.splitlines()
    assert "norm_of_q.weight = 'float32 [6]': is missing from the checkpoint of step 2" in done.stdout
    rankproof(*words, f"{tmp_path}/fork@HEAD..HEAD", cwd=tmp_path, code=0, numbers=True)

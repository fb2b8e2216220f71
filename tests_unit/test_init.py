"""`rankproof init`, from outside: what it writes, what it says of an adapter that grows, and what it refuses."""

import datetime
import sys
import tomllib
from pathlib import Path

import pytest

from contracts.court import deviations
from contracts.harness import adapter_probe, adapter_skeleton, proposed_deviations
from contracts.harness.gate import today
from contracts.spec import Refused, questions
from contracts.spec.records import EXIT_CODES
from tests_unit._parties.running import environment, needs, ran, rankproof

USAGE = 2
REPEATS = """
    def blocks(self, pattern, depth):
        family = {"A": "ablock", "E": "eblock", "M": "mblock", "R": "rblock"}
        return tuple(family[letter] for letter in pattern * (depth // len(pattern)))
"""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an adapter that answers nothing yet, and one that answers `blocks` wrongly."""
    folder = tmp_path_factory.mktemp("begun")
    rankproof("init", "ours", "--group", "stack", cwd=folder, code=0)
    head, _, _ = (folder / "ours_lane.py").read_text(encoding="utf-8").partition("    # stack: ")
    (folder / "more_lane.py").write_text(head.replace('# "blocks"', '"blocks"') + REPEATS, encoding="utf-8")
    return folder


def test_every_question_becomes_a_method_that_answers_nothing(tmp_path: Path) -> None:
    file = tmp_path / "ours_lane.py"
    file.write_text(adapter_skeleton.written("ours", adapter_skeleton.sides()), encoding="utf-8")
    every = [*questions()]
    code = (
        "import inspect, ours_lane; from contracts.spec.errors import NotOffered\n"
        f"stack = ours_lane.Stack(); assert stack.offers == frozenset()\nfor name in {every!r}:\n"
        "    method = getattr(stack, name)\n"
        "    try: method(*[None] * len(inspect.signature(method).parameters)); raise SystemExit(name)\n"
        "    except NotOffered as declined: assert name in str(declined)\n"
        "    assert method.__doc__\n"
    )
    ran([sys.executable, "-c", code], cwd=tmp_path, env=environment(), code=0)


def test_the_docstrings_are_those_of_the_protocol() -> None:
    text = adapter_skeleton.written("ours", ("blocks", "training"))
    for words in (
        "def run_block(self, call: BlockCall) -> BlockRun:",
        "x: (B, T, D), the residual stream before the block's norm.",
        "gradients: full tensors by name, before clipping.",
        questions()["train"].doc.splitlines()[0],
    ):
        assert words in text
    assert text.count("One global batch: every sequence of one optimizer step.") == 1


@needs("ruff", "mypy")
def test_a_skeleton_is_typed_and_without_lint(tmp_path: Path) -> None:
    file = tmp_path / "ours_lane.py"
    file.write_text(adapter_skeleton.written("ours", adapter_skeleton.sides()), encoding="utf-8")
    for words in (["ruff", "check", "--isolated", "--line-length=120", "--select=E,F,W,I,N"],
                  ["ruff", "format", "--isolated", "--line-length=120", "--check"]):  # fmt: skip
        ran([sys.executable, "-m", *words, str(file)], code=0)


def test_an_empty_adapter_gets_the_questions_to_answer_first(begun: Path) -> None:
    done = rankproof("init", "--probe", "ours_lane:Stack", cwd=begun, code=EXIT_CODES["nothing ran"])
    assert "ours 0 answers nothing yet" in done.stdout
    assert done.stdout.splitlines()[-1] == "NOTHING RAN: ours 0, profile what it offers (no result)"
    (row,) = (line.split() for line in done.stdout.splitlines() if line.startswith("run_block "))
    assert int(row[1]) > 0


def test_a_method_that_is_filled_in_is_judged_in_words(begun: Path) -> None:
    done = rankproof("init", "--probe", "more_lane:Stack", cwd=begun, code=EXIT_CODES["violated"])
    assert "ours 0 answers blocks" in done.stdout
    assert "AEMEAEMEAEMR at depth 52 has 48 blocks" in done.stdout
    assert "rankproof check --stack more_lane:Stack --profile 'PAT-01[nam56r]'" in done.stdout
    assert "ours raised KeyError on blocks" in done.stdout
    assert "\nblocks " not in done.stdout


@pytest.mark.slow
def test_a_proposed_deviation_counts_only_after_an_owner_is_entered(begun: Path, tmp_path: Path) -> None:
    file = tmp_path / "ours.toml"
    rankproof("init", "--probe", "more_lane:Stack", "--propose", str(file), cwd=begun, code=EXIT_CODES["violated"])
    with pytest.raises(Refused, match=r"deviation 1\.owner = '': is empty"):
        deviations.load(file)
    text = file.read_text(encoding="utf-8")
    assert "# AEMEAEMEAEMR at depth 52 has 48 blocks" in text
    signed = tmp_path / "signed.toml"
    filled = text.replace('reason = ""', 'reason = "a tail is not built"').replace('owner = ""', 'owner = "us"')
    signed.write_text(filled.replace('issue = ""', 'issue = "#7"'), encoding="utf-8")
    last_days = {entry["expires"] for entry in tomllib.loads(filled)["deviation"]}
    assert last_days == {today() + datetime.timedelta(days=proposed_deviations.DAYS)}
    words = ["check", "--stack", "more_lane:Stack", "--with", "none", "--profile", "PAT-01,PAT-01a"]
    rankproof(
        *words, "--report", str(tmp_path / "out"), "--deviations", str(signed), cwd=begun, code=EXIT_CODES["conformant"]
    )
    again = rankproof("init", "--probe", "more_lane:Stack", "--propose", str(file), cwd=begun, code=USAGE)
    assert "exists and is not written over" in again.stderr
    assert file.read_text(encoding="utf-8") == text


@pytest.mark.slow
def test_init_refuses_all_wrong_options_at_once(begun: Path) -> None:
    done = rankproof("init", "Not A Name", "--group", "nobody", "--propose", "nowhere/x.toml", cwd=begun, code=USAGE)
    assert [line.split(" = ")[0] for line in done.stderr.splitlines()] == [
        "rankproof: name", "rankproof: group", "rankproof: propose", "rankproof: propose"
    ]  # fmt: skip
    before = (begun / "ours_lane.py").read_text(encoding="utf-8")
    again = rankproof("init", "ours", cwd=begun, code=USAGE)
    assert "file = 'ours_lane.py': exists and is not written over" in again.stderr
    assert (begun / "ours_lane.py").read_text(encoding="utf-8") == before
    assert "wants a NAME or a --probe, and one of them" in rankproof("init", cwd=begun, code=USAGE).stderr


def test_the_list_of_questions_to_answer_next_shrinks() -> None:
    from contracts.harness.families import read_checks

    read_checks()
    first = adapter_probe.unlocked(frozenset())
    answered = frozenset(first[0].questions)
    assert not any(set(row.questions) <= answered for row in adapter_probe.unlocked(answered))
    assert len(adapter_probe.plan_of(answered).promises) == first[0].promises["unit"]
    assert adapter_probe.unlocked(frozenset(questions())) == []

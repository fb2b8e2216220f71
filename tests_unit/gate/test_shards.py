"""A gate that is split: every share judges a part in a process of its own, and one record has all of it."""

import json
import shutil
from pathlib import Path

import pytest

from contracts.court.shards import share
from contracts.spec import Refused
from contracts.spec.records import EXIT_CODES, USAGE_ERROR, Item
from tests_unit._parties.running import ROOT, rankproof, side_by_side

CHECK = ("check", "--stack", "ours:Ours", "--profile", "PAT-01,PAT-02", "--report", "report")
MATRIX = {
    **{f"share-{number}": (*CHECK, "--shard", f"{number}/3") for number in (1, 2, 3)},
    "whole": CHECK, "other": ("check", "--stack", "ours:Ours", "--profile", "PAT-01", "--report", "report"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("shards")
    ours = (ROOT / "docs/examples/whole_periods/ours.py").read_text(encoding="utf-8")
    side_by_side(MATRIX, at, _={"ours.py": ours})
    return at


def told(folder: Path) -> tuple[str, list[tuple[str, str, str]]]:
    verdict = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
    return verdict["word"], [(each["id"], each["case"], each["outcome"]) for each in verdict["results"]]


def test_merged_shards_equal_the_record_of_one_run(folder: Path) -> None:
    parts = [folder / f"share-{number}/report" for number in (1, 2, 3)]
    rankproof("merge", *parts, "--report", "merged", cwd=folder, code=EXIT_CODES["violated"])
    assert told(folder / "merged") == told(folder / "whole/report")
    judged = [sum(outcome != "not run" for *_, outcome in told(part)[1]) for part in parts]
    assert min(judged) > 0
    assert sum(judged) == len(told(folder / "whole/report")[1])
    rankproof("report", "merged", cwd=folder, code=EXIT_CODES["violated"])


def test_items_of_a_missing_shard_are_not_run(folder: Path) -> None:
    rankproof("merge", "share-1/report", "share-3/report", "--report", "two", cwd=folder)
    assert sum(outcome == "not run" for *_, outcome in told(folder / "two")[1]) > 0
    green = (ROOT / "docs/examples/whole_periods/ours.py").read_text(encoding="utf-8")
    (at := folder / "green").mkdir()
    (at / "ours.py").write_text(green.replace("pattern * (depth // len(pattern))", "(pattern * depth)[:depth]"))
    rankproof(
        "check", "--stack", "ours:Ours", "--profile", "PAT-01", "--shard", "1/2", cwd=at, code=EXIT_CODES["incomplete"]
    )  # a share is never conformant by itself
    rankproof("merge", "reports/last", "--report", "merged", cwd=at, code=EXIT_CODES["incomplete"])


def test_merging_shards_of_different_runs_is_refused_with_every_reason(folder: Path) -> None:
    twice = rankproof("merge", "share-1/report", "whole/report", cwd=folder, code=USAGE_ERROR)
    assert "items were judged twice" in twice.stderr
    (at := folder / "changed").mkdir(exist_ok=True)
    shutil.copy(folder / "share-2/ours.py", at / "ours.py")
    with (at / "ours.py").open("a", encoding="utf-8") as file:
        file.write("\n# another code\n")
    rankproof(*CHECK, "--shard", "2/3", cwd=at)
    other = rankproof("merge", "share-1/report", "changed/report", "other/report", cwd=folder, code=USAGE_ERROR)
    for field in ("record 2.code", "record 3.profile", "record 3.plan"):
        assert field in other.stderr
    assert not (folder / "reports").exists(), "nothing is written where nothing is merged"


@pytest.mark.parametrize("words", ["0/3", "4/3", "1", "1/", "a/b", "-1/2"])
def test_a_malformed_shard_is_refused(words: str) -> None:
    with pytest.raises(Refused, match="is no share"):
        share([Item(id="PAT-01", case="x")], words)


def test_the_shards_together_have_every_item_once() -> None:
    items = [Item(id="PAT-01", case=str(number)) for number in range(10)]
    shares = [share(items, f"{part}/4") for part in range(1, 5)]
    assert sorted((each for part in shares for each in part), key=lambda each: int(each.case)) == items

"""The outcome of a test from the outcomes of its ranks: a table, by hand."""

import json

import pytest

from contracts.ranks.merge import VERDICT, Post, merge, read, written


def posts(*said: str) -> list[Post]:
    """Posts of ranks 0, 1, … from words: `passed`, `failed:text@order`, `failed!reason` (aborted)."""
    return [_post(rank, words) for rank, words in enumerate(said)]


def _post(rank: int, words: str) -> Post:
    words, _, order = words.partition("@")
    kind, _, text = words.partition(":")
    kind, _, aborted = kind.partition("!")
    reason = text if kind in ("skipped", "xfailed", "xpassed") else ""
    return Post(
        rank=rank,
        kind=kind,
        text="" if reason else text,
        reason=reason,
        crash=text,
        where=("test_x.py", 3) if kind == "skipped" else None,
        aborted=aborted,
        raised=kind in ("failed", "xfailed"),
        order=int(order or 0),
    )


TABLE = {  # what ranks say → kind, primary rank, poisoned
    "all-pass": (("passed", "passed", "passed"), "passed", 0, False),
    "all-fail": (("failed:a@2", "failed:a@1", "failed:a@3"), "failed", 0, True),
    "one-fails": (("passed", "failed:a@1", "passed"), "failed", 1, True),
    "the-first-to-diverge": (("failed:late@2", "passed", "failed:early@1"), "failed", 2, True),
    "consequences-do-not-decide": (("failed!cut@2", "failed!cut@3", "failed:cause@1"), "failed", 2, True),
    "nor-where-they-came-first": (("failed!cut@1", "failed!cut@2", "failed:cause@3"), "failed", 2, True),
    "only-aborted": (("passed", "failed!rank 1 did not finish@1", "passed"), "failed", 1, True),
    "aborted-after-it-had-passed": (("passed", "passed!rank 1 did not finish@1", "passed"), "failed", 1, True),
    "all-aborted": (("failed!late@2", "failed!late@1", "failed!late@3"), "failed", 1, True),
    "all-skip": (("skipped:no", "skipped:no"), "skipped", 0, False),
    "one-skips": (("passed", "skipped:no", "passed"), "failed", 1, True),
    "one-does-not-skip": (("skipped:no", "skipped:no", "passed"), "failed", 2, True),
    "a-failure-outweighs-a-skip": (("skipped:no", "failed:a@1"), "failed", 1, True),
    "skip-and-abort": (("skipped:no", "failed!late@1"), "failed", 1, True),
    "all-xfail": (("xfailed:known", "xfailed:known"), "xfailed", 0, True),
    "one-xfails": (("passed", "xfailed:known@1", "failed!cut@2"), "xfailed", 1, True),
    "one-xfails-one-xpasses": (("xpassed:known", "xfailed:known@1"), "xfailed", 1, True),
    "xfail-and-skip": (("xfailed:known@1", "skipped:no"), "failed", 1, True),
    "xfail-and-another-failure": (("xfailed:known@1", "failed:a@2"), "failed", 1, True),
    "all-xpass": (("xpassed:known", "xpassed:known"), "xpassed", 0, False),
    "xpass-and-abort": (("xpassed:known", "failed!late@1"), "failed", 1, True),
}


@pytest.mark.parametrize("case", TABLE)
def test_the_ranks_outcomes_are_merged_into_one(case: str) -> None:
    said, kind, primary, poisoned = TABLE[case]
    merged = merge(posts(*said))
    assert (merged.kind, merged.primary, merged.poisoned) == (kind, primary, poisoned), merged


@pytest.mark.parametrize("case", TABLE)
def test_the_merged_outcome_does_not_depend_on_the_order_of_reading(case: str) -> None:
    said = posts(*TABLE[case][0])
    assert merge(said) == merge(said[::-1]) == merge(said[1:] + said[:1])


def test_equal_failures_are_shown_once_with_the_first_diverging_rank_first() -> None:
    merged = merge(posts("failed:late@3", "passed", "failed:early@1", "failed:late@2", "failed!cut@4"))
    heads = [line for line in merged.text.splitlines() if line.startswith("-----")]
    assert heads == ["----- rank 2 -----", "----- ranks 0, 3 -----", "----- rank 4 -----"]
    assert merged.crash == "rank 2 diverged first: early"
    assert merged.text.splitlines()[-1] == "outcome per rank: 0:failed, 1:passed, 2:failed, 3:failed, 4:failed(aborted)"


def test_disagreeing_ranks_are_reported_with_their_reasons() -> None:
    merged = merge(posts("skipped:no disk", "passed", "passed"))
    assert merged.crash == "ranks disagree on the outcome: skipped on rank 0; passed on ranks 1, 2"
    assert "rank 0: no disk" in merged.text


def test_skips_for_different_reasons_are_shown_by_rank() -> None:
    assert merge(posts("skipped:no disk", "skipped:no card")).reason == "rank 0: no disk; rank 1: no card"


def _with_properties(*said: str) -> list[Post]:
    from dataclasses import replace

    return [replace(post, properties=(("result", f"of {post.rank}"),)) for post in posts(*said)]


PROPERTIES = {  # what ranks say → whose properties stand
    "all-pass": (("passed", "passed"), ["of 0"]),
    "one-fails": (("passed", "failed:a@1"), ["of 1"]),
    "rank-0-fails": (("failed:a@1", "passed"), ["of 0"]),
    "all-fail-alike": (("failed:a@2", "failed:a@1"), ["of 0"]),
    "disagree": (("passed", "skipped:no"), []),
    "aborted": (("passed", "failed!late@1"), []),
}


@pytest.mark.parametrize("case", PROPERTIES)
def test_a_merged_report_has_the_properties_of_the_deciding_rank(case: str) -> None:
    said, whose = PROPERTIES[case]
    assert [value for name, value in merge(_with_properties(*said)).properties if name == "result"] == whose


def test_a_failure_has_a_machine_readable_verdict_and_a_pass_has_none() -> None:
    assert json.loads(str(dict(merge(posts("passed", "failed!rank 1 did not finish@1")).properties)[VERDICT])) == {
        "outcome": "failed",
        "primary": 1,
        "words": "rank 1 did not finish",
        "recovery": "aborted",
        "outcomes": {"0": "passed", "1": "failed (aborted)"},
    }
    assert VERDICT not in dict(merge(posts("passed", "passed")).properties)


def test_equal_output_is_shown_once_and_different_output_by_rank() -> None:
    from dataclasses import replace

    said = posts("failed:a@1", "failed:a@2", "failed:a@3")
    same, own = ("Captured stdout call", "the same"), ("Captured stderr call", "of one")
    said = [replace(post, sections=(same, own) if post.rank == 1 else (same,)) for post in said]
    assert merge(said).sections == (same, ("Captured stderr call of rank 1", "of one"))


@pytest.mark.parametrize("case", TABLE)
def test_a_ranks_report_is_read_as_it_was_written(case: str) -> None:
    for post in _with_properties(*TABLE[case][0]):
        assert read(written(post), post.rank) == post


def test_a_long_failure_keeps_its_end_when_it_is_cut() -> None:
    post = Post(rank=1, kind="failed", text="x" * 100_000 + "the end")
    assert len(read(written(post), post.rank).text) == 20_000
    assert read(written(post), post.rank).text.endswith("the end")


def test_a_verdict_has_the_properties_of_each_rank_that_failed_by_itself() -> None:
    said = [
        Post(rank=0, kind="failed", order=2, properties=(("off", "0.5"), (VERDICT, "of an earlier phase"))),
        Post(rank=1, properties=(("off", "0"),)),
        Post(rank=2, kind="failed", order=1, properties=(("off", "0.25"),)),
        Post(rank=3, kind="failed", aborted="rank 2 did not pass", properties=(("off", "?"),)),
    ]
    verdict = json.loads(str(dict(merge(said).properties)[VERDICT]))
    assert verdict["properties"] == {"0": [["off", "0.5"]], "2": [["off", "0.25"]]}
    assert verdict["primary"] == 2

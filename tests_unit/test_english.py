"""What a reader meets is plain English: turns that a reader stumbles over become fewer and never more."""

import subprocess
from pathlib import Path

import pytest

from tests_unit import english

AREAS = ("README", "docs", "statements", "docstrings", "messages")
SAID: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # turn → what is counted, what is not
    "behind": (("the step behind it",), ("what a run leaves behind", "behind a proxy", "it left two files behind it")),
    "tell": (("A step tells its loss", "as it was told"), ("to tell the two apart", "it is told to load")),
    "where": (("Where it is 0, it stays.", "It is so.\nWhere it is not, it stays."), ("the place where it is, too",)),
    "alone": (("on one rank alone",), ("a loan",)),
    "that-of": (("it is that of one rank", "They are those of float32"), ("a part of that of which",)),
    "what-is": (
        ("What they hold is kept.",),
        ("What is kept?", "Here is what it is.", "What holds, and is it?"),
    ),
    "goes-on": (("the run goes on", "They have gone on"), ("continues", "goings")),
}


@pytest.mark.parametrize("turn", english.BANNED)
def test_a_turn_becomes_no_more_frequent_in_any_area(turn: str) -> None:
    counts, recorded = english.measured()[turn], english.recorded()[turn]
    more = {area: f"{counts[area]}, and {recorded[area]} before" for area in AREAS if counts[area] > recorded[area]}
    instead = english.BANNED[turn][0]
    assert not more, f"{turn} (write {instead}): {more}; `python -m tests_unit.english {turn} AREA` prints them"


@pytest.mark.parametrize("turn", english.BANNED)
def test_a_turn_is_counted_in_pages_docstrings_statements_and_strings(turn: str, tmp_path: Path) -> None:
    for texts, times in zip(SAID[turn], (1, 0), strict=True):
        for text in texts:
            (tmp_path / "README.md").write_text(f"# Title\n\n{text}\n\n```\n{text}\n```\n")
            (tmp_path / "page.md").write_text(text)
            (tmp_path / "code.py").write_text(
                f'"""{text}"""\n@contract("A-01")\ndef it():\n    """{text}\n\n    {text}"""\n    raise E({text!r})\n'
            )
            subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
            found = [area for name, area, *_ in english.found(tmp_path) if name == turn]
            expected = ["README", "docs", "docstrings", "docstrings", "messages", "statements"]
            assert sorted(found) == sorted(expected * times), text


def test_the_statements_of_contracts_have_no_banned_turn() -> None:
    assert {turn: counts["statements"] for turn, counts in english.measured().items() if counts["statements"]} == {}

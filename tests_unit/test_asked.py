"""What the law asks with one value alone stands on a page, which may not grow unseen."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from benchmarks import asked

PAGE = Path(__file__).parents[1] / "snapshots/asked.md"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_fields_with_one_value_are_those_of_the_page() -> None:
    told, found = PAGE.read_text(encoding="utf-8"), asked.page(asked.every_case())
    changed = [line for line in difflib.ndiff(told.splitlines(), found.splitlines()) if line[0] in "+-"]
    assert not changed, "\n".join(["`python -m benchmarks.asked snapshots/asked.md` writes it anew:", *changed])


def test_a_field_counts_once_it_has_a_second_value() -> None:
    heard = asked.Asked()
    heard.note("train", "batch", (1, 2))
    heard.note("train", "steps", 1)
    heard.note("train", "steps", 2)
    assert heard.alone() == {"train": {"batch": "(1, 2)"}}
    assert "**train**, 1 of 2: batch" in asked.page(heard)

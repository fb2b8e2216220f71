"""A page has what the law asks with only one value, and it may not grow unseen."""

import difflib
from pathlib import Path

import pytest

from benchmarks import asked

PAGE = Path(__file__).parents[1] / "snapshots/asked.md"
OF_NUMBERS = PAGE.with_name("asked_of_numbers.md")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_page_of_fields_asked_with_one_value_is_current() -> None:
    _same(asked.page(asked.every_case()), PAGE, "")


@pytest.mark.unit
def test_the_page_of_numeric_cases_is_current() -> None:
    _same(asked.of_numbers(), OF_NUMBERS, "--cases ")


def _same(found: str, page: Path, option: str) -> None:
    changed = [line for line in difflib.ndiff(page.read_text(encoding="utf-8").splitlines(), found.splitlines())
               if line[0] in "+-"]  # fmt: skip
    command = f"`python -m benchmarks.asked {option}snapshots/{page.name}` writes it anew:"
    assert not changed, "\n".join([command, *changed])


def test_a_field_leaves_the_page_if_it_gets_a_second_value() -> None:
    heard = asked.Asked()
    heard.note("train", "batch", (1, 2))
    heard.note("train", "steps", 1)
    heard.note("train", "steps", 2)
    assert heard.alone() == {"train": {"batch": "(1, 2)"}}
    assert "**train**, 1 of 2: batch" in asked.page(heard)

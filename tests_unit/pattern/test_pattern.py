"""How a refused pattern is reported; PAT judges patterns that are accepted."""

import pytest

from contracts.spec import Pattern, Refused
from contracts.spec import pattern as patterns


@pytest.mark.parametrize(
    ("text", "depth", "words"),
    [
        ("AEXE", 8, "pattern = 'AEXE': unknown letter 'X' at column 3; use A, E, M, R or |"),
        ("AEmE", 8, "or declare lower case"),
        ("AE ME", 10, "unknown letter ' ' at column 3"),
        ("", 4, "pattern = '': is empty; name at least one block"),
        ("AEMR", 0, "depth = 0: must lie in 1 … 100000; give the number of layers"),
        ("AEMR", patterns.MAX_DEPTH + 1, "depth = 100001: must lie in"),
        ("AE||ME", 4, "empty stage at column 4; put at least one block between cuts"),
        ("|AEME", 4, "empty stage at column 1"),
        ("AE|ME|", 4, "empty stage at column 7"),
        ("AE|ME", 8, "cut at column 3, but 4 letters are not the depth (8); write every layer out, or drop the cuts"),
    ],
)
def test_a_refusal_names_field_value_relation_and_remedy(text: str, depth: int, words: str) -> None:
    with pytest.raises(Refused) as caught:
        patterns.parse(text, depth)
    assert words in str(caught.value)


def test_every_unknown_letter_is_refused_at_once() -> None:
    with pytest.raises(Refused) as caught:
        patterns.parse("AxEyM", 0)
    problems = [refusal.problem for refusal in caught.value.refusals]
    assert problems[0].startswith("must lie in 1")
    assert problems[1:] == ["unknown letter 'x' at column 2", "unknown letter 'y' at column 4"]


def test_declared_lower_case_is_read_as_the_same_blocks() -> None:
    assert patterns.parse("aeM|r", 4, lower_case=True) == Pattern(letters="AEMR", cuts=(3,))

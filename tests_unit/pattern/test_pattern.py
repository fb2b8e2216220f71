"""The pattern's properties: parse and render are inverse, cuts and translations keep every layer, refusals point."""

import random
from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.spec import pattern as patterns
from contracts.spec.errors import Refused
from contracts.spec.pattern import Pattern

Answer = TypeVar("Answer")

HOSTILE = 10_000
SETTINGS = settings(max_examples=200)
ALPHABET = "AEMR|" * 4 + "aemrDGX*-+/ \t\n\0é\u0410\u200b0123456789{}[]\"'\\"

tiled = st.tuples(st.text("AEMR", min_size=1, max_size=20), st.integers(1, 90))


def answer_or_refusal(ask: Callable[..., Answer], *arguments: object, **named: object) -> Answer | Refused:
    """What was answered, or the refusal. Any other exception is not caught and fails the test."""
    try:
        return ask(*arguments, **named)
    except Refused as refused:
        return refused


@st.composite
def cut(draw: st.DrawFn) -> tuple[str, int]:
    letters = draw(st.text("AEMR", min_size=2, max_size=24))
    places = sorted(draw(st.sets(st.integers(1, len(letters) - 1), min_size=1, max_size=5)))
    return "|".join(letters[start:end] for start, end in pairwise((0, *places, len(letters)))), len(letters)


@given(tiled | cut())
@SETTINGS
def test_what_is_rendered_parses_to_the_same_pattern(case: tuple[str, int]) -> None:
    parsed = patterns.parse(*case)
    assert patterns.parse(patterns.render(parsed), parsed.depth) == parsed


@given(tiled)
@SETTINGS
def test_a_layer_is_the_letter_of_its_place_in_the_period(case: tuple[str, int]) -> None:
    text, depth = case
    letters = patterns.parse(text, depth).letters
    assert len(letters) == depth
    assert all(letter == text[place % len(text)] for place, letter in enumerate(letters))


@given(tiled)
@SETTINGS
def test_every_layer_is_numbered_under_exactly_one_letter(case: tuple[str, int]) -> None:
    parsed = patterns.parse(*case)
    numbers = [number for letter in patterns.BLOCKS for number in patterns.layers_of(parsed, letter).numbers]
    assert sorted(numbers) == list(range(1, parsed.depth + 1))


@given(tiled | cut(), st.booleans(), st.booleans(), st.integers(0, 3))
@SETTINGS
def test_a_translation_has_a_symbol_for_each_layer(case: tuple[str, int], moe: bool, dsa: bool, heads: int) -> None:
    parsed = patterns.parse(*case)
    translation = patterns.translate(parsed, moe=moe, dsa=dsa, mtp_depth=heads)
    assert len(translation.main) == len(patterns.render(parsed))
    assert translation.text.count("/") == heads
    assert {translation.main.replace("|", "")[n - 1] for n in translation.recurrent.numbers} <= {"M"}


@given(tiled | cut(), st.integers(-2, 14))
@SETTINGS
def test_stages_concatenate_or_are_refused_by_pp(case: tuple[str, int], pp: int) -> None:
    parsed = patterns.parse(*case)
    stages = answer_or_refusal(patterns.stages, parsed, pp)
    if isinstance(stages, Refused):
        assert stages.fields == ("pp",)
        return
    assert "".join(stages) == parsed.letters
    assert len(stages) % pp == 0


@given(tiled, st.lists(st.integers(-3, 40), max_size=6).map(tuple))
@SETTINGS
def test_full_and_sparse_partition_the_attention_layers(case: tuple[str, int], sparse: tuple[int, ...]) -> None:
    parsed = patterns.parse(*case)
    attention = patterns.layers_of(parsed, "A").numbers
    placed = answer_or_refusal(patterns.placement, parsed, sparse)
    if isinstance(placed, Refused):
        assert set(placed.fields) == {"sparse_ranks"}
        return
    assert sorted(placed.full_ranks + placed.sparse_ranks) == list(range(len(attention)))
    assert sorted(placed.full_layers.numbers + placed.sparse_layers.numbers) == list(attention)
    assert placed.sparse_layers.numbers == tuple(attention[rank] for rank in sorted(sparse))


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


def test_hostile_text_is_parsed_or_refused_and_nothing_else() -> None:
    draw = random.Random(20_260_401)
    parsed = refused = 0
    for _ in range(HOSTILE):
        text = "".join(draw.choices(ALPHABET if draw.random() < 0.6 else "AEMR|", k=draw.randint(0, 24)))
        depth = draw.choice((-(10**20), -1, 0, 1, len(text), len(text.replace("|", "")), 52, 10**9))
        pattern = answer_or_refusal(patterns.parse, text, depth, lower_case=draw.random() < 0.3)
        if isinstance(pattern, Refused):
            refused += 1
            assert all(refusal.remedy and refusal.problem for refusal in pattern.refusals)
        else:
            parsed += 1
            assert pattern.depth == depth
            assert patterns.parse(patterns.render(pattern), depth) == pattern
    assert min(parsed, refused) > HOSTILE // 20, f"{parsed} parsed and {refused} refused: one side is hardly tried"

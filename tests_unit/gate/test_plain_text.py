"""Words from outside are cut, redacted, made printable and escaped: by how much, where, and what stays as it was."""

import pytest

from contracts.court.plain_text import (
    LONGEST,
    MOST_LINES,
    annotation,
    annotation_property,
    cut,
    fit,
    harmless,
    markdown,
    one_line,
    plain,
    terminal,
    words,
)
from contracts.spec.records import Result
from tests_unit.gate._reported import RED

SECRET = "correct-horse-battery"
KNOWN = frozenset({SECRET})


@pytest.mark.parametrize("text", ["", "a" * 8000, "\n" * 199, "a\n" * 199, "é" * 7999 + "\n"])
def test_a_text_at_the_limit_of_characters_and_lines_is_not_cut(text: str) -> None:
    assert cut(text) == text
    assert (LONGEST, MOST_LINES) == (8000, 200)


def test_a_text_that_is_too_long_keeps_its_beginning_and_a_quarter_of_its_end() -> None:
    text = "".join(chr(0x4E00 + number) for number in range(101))
    note = "… 101 characters, cut here …"
    found = cut(text, limit=100, lines=9)
    assert found == f"{text[: 100 - 25 - len(note) - 2]}\n{note}\n{text[-25:]}"
    assert len(found) == 100
    assert cut(found, limit=100, lines=9) == found


def test_of_too_many_lines_the_first_and_the_last_quarter_stay() -> None:
    text = "\n".join(f"{number:02}" for number in range(16))
    found = cut(text, limit=1000, lines=12)
    assert found.split("\n") == [
        "00", "01", "02", "03", "04", "05", "06", "07", "… 16 lines, cut here …", "13", "14", "15",
    ]  # fmt: skip
    assert cut(found, limit=1000, lines=12) == found
    at_most = "\n".join(text.split("\n")[:12])
    assert cut(at_most, limit=1000, lines=12) == at_most
    one_more = f"{at_most}\n12"
    for limit in (1000, len(one_more)):
        assert "… 13 lines, cut here …" in cut(one_more, limit=limit, lines=12)


def test_a_text_over_both_limits_is_cut_to_both() -> None:
    found = cut("\n".join("abcdefghi" for _ in range(100)), limit=400, lines=8)
    assert found.split("\n") == [*5 * ["abcdefghi"], "… 999 characters, cut here …", *2 * ["abcdefghi"]]
    wide = cut("\n".join("abcdefghi" * 8 for _ in range(100)), limit=400, lines=8)
    assert "… 7299 characters, cut here …" in wide
    assert len(wide) <= 400


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("plain", "plain"),
        ("déjà\tvu\nagain", "déjà\tvu\nagain"),
        ("a\r\nb\rc", "a\nb\\x0dc"),
        ("\x00\x1b[2J\x7f\x9f", "\\x00\\x1b[2J\\x7f\\x9f"),
        ("\x80\u202e\ud800\uffff\u2028", "\\x80\\u202e\\ud800\\uffff\\u2028"),
        ("\xa0\xff\u0100\U0001f600", "\xa0\xff\u0100\U0001f600"),
    ],
)
def test_unprintable_characters_are_shown_by_their_number(text: str, told: str) -> None:
    assert plain(text) == told
    assert one_line(text) == told.replace("\n", "\\n").replace("\t", "\\t")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("::error::x", "\\::error::x"),
        ("  ::error::x", "  \\::error::x"),
        ("first\n\t::stop", "first\n\t\\::stop"),
        ("std::vector", "std::vector"),
        ("a ##[error]x", "a #\\#[error]x"),
        ("##vso[task] ##teamcity[x]", "#\\#vso[task] #\\#teamcity[x]"),
        ("## heading", "## heading"),
    ],
)
def test_no_printed_line_can_be_a_ci_workflow_command(line: str, told: str) -> None:
    assert harmless(line) == told
    assert harmless(told) == told
    assert terminal(f"{line}\x1b") == f"{told}\\x1b"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a & <b>", "a &#38; &#60;b&#62;"),
        ("`x` *y* |z| $1 ~a \\b", "&#96;x&#96; &#42;y&#42; &#124;z&#124; &#36;1 &#126;a &#92;b"),
        ("snake_case _em_", "snake_case &#95;em&#95;"),
        ("[l](u) f(x)", "[l]&#40;u) f(x)"),
        ("one\ntwo\x1b", "one / two&#92;x1b"),
    ],
)
def test_in_markdown_words_are_shown_as_they_are(text: str, told: str) -> None:
    assert markdown(text) == told


def test_a_ci_annotation_is_one_line_with_escaped_properties() -> None:
    assert annotation("50 %\nof: a, b\x1b") == "50 %25%0Aof: a, b\\x1b"
    assert annotation_property("50 %\nof: a, b") == "50 %25%0Aof%3A a%2C b"


@pytest.mark.parametrize("length", [999, 1000, 1001, 31_999, 32_000, 32_001, 40_000])
def test_a_secret_near_either_end_of_a_long_text_is_redacted(length: int) -> None:
    """Each of the lengths at which a text is handled otherwise, and one beside it."""
    for text in (SECRET.ljust(length, "."), SECRET.rjust(length, ".")):
        found = words(text, KNOWN)
        assert SECRET[:8] not in found
        assert "[redacted]" in found
        assert len(found) <= LONGEST


@pytest.mark.parametrize("begins", [LONGEST - 7, -LONGEST - 7])
def test_a_secret_across_a_cut_is_found_before_it_is_cut(begins: int) -> None:
    length = 40_000
    found = words("." * (begins % length) + SECRET + "." * (length - begins % length - len(SECRET)), KNOWN)
    assert SECRET[:7] not in found
    assert SECRET[7:] not in found


def test_the_middle_of_a_long_text_is_cut_without_being_searched() -> None:
    """It is cut anyway, and a text of 300 MB took minutes."""
    for length, told in ((32_000, 32_000 - len(SECRET) + len("[redacted]")), (32_001, 32_001), (40_000, 40_000)):
        assert f"… {told} characters, cut here …" in words(SECRET.center(length, "."), KNOWN)


@pytest.mark.parametrize("length", [LONGEST + 1, 31_999, 32_000, 32_001, 40_000, 1_000_000])
def test_a_cut_text_keeps_its_ends_and_gives_its_length(length: int) -> None:
    found = words(f"begins{'.' * (length - 10)}ends")
    assert f"\n… {length} characters, cut here …\n" in found
    assert (found[:7], found[-5:]) == ("begins.", ".ends")
    assert len(found) == LONGEST


def test_line_breaks_are_kept_only_in_multi_line_fields_and_ids_are_not_redacted() -> None:
    token = f"token={SECRET}"
    found = fit(
        Result(id=token, case="a\nb", outcome="holds", words=f"{token}\n::x", answered={f"{token}\n": "a\nb"}), KNOWN
    )
    assert (found.id, found.case) == (token, "a\\nb")
    assert found.words == "token=[redacted]\n\\::x"
    assert found.answered == {"token=[redacted]\\n": "a\\nb"}
    assert fit(("a\nb", 1, None, frozenset({"c\td"}))) == ("a\\nb", 1, None, frozenset({"c\\td"}))


def test_a_short_plain_text_is_unchanged() -> None:
    assert fit(RED) == RED
    assert fit(Result) is Result

"""The codec: strict, lossless, and silent about nothing. Refusals carry field, value, problem and remedy at once."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.spec import Lane, Refusal, Refusals, Refused, codec, refuse, shown

Answer = TypeVar("Answer")

SETTINGS = settings(max_examples=150)


def answer_or_refusal(ask: Callable[..., Answer], *arguments: object, **named: object) -> Answer | Refused:
    """What was answered, or the refusal. Any other exception is not caught and fails the test."""
    try:
        return ask(*arguments, **named)
    except Refused as refused:
        return refused


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part with a rule of its own."""

    size: int
    ratio: float = 1.0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise refuse("size", self.size, "must be at least 1", "give a size")


@dataclass(frozen=True, kw_only=True)
class Whole:
    """One field of each kind that the codec knows."""

    name: str
    part: Part
    flag: bool = False
    mode: Literal["on", "off", 1] = "on"
    spare: Part | None = None
    either: int | str = 0
    pair: tuple[str, int] = ("", 0)
    parts: tuple[Part, ...] = ()
    words: frozenset[str] = frozenset()
    table: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    raw: bytes = b""


finite = st.floats(allow_nan=False, allow_infinity=False)
parts = st.builds(Part, size=st.integers(1), ratio=finite)
wholes = st.builds(
    Whole,
    name=st.text(),
    part=parts,
    flag=st.booleans(),
    mode=st.sampled_from(("on", "off", 1)),
    spare=st.none() | parts,
    either=st.integers() | st.text(),
    pair=st.tuples(st.text(), st.integers()),
    parts=st.lists(parts, max_size=3).map(tuple),
    words=st.frozensets(st.text(), max_size=3),
    table=st.dictionaries(st.text(), st.lists(st.integers(), max_size=3).map(tuple), max_size=3),
    raw=st.binary(),
)
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("name", "part", "size")), inner),
    max_leaves=6,
)
LEGAL: dict[str, Any] = {"name": "n", "part": {"size": 2}}


@given(wholes)
@SETTINGS
def test_an_encoded_value_decodes_to_itself(whole: Whole) -> None:
    assert codec.loads(Whole, codec.dumps(whole)) == whole
    assert codec.conforms(Whole, whole)


@given(wholes)
@SETTINGS
def test_an_encoded_value_matches_its_schema(whole: Whole) -> None:
    jsonschema.Draft202012Validator(codec.schema(Whole)).validate(codec.encode(whole))


@given(junk)
@SETTINGS
def test_junk_is_refused_without_another_error(data: object) -> None:
    with pytest.raises(Refused):
        codec.decode(Whole, {**LEGAL, "spare": {"size": 1, "surplus": data}})
    refused = answer_or_refusal(codec.decode, Whole, data)
    assert isinstance(refused, Whole) or all(each.field.startswith(("Whole", "size")) for each in refused.refusals)


MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown-field": ({"nmae": 1}, "Whole.nmae = 1: Whole has no such field; known: name, part"),
    "bool-for-int": ({"part": {"size": True}}, "Whole.part.size = True: is not a int; send a int"),
    "int-for-str": ({"name": 1}, "Whole.name = 1: is not a str"),
    "int-for-bool": ({"flag": 1}, "Whole.flag = 1: is not a bool"),
    "bool-for-literal-1": ({"mode": True}, "Whole.mode = True: is none of 'on', 'off', 1; use one of them"),
    "null-where-it-is-not-legal": ({"part": None}, "Whole.part = None: is not a Part; send a JSON object"),
    "short-pair": ({"pair": ["a"]}, "Whole.pair = ['a']: has 1 entries, not 2; send exactly that many"),
    "not-a-list": ({"parts": {}}, "Whole.parts = {}: is not a list; send a JSON array"),
    "deep-in-a-list": ({"parts": [{"size": 1}, {"size": "2"}]}, "Whole.parts[1].size = '2': is not a int"),
    "deep-in-a-table": ({"table": {"a": [1, "b"]}}, "Whole.table.a[1] = 'b': is not a int"),
    "int-for-bytes": ({"raw": 1}, "Whole.raw = 1: is not base64; send the bytes as a base64 text"),
    "no-base64": ({"raw": "AA-="}, "Whole.raw = 'AA-=': is not base64"),
    "half-a-byte": ({"raw": "A"}, "Whole.raw = 'A': is not base64"),
    "not-an-object": ({"table": []}, "Whole.table = []: is not an object; send a JSON object"),
    "the-value's-own-rule": ({"part": {"size": 0}}, "size = 0: must be at least 1; give a size"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_refusal_names_path_value_problem_and_remedy(case: str) -> None:
    data, words = MALFORMED[case]
    with pytest.raises(Refused) as caught:
        codec.decode(Whole, {**LEGAL, **data})
    assert words in str(caught.value)


def test_everything_wrong_is_refused_at_once() -> None:
    with pytest.raises(Refused) as caught:
        codec.decode(Whole, {"part": {"size": "x", "odd": 1}, "flag": "no"}, name="whole")
    assert set(caught.value.fields) == {"whole.name", "whole.part.size", "whole.part.odd", "whole.flag"}


@pytest.mark.parametrize("text", ["", "{", "[1,]", '{"name":NaN}', '{"a":Infinity}', '{"a":1,"a":1}', "[" * 100_000])
def test_text_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="is not JSON"):
        codec.loads(Whole, text)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {"a": 1j}])
def test_a_value_without_a_json_form_is_refused(value: object) -> None:
    with pytest.raises(Refused, match="JSON"):
        codec.dumps(value)
    assert not codec.conforms(float, value)


def test_bytes_are_base64_in_json() -> None:
    assert codec.dumps(b"\x00\xff?") == '"AP8/"'


def test_an_integer_that_is_a_key_is_one_again() -> None:
    table = {0: "a", -12: "b"}
    assert codec.loads(Mapping[int, str], codec.dumps(table)) == table
    with pytest.raises(Refused, match=r"table\.01 = .*key is not an integer(.|\n)*table\.x = .*key is not an integer"):
        codec.decode(Mapping[int, str], {"01": "a", "x": "b", "3": "c"}, name="table")


def test_a_set_has_one_text_whatever_its_order() -> None:
    assert codec.dumps(frozenset({"b", "a", "c"})) == '["a","b","c"]'


def test_a_long_value_is_cut_to_a_line() -> None:
    assert len(shown("x" * 10_000)) < 140
    assert shown("x" * 10_000).endswith("(10002 characters)")


def test_a_refused_error_keeps_its_reasons_in_order() -> None:
    found = Refusals()
    found.unless(True, "held", 1, "is right", "leave it")
    found.unless(False, "first", 1, "is wrong", "mend it")
    found.extend(refuse("second", "b", "is wrong too", "mend it too"))
    with pytest.raises(Refused) as caught:
        found.raise_any()
    assert caught.value.fields == ("first", "second")
    assert caught.value.refusals[1] == Refusal(
        field="second", value="'b'", problem="is wrong too", remedy="mend it too"
    )
    assert str(caught.value) == "first = 1: is wrong; mend it\nsecond = 'b': is wrong too; mend it too"


def test_a_refused_error_without_reasons_is_an_assertion_error() -> None:
    with pytest.raises(AssertionError, match="says nothing"):
        Refused([])


def test_decoding_a_lane_applies_its_rules() -> None:
    with pytest.raises(Refused, match="is missing for 2 nodes"):
        codec.decode(Lane, {"mode": "author_dp", "nodes": 2})


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What may have diverged, beside what may not."""

    losses: Mapping[str, codec.Real] = field(default_factory=dict)
    norm: codec.Real = 0.0
    rate: float = 0.0


DIVERGED = Measured(losses={"lm": math.nan, "aux": 2.5}, norm=-math.inf)


def test_nan_is_decoded_where_the_type_allows_it() -> None:
    sent = codec.dumps(DIVERGED)
    assert sent == '{"losses":{"lm":"NaN","aux":2.5},"norm":"-Infinity","rate":0.0}'
    back = codec.loads(Measured, sent)
    assert math.isnan(back.losses["lm"])
    assert (back.losses["aux"], back.norm) == (2.5, -math.inf)
    assert codec.conforms(Measured, DIVERGED)
    jsonschema.Draft202012Validator(codec.schema(Measured)).validate(codec.encode(DIVERGED))


def test_nan_is_refused_where_the_type_does_not_allow_it() -> None:
    assert not codec.conforms(Measured, replace(DIVERGED, rate=math.nan))
    with pytest.raises(Refused, match="JSON has no such number"):
        codec.encode(replace(DIVERGED, rate=math.nan))
    for data in ({"rate": "NaN"}, {"norm": "nan"}, {"norm": None}, {"losses": {"lm": True}}):
        with pytest.raises(Refused, match="is not a float"):
            codec.decode(Measured, data)

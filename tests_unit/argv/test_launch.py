"""What is overridden arrives, over drawn values, and what cannot be given to a process is refused."""

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.spec import Checkpoint, Data, Lane, Optim, Recipe, Refused
from contracts.spec.presets import PRESETS
from contracts.stacks.reference.launch import overrides
from contracts.stacks.reference.launch.launch import launch

NAM56R = PRESETS["nam56r_h200_bf16_v1"]
# What a process can be given: no NUL, and nothing that has no UTF-8 form. The rest is drawn, with what shells trip on.
TEXT = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40
) | st.sampled_from(
    [
        "two words",
        "it's",
        '"',
        "$HOME",
        "`id`",
        "a\nb",
        "-x",
        "--set",
        "=",
        "key=value",
        "null",
        "3",
        "[1]",
        "\\",
        "é模",
    ]
)
RATES = st.floats(1e-9, 1.0, exclude_min=True)


@st.composite
def recipes(draw: st.DrawFn, base: Recipe) -> Recipe:
    """A preset with drawn names, paths, rates and counts."""
    return replace(
        base,
        name=draw(st.just(base.name) | TEXT),
        family=draw(st.just(base.family) | TEXT),
        data=Data(path=draw(st.none() | TEXT), tokenizer=draw(TEXT)),
        checkpoint=Checkpoint(
            save=draw(st.none() | TEXT), load=draw(st.none() | TEXT), interval=draw(st.integers(1, 9))
        ),
        optim=Optim(lr=draw(RATES), min_lr=draw(RATES), steps=draw(st.integers(1, 10**6))),
        mtp=draw(st.just(base.mtp) | st.none()),
        moe=draw(st.just(base.moe) | st.none()),
        seed=draw(st.integers(0, 2**31)),
        qk_norm=draw(st.booleans()),
        author_spec=(draw(TEXT), draw(TEXT)),
    )


@settings(max_examples=200)
@given(data=st.data())
def test_any_recipe_can_be_turned_into_any_other_by_overrides(data: st.DataObject) -> None:
    base, other = (data.draw(st.sampled_from(list(PRESETS.values())).flatmap(recipes)) for _ in range(2))
    assert overrides.apply(base, overrides.difference(base, other)) == other
    assert overrides.difference(other, other) == {}


def test_overriding_a_section_and_a_field_of_it_is_refused() -> None:
    with pytest.raises(Refused, match="as a whole"):
        overrides.apply(NAM56R, {"moe.top_k": "2", "moe": "null"})


def test_every_field_of_a_recipe_can_be_overridden() -> None:
    assert set(overrides.keys(NAM56R)) >= {field.name for field in fields(Recipe)}


def test_a_nul_byte_in_an_argument_is_refused_before_a_process_starts() -> None:
    with pytest.raises(Refused, match="NUL"):
        launch(replace(NAM56R, data=Data(path="/data/\0")), Lane(mode="author_dp"))

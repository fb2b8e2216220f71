"""Properties of the launch side, over drawn values: what is quoted is read back, what is overridden arrives."""

import shlex
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.spec.errors import Refused
from contracts.spec.launch import Lane, shell
from contracts.spec.presets import PRESETS
from contracts.spec.recipe import Checkpoint, Data, Mode, Optim, Recipe
from contracts.spec.topology import Degrees
from contracts.stacks.reference.launch import overrides, trainer_arguments
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
PATHS = TEXT.map(lambda text: f"/{text}")
RATES = st.floats(1e-9, 1.0, exclude_min=True)
MODES: dict[Mode, Degrees] = {"nemo_native": Degrees(tp=2, sp=True, ep=2), "author_dp": Degrees(ep=4, etp=1)}
LANES = [(name, mode) for name, recipe in PRESETS.items() for mode in recipe.modes]


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


@given(run=TEXT, path=PATHS, save=PATHS, inherited=st.dictionaries(st.sampled_from(["HOME", "NCCL_DEBUG"]), TEXT))
def test_the_shell_reads_back_the_words_of_a_launch(run: str, path: str, save: str, inherited: dict[str, str]) -> None:
    recipe = replace(NAM56R, data=Data(path=path), checkpoint=Checkpoint(save=save))
    lane = Lane(mode="author_dp", nodes=2, rendezvous="node-0:29500", run=run, inherited=inherited)
    started = launch(recipe, lane)
    words = shlex.split(shell(started))
    assert words[0] == "env"
    assert tuple(words[-len(started.command) :]) == started.command
    assert set(words[1 : -len(started.command)]) == {
        "-u",
        *started.unset,
        *(f"{n}={v}" for n, v in started.env.items()),
    }
    assert words.count(path) == words.count(save) == 1 + (path == save)


@pytest.mark.parametrize(("name", "mode"), LANES)
@settings(max_examples=25)
@given(data=st.data())
def test_the_trainer_reads_back_every_recipe_it_was_given(name: str, mode: Mode, data: st.DataObject) -> None:
    recipe = data.draw(recipes(PRESETS[name]))
    compiled = data.draw(st.sampled_from(["none", "regional"]))
    lane = Lane(mode=mode, regime="fsdp2", run=data.draw(TEXT), compile=compiled)
    read = trainer_arguments.read(trainer_arguments.write(recipe, lane, MODES[mode]))
    assert read.recipe == recipe
    assert (read.mode, read.degrees, read.compile, read.run) == (mode, MODES[mode], compiled, lane.run)


@settings(max_examples=200)
@given(data=st.data())
def test_overrides_make_any_recipe_out_of_any_other(data: st.DataObject) -> None:
    base, other = (data.draw(st.sampled_from(list(PRESETS.values())).flatmap(recipes)) for _ in range(2))
    changes = overrides.difference(base, other)
    assert overrides.apply(base, changes) == other
    assert overrides.difference(other, other) == {}


@given(value=RATES)
def test_an_override_replaces_its_own_field_only(value: float) -> None:
    changed = overrides.apply(NAM56R, {"optim.lr": repr(value)})
    assert changed.optim.lr == value
    assert replace(changed, optim=replace(changed.optim, lr=NAM56R.optim.lr)) == NAM56R


def test_a_field_and_its_whole_are_not_overridden_together() -> None:
    with pytest.raises(Refused, match="as a whole"):
        overrides.apply(NAM56R, {"moe.top_k": "2", "moe": "null"})


def test_every_field_of_a_recipe_can_be_overridden() -> None:
    assert set(overrides.keys(NAM56R)) >= {field.name for field in fields(Recipe)}


def test_a_nul_is_refused_before_a_process_is_given_it() -> None:
    with pytest.raises(Refused, match="NUL"):
        launch(replace(NAM56R, data=Data(path="/data/\0")), Lane(mode="author_dp"))

"""Presets: one configuration has one identity, a wrong name is refused with its neighbours, a label never resolves."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.spec import Refused, presets
from tests_unit.test_codec import answer_or_refusal

HOSTILE = 10_000
SETTINGS = settings(max_examples=200)


def test_no_name_is_both_preset_alias_or_label() -> None:
    kinds = (presets.PRESETS, presets.ALIASES, presets.DEPRECATED, presets.LABELS)
    names = [name for kind in kinds for name in kind]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", presets.DEPRECATED)
def test_a_deprecated_name_resolves_for_those_who_acknowledge_it(name: str) -> None:
    entry = presets.DEPRECATED[name]
    with pytest.raises(Refused, match=f"is deprecated: it .*; ask for {entry.means}, or acknowledge {name}"):
        presets.resolve(name, ("another",))
    assert presets.resolve(name, ("another", name)).name == entry.means


@pytest.mark.parametrize("label", [*presets.LABELS, "v19c", "v7a", "v100z"])
def test_a_label_never_resolves(label: str) -> None:
    with pytest.raises(Refused, match=r"is a label \(.*\), not a preset; name the preset that was run"):
        presets.resolve(label, (label,))


def test_the_small_presets_keep_every_ratio_above_one() -> None:
    for name in ("tiny-nam56r", "tiny-nam52", "tiny-nam52r"):
        recipe = presets.resolve(name)
        assert recipe.heads > recipe.kv_groups > 1
        assert recipe.mamba.heads > recipe.mamba.groups > 1
        assert recipe.moe.experts > 10
        assert recipe.depth % len(recipe.pattern) != 0


@given(st.sampled_from(presets.names()), st.integers(0, 60), st.sampled_from("abz019_-"))
@SETTINGS
def test_a_misspelt_preset_is_refused_with_the_nearest_name(name: str, place: int, letter: str) -> None:
    at = place % len(name)
    slipped = name[:at] + letter + name[at + 1 :]
    if slipped in presets.names():
        return
    with pytest.raises(Refused) as caught:
        presets.resolve(slipped)
    (refusal,) = caught.value.refusals
    assert (refusal.field, refusal.value, refusal.problem) == ("preset", repr(slipped), "is not a preset")
    assert name in refusal.remedy


@pytest.mark.slow
def test_a_hostile_name_resolves_or_is_refused_and_nothing_else() -> None:
    draw = random.Random(19)
    pieces = [*presets.names(), *presets.DEPRECATED, *presets.LABELS, "v19c", "", " ", "\0", "/", "..", "é", "\ud800"]
    pieces += ["nam", "52", "56r", "_h200_", "dense", "_v1", "%s", "{0}", "x" * 3000]
    known = set(presets.names())
    for _ in range(HOSTILE):
        name = "".join(draw.choices(pieces, k=draw.choice((1, 1, 2, 3))))
        acknowledged = tuple(draw.choices(pieces, k=draw.randint(0, 2)))
        recipe = answer_or_refusal(presets.resolve, name, acknowledged)
        if isinstance(recipe, Refused):
            assert recipe.fields == ("preset",)
        else:
            assert name in known or (name in presets.DEPRECATED and name in acknowledged)
            assert recipe in presets.PRESETS.values()

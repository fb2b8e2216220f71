"""Names: what a preset, an alias and a label may be called, and what each name means.

A feature that is off is None, so "dsa off" reads `recipe.dsa is None`.
"""

import re
from collections.abc import Callable
from dataclasses import fields

from contracts.contract import contract
from contracts.law._support.answers import presets_named, refusal_of
from contracts.spec import NotOffered, Recipe, Refused, Stack

DENSE = "nam52_h200_dense_ref_v1"
CANDIDATE = "nam52r_h200_4full_9sparse_candidate_v1"

ALIASES = {
    "moe-no-dsa": ("nam52_h200_moe_no_dsa_ref_v1", DENSE),
    "prod-candidate": ("nam52r_h200_prod_candidate_v1", CANDIDATE),
}


@contract("NAME-01", asks="preset", cases=ALIASES, source="bringup")
def an_alias_is_its_preset(stack: Stack, alias: str, preset: str) -> None:
    """An alias and its preset resolve to the same configuration, field by field.

    The aliases exist because the old names mislead. An alias that drifts is a third model under a second name.
    """
    differing = _differing(stack.preset(alias, ()), stack.preset(preset, ()))
    assert not differing, f"{alias} and {preset} differ in {', '.join(differing)}"


DENSE_ONES = {"reference": (DENSE, 4), "alias": ("nam52_h200_moe_no_dsa_ref_v1", 4)}


@contract("NAME-02", asks="preset", cases=DENSE_ONES, source="bringup")
def dense_is_about_attention(stack: Stack, name: str, streams: int) -> None:
    """`dense` in a preset's name means that sparse attention is off, never that experts are off: the NAM52 dense
    reference has MoE on, sparse attention (DSA) off, and hyper-connections (mHC) with four streams.

    "The most consequential trap is the word dense."
    """
    recipe = stack.preset(name, ())
    assert recipe.dsa is None, f"{name} has DSA on A-ranks {recipe.dsa.a_ranks}"
    assert recipe.moe is not None, f"{name} has MoE off"
    assert recipe.mhc is not None, f"{name} has mHC off, expected {streams} streams"
    assert recipe.mhc.streams == streams, f"{name} has {recipe.mhc.streams} mHC streams, expected {streams}"


@contract("NAME-02a", asks=("preset_names", "preset"), cases={"every-name": ()}, source="bringup")
def no_name_says_dense_of_sparse_attention(stack: Stack) -> None:
    """Every listed preset with `dense` in its name has DSA off, and has MoE on if its pattern has E blocks."""
    for name, recipe in presets_named(stack, "dense"):
        assert recipe.dsa is None, f"{name} says dense and has DSA on A-ranks {recipe.dsa.a_ranks}"
        experts = recipe.moe is not None or "E" not in recipe.pattern
        assert experts, f"{name} says dense and has MoE off under the E blocks of {recipe.pattern}"


RECOVERY = {"nam52": ("nam52_h200_dense_no_mhc_recovery_v1", DENSE)}


@contract("NAME-03", asks="preset", cases=RECOVERY, source="bringup")
def the_recovery_preset_differs_in_mhc_alone(stack: Stack, recovery: str, reference: str) -> None:
    """nam52_h200_dense_no_mhc_recovery_v1 has mHC off and otherwise equals the dense reference.

    It exists for bisecting. With a second difference every bisection ends at the wrong commit.
    """
    without, with_it = stack.preset(recovery, ()), stack.preset(reference, ())
    assert without.mhc is None, f"{recovery} has mHC on"
    differing = _differing(without, with_it)
    assert differing == ["mhc"], f"{recovery} and {reference} differ in {', '.join(differing) or 'nothing'}, not in mhc"


_SAID: dict[str, Callable[[Recipe], int]] = {
    "full": lambda recipe: _attention(recipe) - _sparse(recipe),
    "sparse": lambda recipe: _sparse(recipe),  # noqa: PLW0108  # defined below
    "no_dsa": lambda recipe: recipe.dsa is None,
    "no_mhc": lambda recipe: recipe.mhc is None,
    "moe": lambda recipe: recipe.moe is not None,
    "mla": lambda recipe: recipe.mla is not None,
    "mtp": lambda recipe: recipe.mtp.depth if recipe.mtp else 0,
    "bf16": lambda recipe: recipe.dtype == "bf16" and recipe.fp8 is None,
    "fp8": lambda recipe: recipe.fp8 is not None,
}

FACTS = {  # fact → the word of a name that states it; its number is a group
    "full": ("full", r"(\d+)full"),
    "sparse": ("sparse", r"(\d+)sparse"),
    "no_dsa": ("no_dsa", "no_dsa"),
    "no_mhc": ("no_mhc", "no_mhc"),
    "moe": ("moe", "(?<!no_)moe"),
    "mla": ("mla", "(?<!no_)mla"),
    "mtp": ("mtp", r"mtp(\d+)"),
    "bf16": ("bf16", "bf16"),
    "fp8": ("fp8", "fp8"),
}


@contract("NAME-04", asks=("preset_names", "preset"), cases=FACTS, source="bringup; naming")
def a_name_states_a_fact(stack: Stack, fact: str, word: str) -> None:
    """A preset whose name states a fact (4full_9sparse, no_dsa, no_mhc, mtp1, bf16, fp8) resolves to a configuration in
    which that fact is true.

    Free-text names drift from what they name, and reports quote names.
    """
    stated = 0
    for name, recipe in presets_named(stack, word):
        (found,) = re.findall(f"(?:^|[_-]){word}(?=[_-]|$)", name)
        expected = int(found) if found.isdigit() else True
        actual = _SAID[fact](recipe)
        assert actual == expected, f"{name} says {fact}: expected {expected}, it is {actual}"
        stated += 1
    if not stated:
        raise NotOffered(f"no preset name states {fact}", "stack")


MIXES = {
    "nam52r": (CANDIDATE, (1, 2, 3, 5, 6, 7, 9, 10, 11)),
    "alias": ("nam52r_h200_prod_candidate_v1", (1, 2, 3, 5, 6, 7, 9, 10, 11)),
}


@contract("NAME-04a", asks="preset", cases=MIXES, source="bringup")
def the_candidate_has_four_full_and_nine_sparse(stack: Stack, name: str, sparse: tuple[int, ...]) -> None:
    """The NAM52R candidate is AEMEAEMEAEMR at depth 52 with DSA on nine A-ranks; A-ranks 0, 4, 8 and 12 keep full
    attention.
    """
    recipe = stack.preset(name, ())
    found = (recipe.pattern, recipe.depth)
    assert found == ("AEMEAEMEAEMR", 52), f"{name} is {found[0]} at depth {found[1]}, expected AEMEAEMEAEMR at 52"
    ranks = tuple(sorted(recipe.dsa.a_ranks)) if recipe.dsa else ()
    assert ranks == sparse, f"{name} is sparse on A-ranks {ranks}, expected {sparse}"


UNKNOWN = {  # name → the one that was meant
    "other-version": ("nam56r_h200_bf16_v2", "nam56r_h200_bf16_v1"),
    "version-left-out": ("nam52_h200_dense_ref", DENSE),
    "slip": ("nam52r_h200_4full_9spares_candidate_v1", CANDIDATE),
    "slip-in-an-alias": ("nam52r_h200_prod_canditate_v1", "nam52r_h200_prod_candidate_v1"),
    "dashes": ("nam52-h200-dense-ref-v1", DENSE),
}


@contract("NAME-06", asks="preset", cases=UNKNOWN, source="naming")
def an_unknown_name_is_refused_with_the_nearest(stack: Stack, name: str, meant: str) -> None:
    """A stack refuses an unknown preset and lists the nearest known names. It never falls back to a default."""
    refused = refusal_of(stack.preset, name, ())
    assert name in str(refused), f"the refusal does not repeat {name}: {refused}"
    assert meant in str(refused), f"{name}: the refusal does not name {meant}: {refused}"


NOT_NAMES = {"empty": "", "blank": " ", "another-family": "llama3_8b", "a-path": "../nam56r_h200_bf16_v1"}


@contract("NAME-06a", asks="preset", cases=NOT_NAMES, source="naming")
def what_is_no_name_is_refused(stack: Stack, name: str) -> None:
    """A stack refuses an empty name, a path and a name of another family, even if that exact name is acknowledged."""
    refusal_of(stack.preset, name, ())
    refusal_of(stack.preset, name, (name,))


DEPRECATED = {
    "nam52-pinned": ("nam52_h200_dense_pinned_v1", 4),
    "nam52r-candidate": ("nam52r_h200_dense_candidate_v1", 9),
}


@contract("NAME-06b", asks=("preset", "preset_names"), cases=DEPRECATED, source="naming; bringup")
def a_deprecated_name_needs_an_acknowledgement(stack: Stack, name: str, sparse: int) -> None:
    """A name that states something untrue (dense, with sparse A-ranks) resolves only with an acknowledgement of that
    exact name, and is not among the listed presets.
    """
    refused = refusal_of(stack.preset, name, ())
    refusal_of(stack.preset, name, (DENSE,))
    assert name not in stack.preset_names(), f"{name} is among the names that need no acknowledgement"
    try:
        recipe = stack.preset(name, (name,))
    except Refused:
        raise NotOffered(f"{stack.name} does not know the old name: {refused}", "stack") from None
    found = _sparse(recipe)
    assert found == sparse, f"{name} resolves to {found} sparse A-ranks, expected {sparse}"


LABELS = {"current": "current", "head": "head", "lineage": "v19c", "another-lineage": "v20a"}


@contract("NAME-07", asks=("preset", "preset_names"), cases=LABELS, source="bringup")
def a_label_is_no_preset(stack: Stack, label: str) -> None:
    """`current`, `head` and lineage tags such as v19c resolve to no preset, acknowledged or not, and are never part of
    a preset's identity. `--kernel=current` is unrelated.

    Such labels name a moment: "the baseline recipe used in this wave" is another recipe in the next wave.
    """
    for acknowledged in ((), (label,)):
        refused = refusal_of(stack.preset, label, acknowledged)
        assert label in str(refused), f"the refusal does not name {label}: {refused}"
    for name in stack.preset_names():
        recipe = stack.preset(name, ())
        labelled = [text for text in (name, recipe.name, recipe.family) if text == label]
        assert not labelled, f"{name} is identified by the label {label}"


@contract("NAME-08", asks=("preset_names", "preset"), cases={"every-name": ("", 1, 10**6), "h200": ("h200", 81, 141)},
          source="bringup")  # fmt: skip
def every_preset_declares_its_memory(stack: Stack, card: str, least: int, most: int) -> None:
    """Every preset declares the memory of the smallest card it was planned for. A preset for the 141 GB H200 declares
    more than the 80 GB of an H100.

    "Fits on H200" was read as "fits on Hopper".
    """
    for name, recipe in presets_named(stack, card):
        declared = recipe.hbm_gb
        assert least <= declared <= most, f"{name} declares {declared} GB of HBM, expected {least} … {most}"


def _differing(one: Recipe, other: Recipe) -> list[str]:
    """The fields in which two configurations differ; the name is what they are called, not what they are."""
    return [
        field.name
        for field in fields(Recipe)
        if field.name != "name" and getattr(one, field.name) != getattr(other, field.name)
    ]


def _attention(recipe: Recipe) -> int:
    letters = recipe.pattern.replace("|", "")
    return sum(letters[layer % len(letters)] == "A" for layer in range(recipe.depth))


def _sparse(recipe: Recipe) -> int:
    return len(recipe.dsa.a_ranks) if recipe.dsa else 0

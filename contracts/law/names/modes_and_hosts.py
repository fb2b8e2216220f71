"""Lanes and hosts: what the name of a mode, a degree or a machine says about what runs where."""

import re

from contracts.contract import contract
from contracts.law._support.answers import flags_of, presets_named, refusal_of
from contracts.spec import Lane, Mode, NotOffered, Regime, Stack

STATED = {"tp": (r"tp(\d+)", "tp")}


@contract("NAME-04b", asks=("preset_names", "preset", "launch"), cases=STATED, source="bringup; naming")
def a_degree_in_a_name_is_the_degree_that_runs(stack: Stack, word: str, axis: str) -> None:
    """A preset whose name states a parallel degree (tp2) launches with that degree in each of its modes."""
    stated = 0
    for name, recipe in presets_named(stack, word):
        found = re.search(f"(?:^|[_-]){word}(?=[_-]|$)", name)
        assert found is not None, f"{name} does not say {word}"
        for mode in recipe.modes:
            degree = getattr(stack.launch(recipe, Lane(mode=mode)).degrees, axis)
            assert degree == int(found[1]), f"{name} runs as {mode} with {axis} {degree}"
            stated += 1
    if not stated:
        raise NotOffered(f"no preset name states a degree of {axis}", "stack")


MODES = {  # mode, regime → tp, sp, whether the mixer is the launcher's own
    "native": ("nemo_native", "megatron", 2, True, True),
    "author": ("author_dp", "megatron", 1, False, False),
    "native-fsdp2": ("nemo_native", "fsdp2", 2, True, True),
    "author-fsdp2": ("author_dp", "fsdp2", 1, False, False),
}


@contract("NAME-05", asks=("preset", "launch"), cases=MODES, source="naming")
def a_lane_is_named_by_its_mode(stack: Stack, mode: Mode, regime: Regime, tp: int, sp: bool, native: bool) -> None:
    """nemo_native runs TP 2 with sequence parallelism and the built-in mixer. author_dp runs TP 1 without sequence
    parallelism and the custom selective mixer, even where the recipe asks for other degrees.

    Under one recipe name these are two models, with different kernels, sharding and numbers.
    """
    recipe = stack.preset("nam56r_h200_bf16_v1", ())
    launch = stack.launch(recipe, Lane(mode=mode, regime=regime))
    found = (launch.degrees.tp, launch.degrees.sp)
    assert found == (tp, sp), f"{mode} runs with tp {found[0]} and sp {found[1]}, expected tp {tp} and sp {sp}"
    if launch.launcher == "megatron-core":
        spec = flags_of(launch).get("--spec", ())
        built_in = not spec or spec[0].startswith("megatron.")
        owner = "the launcher's own" if built_in else "a custom"
        assert built_in == native, f"{mode} runs {owner} mixer ({' '.join(spec)}), expected the other"


OWNERS = {  # word of the name, the mode it never runs
    "native": ("native", "author_dp", "megatron"),
    "native-fsdp2": ("native", "author_dp", "fsdp2"),
    "author": ("author", "nemo_native", "megatron"),
}


@contract("NAME-05a", asks=("preset_names", "preset", "launch"), cases=OWNERS, source="naming")
def a_name_never_runs_the_other_mode(stack: Stack, word: str, mode: Mode, regime: Regime) -> None:
    """A stack refuses a recipe with `native` in its name in author_dp lanes, and one with `author` in its name in
    nemo_native lanes.
    """
    stated = 0
    for name, recipe in presets_named(stack, word):
        refused = refusal_of(stack.launch, recipe, Lane(mode=mode, regime=regime))
        assert mode in str(refused), f"{name}: the refusal does not name {mode}: {refused}"
        stated += 1
    if not stated:
        raise NotOffered(f"no preset name says {word}", "stack")


HOSTS = {  # name → box, region
    "bring-up": ("bench-1@us-west1-c", "bench-1", "us-west1-c"),
    "old-europe": ("canon-8@europe-west4-a", "canon-8", "europe-west4-a"),
    "same-box-elsewhere": ("bench-1@europe-west4-a", "bench-1", "europe-west4-a"),
    "other-box-there": ("bench-2@us-west1-c", "bench-2", "us-west1-c"),
}


@contract("NAME-09", asks="host", cases=HOSTS, source="bringup")
def a_host_is_named_by_box_and_region(stack: Stack, name: str, box: str, region: str) -> None:
    """A host is identified by its box and its region together.

    Two machines of one class have different software histories, and their numbers were compared as if they came from
    one system.
    """
    identity = stack.host(name)
    assert identity == f"{box}@{region}", f"{name} is identified as {identity!r}, expected {box}@{region}"


NO_HOSTS = {
    "the-H200": "the H200",
    "class-and-count": "H200:8",
    "box-alone": "bench-1",
    "region-alone": "us-west1-c",
    "no-region": "bench-1@",
    "no-box": "@us-west1-c",
    "country": "bench-1@us",
    "empty": "",
}


@contract("NAME-09a", asks="host", cases=NO_HOSTS, source="bringup")
def a_class_of_machine_is_no_host(stack: Stack, name: str) -> None:
    """A stack refuses `the H200`, a box without a region and a region without a box, because none of them names a
    machine.
    """
    refused = refusal_of(stack.host, name)
    assert name in str(refused), f"the refusal does not repeat {name!r}: {refused}"

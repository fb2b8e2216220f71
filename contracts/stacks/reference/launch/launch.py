"""Recipe and lane → launch: Megatron-LM's own launcher (`megatron_flags.py`) or ours (`trainer_arguments.py`).

`launch` reads in order: settle the recipe and the degrees, refuse what the lane cannot run, write the environment and
the arguments.
"""

from collections.abc import Mapping
from dataclasses import replace

from contracts.spec import (
    NVLINK_DOMAIN,
    RECORDED_PREFIXES,
    Degrees,
    Lane,
    Launch,
    LayerNumbers,
    Layout,
    Mode,
    Pattern,
    Recipe,
    Refusals,
    Regime,
    grids,
    refuse,
)
from contracts.spec import pattern as patterns
from contracts.spec.divisibility import refusals_on
from contracts.stacks.reference.launch import environment, megatron_flags, overrides, trainer_arguments

SCRIPTS = {"megatron": ("pretrain_hybrid.py",), "fsdp2": ("-m", "contracts.stacks.reference.train")}
LAYOUTS: Mapping[Regime, Layout] = {"megatron": "borrowed", "fsdp2": "own-axis"}
TP_OF_MODE: Mapping[Mode, int] = {"nemo_native": 2, "author_dp": 1}

Words = tuple[str, ...]


def launch(recipe: Recipe, lane: Lane) -> Launch:
    """The command and environment that start `recipe` on `lane`.

    Raises:
        Refused: an override without a field, a mode the recipe does not have, degrees that contradict the mode or do
            not divide, a feature the launcher cannot express, an inherited environment that contradicts the lane.
    """
    recipe = overrides.apply(recipe, lane.overrides)
    degrees = settle_degrees(recipe, lane)
    dp = divide(recipe, degrees, lane.world, LAYOUTS[lane.regime])
    pattern = patterns.parse(recipe.pattern, recipe.depth)
    found = Refusals()
    experts = recipe.moe is None or "E" in pattern.letters
    found.unless(experts, "moe", "on", f"no block of {recipe.pattern} is an E", "turn moe off, or give it E blocks")
    if lane.regime == "megatron":
        megatron_flags.refuse_what_it_cannot_express(recipe, lane, degrees, pattern, found)
    found.unless(degrees.tp <= min(lane.gpus, NVLINK_DOMAIN), "tp", degrees.tp,
                 f"must stay inside a node of {lane.gpus} GPUs", "lower tp")  # fmt: skip
    set_, unset = environment.overlay(recipe, lane, degrees, found)
    found.raise_any()
    if lane.regime == "megatron":
        (launcher, version), argv = megatron_flags.MEGATRON, megatron_flags.write(recipe, lane, degrees, dp, pattern)
    else:
        launcher, version, argv = (
            trainer_arguments.LAUNCHER,
            trainer_arguments.VERSION,
            trainer_arguments.write(recipe, lane, degrees),
        )
    for word in (*argv, *_torchrun(lane)):
        found.unless("\0" not in word, "argv", word, "holds a NUL, which no process can be given", "take it out")
    found.raise_any()
    return Launch(
        torchrun=_torchrun(lane),
        script=SCRIPTS[lane.regime],
        argv=argv,
        env=set_,
        unset=unset,
        recorded={name: value for name, value in sorted(lane.inherited.items()) if name.startswith(RECORDED_PREFIXES)},
        launcher=launcher,
        launcher_version=version,
        degrees=degrees,
        world=lane.world,
        recurrent=patterns.layers_of(pattern, "R"),
        sparse=_sparse_layers(recipe, pattern),
        gives_up=_gives_up(lane, pattern),
    )


def settle_degrees(recipe: Recipe, lane: Lane) -> Degrees:
    """The degrees that run: the lane's if it gives any, else the recipe's; the mode decides TP and SP.

    Raises:
        Refused: for a mode that is not the recipe's, or degrees that are not the mode's.
    """
    if lane.mode not in recipe.modes:
        raise refuse("mode", lane.mode, f"{recipe.name} runs as {' or '.join(recipe.modes)}", "choose one of those")
    tp = TP_OF_MODE[lane.mode]
    _refuse_overridden_degrees(recipe, lane, tp).raise_any()
    if lane.degrees is None:
        return replace(recipe.degrees, tp=tp, sp=tp > 1)
    if (lane.degrees.tp, lane.degrees.sp) != (tp, tp > 1):
        problem = f"{lane.mode} means tp {tp} {'with' if tp > 1 else 'without'} sequence parallelism"
        raise refuse(
            "degrees", f"tp {lane.degrees.tp}, sp {lane.degrees.sp}", problem, "change the mode or the degrees"
        )
    return lane.degrees


def _refuse_overridden_degrees(recipe: Recipe, lane: Lane, tp: int) -> Refusals:
    """An override of a degree that something else decides would be accepted and change nothing."""
    found = Refusals()
    asked = [key for key in lane.overrides if key.split(".")[0] == "degrees"]
    for key in asked if lane.degrees is not None else ():
        found.add(key, lane.overrides[key], f"the lane gives all degrees ({lane.degrees})", "give it in one place")
    if {"degrees.tp", "degrees"} & set(asked):
        found.unless(recipe.degrees.tp == tp, "degrees.tp", recipe.degrees.tp, f"{lane.mode} means tp {tp}",
                     "change the mode")  # fmt: skip
    if {"degrees.sp", "degrees"} & set(asked):
        found.unless(recipe.degrees.sp == (tp > 1), "degrees.sp", recipe.degrees.sp,
                     f"{lane.mode} means {'sequence' if tp > 1 else 'no sequence'} parallelism",
                     "change the mode")  # fmt: skip
    return found


def divide(recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
    """The data-parallel size of a recipe over a world.

    Raises:
        Refused: everything that does not divide, at once.
    """
    dp = len(grids(degrees, world, layout).dense.groups("dp")[0])
    refusals_on(recipe, degrees, dp).raise_any()
    return dp


def _torchrun(lane: Lane) -> Words:
    if lane.nodes == 1:
        return ("torchrun", "--standalone", f"--nproc_per_node={lane.gpus}")
    return (
        "torchrun",
        f"--nnodes={lane.nodes}",
        f"--nproc_per_node={lane.gpus}",
        "--rdzv_backend=c10d",
        f"--rdzv_id={lane.run}",
        f"--rdzv_endpoint={lane.rendezvous}",
    )


def _sparse_layers(recipe: Recipe, pattern: Pattern) -> LayerNumbers:
    ranks = recipe.dsa.a_ranks if recipe.dsa else ()
    return patterns.placement(pattern, ranks).sparse_layers


def _gives_up(lane: Lane, pattern: Pattern) -> Words:
    recurrent = patterns.layers_of(pattern, "R").numbers
    if lane.mode == "author_dp" or lane.regime != "megatron" or not recurrent:
        return ()
    layers = ", ".join(map(str, recurrent))
    return (f"layers {layers} (1-based) run the built-in Mamba mixer instead of the recurrent block",)

"""Recipes and lanes, as literals, for the checks on launches, and how their words and variables are read."""

from collections.abc import Mapping
from dataclasses import replace

from contracts.spec import Degrees, Dsa, Fp8, Lane, Launch, Mhc, Mla, Moe, Mtp, NotOffered, Recipe, Refused, Stack

# The sizes that the naming article states for NAM56R. 52 layers are no multiple of the 12 letters.
NAM56R = Recipe(
    name="nam56r", family="nam56r", pattern="AEMEAEMEAEMR", depth=52, hidden=3584, ffn_hidden=18944, heads=56,
    kv_groups=8, seq_length=4096, rope_theta=500_000, degrees=Degrees(ep=4, etp=1),
    moe=Moe(experts=16, top_k=4, expert_hidden=896, shared_hidden=1024),
)  # fmt: skip
FP8 = replace(NAM56R, name="nam56r_fp8", fp8=Fp8(format="hybrid", scaling="tensorwise"))
MLA_MTP = replace(NAM56R, name="nam56r_mla_mtp2", mla=Mla(), mtp=Mtp(depth=2, loss_weight=0.3))
NO_MOE = replace(NAM56R, name="nam56r_no_moe", moe=None, degrees=Degrees())
NAM52_MHC = replace(NAM56R, name="nam52", family="nam52", pattern="AEME", mhc=Mhc(streams=4), modes=("author_dp",))
NAM52_SPARSE = replace(NAM56R, name="nam52_sparse", family="nam52", pattern="AEME", mla=Mla(),
                       dsa=Dsa(a_ranks=(8, 9, 10, 11)), modes=("author_dp",))  # fmt: skip

NATIVE = Lane(mode="nemo_native")
AUTHOR = Lane(mode="author_dp")
FSDP2 = Lane(mode="nemo_native", regime="fsdp2", degrees=Degrees(tp=2, sp=True, ep=2, etp=0))
FSDP2_AUTHOR = Lane(mode="author_dp", regime="fsdp2", degrees=Degrees(ep=4, etp=1))
NATIVE_PP2 = replace(NATIVE, degrees=Degrees(pp=2, tp=2, sp=True, ep=4, etp=1))
AUTHOR_PP4 = replace(AUTHOR, degrees=Degrees(pp=4, ep=2, etp=1))
AUTHOR_CP2 = replace(AUTHOR, degrees=Degrees(cp=2, ep=4, etp=1))
FSDP2_PP2 = replace(FSDP2, degrees=Degrees(pp=2, tp=2, sp=True))
FSDP2_PP4 = replace(FSDP2_AUTHOR, degrees=Degrees(pp=4))
TWO_NODES = replace(NATIVE, nodes=2, rendezvous="node-0:29500", run="nam56r-17")
FSDP2_TWO_NODES = replace(FSDP2, nodes=2, rendezvous="node-0:29500", run="nam56r-18", compile="regional")


def with_inherited(lane: Lane, **variables: str) -> Lane:
    """The lane, launched from a shell that exports some variables."""
    return replace(lane, inherited=variables)


def rank_environment(launch: Launch, lane: Lane) -> Mapping[str, str]:
    """The environment that the ranks see: what is inherited, without what is unset, overridden by what is set."""
    kept = {name: value for name, value in lane.inherited.items() if name not in launch.unset}
    return {**kept, **launch.env}


def for_megatron(stack: Stack, recipe: Recipe, lane: Lane) -> Launch:
    """The launch, when Megatron-LM's own parser is to read it.

    Raises:
        NotOffered: when another launcher is, whose flags have other names.
    """
    launch = stack.launch(recipe, lane)
    if "megatron" not in launch.launcher.lower():
        raise NotOffered(f"launches for {launch.launcher}", "case")
    return launch


def flag_occurrences(argv: tuple[str, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The flags in order, each with its values: `--flag value`, `--flag=value` and `--flag one two` read alike."""
    found: list[tuple[str, tuple[str, ...]]] = []
    for word in argv:
        flag, equals, value = word.partition("=")
        if word.startswith("--"):
            found.append((flag, (value,) if equals else ()))
        elif found:
            found[-1] = (found[-1][0], (*found[-1][1], word))
    return tuple(found)


def flag_texts(argv: tuple[str, ...]) -> Mapping[str, str]:
    """Flag → its values as one text; empty for a switch. The last occurrence of a repeated flag wins, as in most
    parsers.
    """
    return {flag: " ".join(values) for flag, values in flag_occurrences(argv)}


def refusal_of_launch(stack: Stack, recipe: Recipe, lane: Lane, what: str) -> Refused:
    """The refusal that a launch must give.

    Raises:
        AssertionError: when it was accepted, naming what should have been refused instead of the whole recipe.
    """
    try:
        stack.launch(recipe, lane)
    except Refused as refused:
        return refused
    raise AssertionError(f"{what} was accepted, expected a refusal")

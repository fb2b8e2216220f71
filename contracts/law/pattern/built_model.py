"""The built model: its layers in order, its parameter counts, and logits that are its blocks applied in sequence."""

from collections.abc import Mapping
from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.built_model import BOTH_MODES, FLAGSHIP, PRESETS, BuiltStack, size_of
from contracts.law._support.late import Tensor
from contracts.law._support.model_passes import (
    MOE,
    WHOLE,
    batch,
    drawn_weights,
    needs_canonical_names,
    one_pass,
    tensor,
)
from contracts.law._support.recipes import PARALLEL, SMALL, SMALL_DSA, SMALL_MLA
from contracts.law._support.small_model import within
from contracts.spec import FLOAT64, BlockCall, Built, Dsa, Mhc, Mode, Mtp, Recipe, Training, stepped_down
from contracts.spec import within as at_most

ORDERS: dict[str, tuple[Recipe, str]] = {  # recipe → the letter of each layer
    "a-period-and-two": (SMALL, "AEMEAEMEAEMRAE"),
    "a-period-and-two@hybrid": (replace(stepped_down(SMALL, "hybrid"), depth=14), "AEMEAEMEAEMEAE"),
    "a-period-and-two@pairs": (replace(stepped_down(SMALL, "pairs"), depth=14), "AEAEAEAEAEAEAE"),
    "less-than-a-period": (replace(SMALL, depth=7), "AEMEAEM"),
    "less-than-a-period@hybrid": (replace(stepped_down(SMALL, "hybrid"), depth=7), "AEMEAEM"),
    "less-than-a-period@pairs": (replace(stepped_down(SMALL, "pairs"), depth=7), "AEAEAEA"),
    "recurrence-first": (replace(SMALL, pattern="RAM", depth=7), "RAMRAMR"),
    "stages-written-out": (replace(SMALL, pattern="AE|M|RAE", depth=6), "AEMRAE"),
    "dense": (replace(SMALL, pattern="EA", depth=3, moe=None), "EAE"),
    "dense@dense": (replace(stepped_down(SMALL, "dense"), depth=5), "AEAEA"),
    "one-layer": (replace(SMALL, pattern="MA", depth=1), "M"),
    "depths-are-no-layers": (replace(SMALL, pattern="AM", depth=3, mtp=Mtp(depth=2), mhc=Mhc(streams=2)), "AMA"),
}


@contract("PAT-12a", asks="built", cases=ORDERS, needs=(), source="naming; F10")
def the_built_layers_are_those_of_the_pattern(stack: Training, recipe: Recipe, letters: str) -> None:
    """The built model has one layer for each letter of the tiled pattern, in that order, numbered from 0.

    A letter that falls back to attention, a period aligned to the end, or a head counted as a layer trains another
    model under the same name.
    """
    layers = stack.built(recipe, "nemo_native").layers
    found = "".join(layer.family for layer in layers)
    assert found == letters, f"built {found}, the pattern is {letters}"
    numbers = [layer.number for layer in layers]
    assert numbers == list(range(len(letters))), f"layers are numbered {numbers}"


@contract("PAT-12b", asks=("built", "preset", "count_parameters"), cases=PRESETS, source="F17; TIE-07")
def the_reported_counts_are_those_of_the_model(stack: BuiltStack, name: str) -> None:
    """The parameter counts that a stack reports (total, active and per block family) equal those of the model it
    builds, at true size.

    Budgets, MFU and tables of results use the reported counts; the optimizer updates the built parameters.
    """
    recipe = replace(stack.preset(name, ()), modes=BOTH_MODES)
    _agree(stack, recipe)


TWISTED = {
    "tied": (replace(SMALL, untied_embeddings=False),),
    "swiglu-mla-two-depths": (replace(SMALL_MLA, activation="swiglu", mtp=Mtp(depth=2)),),
    "no-qk-norm-streams": (replace(SMALL, qk_norm=False, mhc=Mhc(streams=3)),),
    "dense": (replace(SMALL, moe=None),),
    "side-by-side": (PARALLEL,),
    "no-shared-expert": (replace(SMALL, moe=replace(MOE, shared_hidden=0)),),
    "biased": (replace(SMALL, biases=("attention", "mlp", "experts", "router"), mtp=Mtp(depth=1)),),
}


@contract("PAT-12c", asks=("built", "count_parameters"), cases=TWISTED, source="F17; TIE-07")
def counts_follow_every_feature(stack: BuiltStack, recipe: Recipe) -> None:
    """Reported parameter counts equal those of the built model with each feature on or off: a tied tensor counts once,
    and a prediction head counts.
    """
    _agree(stack, recipe)


def _agree(stack: BuiltStack, recipe: Recipe) -> None:
    built, counted = stack.built(recipe, "nemo_native"), stack.count_parameters(recipe)
    found = _families(built)
    for family in sorted({*found, *counted.families}):
        got, want = found.get(family, 0), counted.families.get(family, 0)
        assert got == want, f"the model has {got} parameters of {family}, {want} are reported"
    held = sum(size_of(row) for row in built.parameters)
    assert held == counted.total, f"the model has {held} parameters, {counted.total} are reported"
    idle = 0
    if recipe.moe is not None:
        of_experts = [row for row in built.parameters if row.role == "expert" or ".experts." in row.name]
        routed = sum(size_of(row) for row in of_experts if row.layer is not None)
        idle = routed * (recipe.moe.experts - recipe.moe.top_k) // recipe.moe.experts
    assert held - idle == counted.active, f"{held - idle} parameters are active, {counted.active} are reported"


def _families(built: Built) -> dict[str, int]:
    """Parameters by pattern letter, `embedding`, `head`, `norm`, and the rest as `mtp`."""
    found: dict[str, int] = {}
    by_layer = {layer.number: layer.family for layer in built.layers}
    for row in built.parameters:
        outside: str = row.role if row.role in ("embedding", "head") else "mtp"
        if row.role == "norm" and "mtp" not in row.name:
            outside = "norm"
        family = outside if row.layer is None else by_layer[row.layer]
        found[family] = found.get(family, 0) + size_of(row)
    return found


# NAM56R: 13 A, 22 E, 13 M, 4 R of 52. The matrices of one block; norms, biases and vectors may add a little:
# A 2 · 3584² + 2 · 3584 · 512; E 3584 · 16 + 16 · 2 · 3584 · 896 + 2 · 3584 · 1024;
# M 3584 · (2 · 3584 + 56 + 1024) + 4 · (3584 + 1024) + 3584²; R 3584 · (4 · 3584 + 56) + 56 · 64² + 3584²
FLAGSHIP_SIZES = {
    "A": (FLAGSHIP, "A", 13 * 29_360_128),
    "E": (FLAGSHIP, "E", 22 * 110_157_824),
    "M": (FLAGSHIP, "M", 13 * 42_424_320),
    "R": (FLAGSHIP, "R", 4 * 64_655_360),
    "embedding": (FLAGSHIP, "embedding", 65_536 * 3584),
    "head": (FLAGSHIP, "head", 65_536 * 3584),
}


@contract("PAT-12d", asks=("built", "preset"), cases=FLAGSHIP_SIZES, source="naming: NAM56R; F17")
def nam56r_has_the_size_of_its_matrices(stack: BuiltStack, name: str, family: str, matrices: int) -> None:
    """In each block family, NAM56R at its true size has the parameter count that its dimensions give, worked out by
    hand.

    A reported count and a model that are wrong in the same way agree with each other.
    """
    found = _families(stack.built(stack.preset(name, ()), "nemo_native")).get(family, 0)
    within(found, matrices, matrices + matrices // 1000, f"parameters of {family} in {name}")


IN_A_ROW: dict[str, tuple[Recipe, Mode]] = {
    "every-family": (SMALL, "nemo_native"),
    "custom-mixers": (WHOLE, "author_dp"),
    "tied": (replace(WHOLE, untied_embeddings=False, depth=5), "nemo_native"),
    "wide-eps": (replace(WHOLE, pattern="AE", depth=2, norm_eps=0.1), "nemo_native"),
    "sparse-by-rank": (
        replace(SMALL_DSA, pattern="AE", depth=5, dsa=Dsa(a_ranks=(1,), index_heads=8, index_head_dim=8, top_k=3)),
        "author_dp",
    ),
    "side-by-side": (PARALLEL, "nemo_native"),
}


ROWED = {"side-by-side": ("parallel-ssm",), "custom-mixers": ("mamba", "recurrent"), "sparse-by-rank": ("dsa", "mla")}


@contract(
    "PAT-12e",
    asks=("initial", "run_model", "run_block"),
    cases=IN_A_ROW,
    needs=ROWED,
    sheds=("packed",),
    source="naming; SSM-09",
)
def a_model_is_its_blocks_in_a_row(stack: BuiltStack, recipe: Recipe, mode: Mode) -> None:
    """Logits are the embedding, then x + block(x) for each layer with that layer's own weights, then a final norm and
    the output projection. Auxiliary losses are the sum of the blocks' losses.

    The check asks the same stack for the whole model and for each block. The loss falls even with a residual dropped or
    added twice, a norm or a block shared by two layers, or a layer skipped.
    """
    weights, tokens = drawn_weights(stack, recipe, mode=mode), batch(recipe)
    needs_canonical_names(stack, weights)
    run = one_pass(stack, recipe, weights, tokens, mode=mode)
    held = numerics.tensors(weights)
    x_BTD = held["embedding.weight"][tensor(tokens.tokens)]
    losses: dict[str, float] = {}
    for layer in range(recipe.depth):
        prefix = f"layers.{layer}."
        mine = {name.removeprefix(prefix): each for name, each in weights.items() if name.startswith(prefix)}
        x = numerics.array(x_BTD)
        call = BlockCall(recipe=recipe, layer=layer, weights=mine, x=x, mode=mode, documents=tokens.documents)
        block = stack.run_block(call)
        x_BTD = x_BTD + tensor(block.y)
        for name, loss in block.losses.items():
            losses[name] = losses.get(name, 0.0) + float(tensor(loss))
    logits_BTV = _headed(recipe, held, x_BTD)
    words = numerics.difference("the logit tensor", run.logits, logits_BTV, FLOAT64)
    assert not words, words
    for name, want in losses.items():
        got = run.losses[name]
        assert abs(got - want) <= at_most(1e-12) * abs(want), (
            f"{name} loss is {got:.9g}, the blocks' add up to {want:.9g}"
        )


def _headed(recipe: Recipe, held: Mapping[str, Tensor], x_BTD: Tensor) -> Tensor:
    normed = x_BTD / (x_BTD.square().mean(-1, keepdim=True) + recipe.norm_eps).sqrt() * held["norm.weight"]
    return normed @ held["head.weight" if recipe.untied_embeddings else "embedding.weight"].T

"""What ran at the sites of a block against what was said to run, and another's layer against the stack's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from contracts import instruments
from contracts.checks.numeric._low_precision import BF16, FP8
from contracts.checks.numeric._recipes import A_LAYER, E_LAYER, M_LAYER, R_LAYER
from contracts.checks.numeric.seams import NARROW, SSM, TE
from contracts.contract import contract
from contracts.spec.blocks import BlockCall, Blocks
from contracts.spec.errors import NotOffered, Unreachable
from contracts.spec.recipe import Mode, Recipe
from contracts.spec.seams import Facts, Package, Seams, Site, Wish
from contracts.spec.tolerance import BFLOAT16, EXACT

RAN: dict[str, tuple[Recipe, int, Mode]] = {
    "attention": (BF16, A_LAYER, "nemo_native"),
    "experts": (BF16, E_LAYER, "nemo_native"),
    "experts-fp32": (replace(BF16, dtype="fp32"), E_LAYER, "nemo_native"),
    "experts-narrow": (NARROW, E_LAYER, "author_dp"),
    "experts-fp8": (FP8, E_LAYER, "nemo_native"),
    "scan": (BF16, M_LAYER, "nemo_native"),
    "scan-author": (BF16, M_LAYER, "author_dp"),
    "recurrence": (BF16, R_LAYER, "nemo_native"),
}
OF_LETTER: Mapping[int, frozenset[Site]] = {
    A_LAYER: frozenset({"attention"}), E_LAYER: frozenset({"experts", "mlp"}),
    M_LAYER: frozenset({"scan"}), R_LAYER: frozenset({"recurrence"}),
}  # fmt: skip


class _Offers(Seams, Blocks):
    """Whoever answers both."""


@contract("KRN-01g", asks=("seams", "kernel_facts", "block_weights", "run_block"), cases=RAN, source="hub")
def what_runs_is_what_is_said(stack: _Offers, recipe: Recipe, layer: int, mode: Mode) -> None:
    """What a block ran at each of its sites is what the rows say: with no wish, with packages, with its own kernels."""
    facts = stack.kernel_facts()
    every: Mapping[Site, Wish] = {
        "attention": Wish(kernel=TE), "mlp": Wish(kernel=TE), "experts": Wish(kernel=TE), "scan": Wish(kernel=SSM),
        "recurrence": Wish(kernel=SSM),
    }  # fmt: skip
    own: Mapping[Site, Wish] = {site: Wish(kernel="native") for site in every}
    for wishes in ({}, every, own):
        said = {
            row.site: row.actual for row in stack.seams(recipe, mode, wishes, facts) if row.site in OF_LETTER[layer]
        }
        ran = stack.run_block(_call(stack, recipe, layer, mode, wishes, facts)).kernels
        assert ran.keys() == said.keys(), f"sites that ran are {sorted(ran)}, expected {sorted(said)}"
        for site, kernel in said.items():
            assert ran[site] == kernel, f"{site} ran as {ran[site]}, and is said to run as {kernel}"


def _call(
    stack: Blocks, recipe: Recipe, layer: int, mode: Mode, wishes: Mapping[Site, Wish], facts: Facts
) -> BlockCall:
    """A call as training makes it: parameters in float32, activations in the recipe's dtype."""
    import torch

    numerics, fixtures = instruments.numerics, instruments.fixtures
    element = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[recipe.dtype]
    weights = fixtures.weights(stack.block_weights(recipe, layer, mode))
    x_BTD, dy_BTD = (fixtures.normal(name, (2, 16, recipe.hidden)).to(element) for name in ("x", "dy"))
    return BlockCall(
        recipe=recipe, layer=layer, mode=mode, weights=fixtures.as_arrays(weights, torch.float32),
        x=numerics.array(x_BTD), dy=numerics.array(dy_BTD), kernels=wishes, device=facts.device,
    )  # fmt: skip


BRIDGED: dict[str, tuple[Recipe, int, Site]] = {
    "projections": (BF16, A_LAYER, "attention"),
    "shared-expert": (BF16, E_LAYER, "mlp"),
    "experts": (BF16, E_LAYER, "experts"),
    "dense": (replace(BF16, moe=None), E_LAYER, "mlp"),
}
_BRIDGE = ("seams", "kernel_facts", "block_weights", "run_block")


@contract("PREC-03a", asks=_BRIDGE, cases=BRIDGED, source="hub naming")
def without_the_bridge_the_own_layer_runs(stack: _Offers, recipe: Recipe, layer: int, site: Site) -> None:
    """Without Transformer Engine the stack's own layer runs and is recorded: the same numbers, bit for bit."""
    facts = stack.kernel_facts()
    wishes: Mapping[Site, Wish] = {site: Wish(kernel=TE)}
    if any(row.actual == TE for row in stack.seams(recipe, "nemo_native", wishes, facts)):
        raise NotOffered("Transformer Engine runs here; PREC-03b judges it")
    wished = stack.run_block(_call(stack, recipe, layer, "nemo_native", wishes, facts))
    own: Mapping[Site, Wish] = {site: Wish(kernel="native")}
    plain = stack.run_block(_call(stack, recipe, layer, "nemo_native", own, facts))
    assert wished.kernels.get(site) == "native", f"{site} ran as {wished.kernels.get(site)}, expected native"
    words = instruments.numerics.apart("y", wished.y, plain.y, EXACT)
    words = words or instruments.numerics.named_apart("gradient", wished.gradients, plain.gradients, EXACT)
    assert not words, f"{TE} is not there, and with it asked for {words}"


@contract("PREC-03b", asks=_BRIDGE, cases=BRIDGED, source="hub naming", tier="gpu")
def the_bridge_is_the_own_layer(stack: _Offers, recipe: Recipe, layer: int, site: Site) -> None:
    """With Transformer Engine its layer ran, and output and gradients are those of the stack's own in bfloat16."""
    facts = stack.kernel_facts()
    found = facts.packages.get(TE, Package(state="absent"))
    if found.state == "absent":
        raise Unreachable("transformer-engine is not installed: build 2.12 for the device's architecture (docs/gpu.md)")
    wishes: Mapping[Site, Wish] = {site: Wish(kernel=TE, required=True)}
    bridged = stack.run_block(_call(stack, recipe, layer, "nemo_native", wishes, facts))
    own: Mapping[Site, Wish] = {site: Wish(kernel="native")}
    plain = stack.run_block(_call(stack, recipe, layer, "nemo_native", own, facts))
    assert bridged.kernels.get(site) == TE, f"{site} ran as {bridged.kernels.get(site)}, expected {TE}"
    words = instruments.numerics.apart("y", bridged.y, plain.y, BFLOAT16)
    words = words or instruments.numerics.gradients_apart("gradient", bridged.gradients, plain.gradients, BFLOAT16)
    assert not words, words

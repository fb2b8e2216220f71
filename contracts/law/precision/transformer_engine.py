"""Transformer Engine's layer and the stack's own layer: which one ran, and whether the numbers agree."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.executed_kernels import Offers, call_of
from contracts.law._support.fp8_calls import BF16
from contracts.law._support.recipes import A_LAYER, E_LAYER
from contracts.spec import BFLOAT16, EXACT, NotOffered, Package, Recipe, Site, Unreachable, Wish

TE: Final = "transformer-engine"
BRIDGED: dict[str, tuple[Recipe, int, Site]] = {
    "projections": (BF16, A_LAYER, "attention"),
    "shared-expert": (BF16, E_LAYER, "mlp"),
    "experts": (BF16, E_LAYER, "experts"),
    "dense": (replace(BF16, moe=None), E_LAYER, "mlp"),
}


_BRIDGE = ("seams", "kernel_facts", "block_weights", "run_block")


@contract("PREC-03a", asks=_BRIDGE, cases=BRIDGED, source="hub naming")
def without_the_bridge_the_own_layer_runs(stack: Offers, recipe: Recipe, layer: int, site: Site) -> None:
    """If Transformer Engine is asked for and not installed, the stack's own layer runs and is recorded, with the same
    bits as when it is asked for itself.
    """
    facts = stack.kernel_facts()
    wishes: Mapping[Site, Wish] = {site: Wish(kernel=TE)}
    if any(row.actual == TE for row in stack.seams(recipe, "nemo_native", wishes, facts)):
        raise NotOffered("Transformer Engine runs here; PREC-03b judges it", "device")
    wished = stack.run_block(call_of(stack, recipe, layer, "nemo_native", wishes, facts))
    own: Mapping[Site, Wish] = {site: Wish(kernel="native")}
    plain = stack.run_block(call_of(stack, recipe, layer, "nemo_native", own, facts))
    assert wished.kernels.get(site) == "native", f"{site} ran as {wished.kernels.get(site)}, expected native"
    words = numerics.difference("y", wished.y, plain.y, EXACT)
    words = words or numerics.differences("gradient", wished.gradients, plain.gradients, EXACT)
    assert not words, f"with {TE} asked for but not installed, {words}"


@contract("PREC-03b", asks=_BRIDGE, cases=BRIDGED, source="hub naming", tier="gpu")
def the_bridge_is_the_own_layer(stack: Offers, recipe: Recipe, layer: int, site: Site) -> None:
    """With Transformer Engine, its layer runs, and output and gradients match those of the stack's own layer in
    bfloat16.
    """
    facts = stack.kernel_facts()
    found = facts.packages.get(TE, Package(state="absent"))
    if found.state == "absent":
        raise Unreachable("transformer-engine is not installed: build 2.12 for the device's architecture (docs/gpu.md)")
    wishes: Mapping[Site, Wish] = {site: Wish(kernel=TE, required=True)}
    bridged = stack.run_block(call_of(stack, recipe, layer, "nemo_native", wishes, facts))
    own: Mapping[Site, Wish] = {site: Wish(kernel="native")}
    plain = stack.run_block(call_of(stack, recipe, layer, "nemo_native", own, facts))
    assert bridged.kernels.get(site) == TE, f"{site} ran as {bridged.kernels.get(site)}, expected {TE}"
    words = numerics.difference("y", bridged.y, plain.y, BFLOAT16)
    words = words or numerics.gradient_differences("gradient", bridged.gradients, plain.gradients, BFLOAT16)
    assert not words, words

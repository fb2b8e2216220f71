"""The model that torchtitan builds from a recipe, read off the model on the meta device."""

from dataclasses import replace

import torch

from contracts.spec import Abilities, Built, Execution, Mode, Recipe
from contracts.stacks.kit import tables
from contracts.stacks.kit.links import to_canonical
from contracts.stacks.kit.roles import role_of
from contracts.stacks.torchtitan import symbols
from contracts.stacks.torchtitan.abilities import ABILITIES
from contracts.stacks.torchtitan.configuration import declined
from contracts.stacks.torchtitan.model import config_of
from contracts.stacks.torchtitan.template import built as built_of
from contracts.stacks.torchtitan.weight_mapping import links, orthogonal


def built(recipe: Recipe, mode: Mode, who: str = "torchtitan 0.3.0", abilities: Abilities = ABILITIES) -> Built:
    """Parameters under their canonical names; one layer of torchtitan is two of ours.

    Raises:
        NotOffered: for a recipe without a torchtitan model.
    """
    declined(recipe, Execution(), "built", who, abilities)
    with torch.device("meta"):
        model = built_of(config_of(recipe))
    held = (dict(model.named_parameters()), {n: each for n, each in model.named_buffers() if "expert_bias" in n})
    rows, buffers = (to_canonical(one, links(recipe)) for one in held)
    bare = symbols.in_groups()
    decays = {n: 0.0 if bare and role_of(n) == "norm" else recipe.optim.weight_decay for n in rows}
    found = tables.built(rows, buffers, decays, _by_muon(recipe))
    if recipe.dtype != "bf16":
        return found
    return replace(found, parameters=tuple(replace(row, compute="bfloat16") for row in found.parameters))


def _by_muon(recipe: Recipe) -> set[str]:
    if recipe.optim.rule != "muon":
        return set()
    theirs = set(orthogonal(recipe))
    return {name for link in links(recipe) if link.theirs in theirs for name in link.ours}

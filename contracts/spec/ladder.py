"""The ladder: recipes from the one that a case was written with down to a dense transformer.

Few stacks have every block, and what a case is about is seldom a recurrent block or a balance loss. So a case that asks
about a whole model can be asked on leaner recipes too. A rung keeps sizes, optimizer, schedule, batch, dtype and
embeddings, and whatever the case needs; blocks and features beyond its own it leaves behind, and in 16 bits widths of
experts that no grouped product takes.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from contracts.spec.errors import Refused
from contracts.spec.needs import features
from contracts.spec.recipe import Moe, Recipe


def _hybrid(recipe: Recipe) -> Recipe:
    return replace(_pairs(recipe), pattern="AEME", qk_norm=False)


def _pairs(recipe: Recipe) -> Recipe:
    depth = 4 + 2 * (recipe.depth % 2)  # whole pairs, and still another depth for a recipe with one layer more
    leaner = replace(recipe, pattern="AE", depth=depth, mla=None, dsa=None, mhc=None, mtp=None, parallel_ssm=None,
                     biases=())  # fmt: skip
    return replace(leaner, activation="swiglu", moe=_experts(recipe.moe, narrow=recipe.dtype == "fp32"))


def _dense(recipe: Recipe) -> Recipe:
    return replace(_pairs(recipe), moe=None)


def _plain(recipe: Recipe) -> Recipe:
    return replace(_dense(recipe), qk_norm=False)


def _experts(moe: Moe | None, *, narrow: bool) -> Moe | None:
    """Experts after a softmax, as in Mixtral: no shared expert, no auxiliary loss, no tokens dropped. Unless they may
    be `narrow` they are a multiple of 8 wide: rows of 16 bytes are what a grouped product in 16 bits takes.
    """
    if moe is None:
        return None
    wide = moe.expert_hidden if narrow else max(moe.expert_hidden // 8 * 8, 8)
    return Moe(experts=moe.experts, top_k=moe.top_k, expert_hidden=wide, shared_hidden=0, aux_loss=0.0)


RUNGS: Mapping[str, Callable[[Recipe], Recipe]] = {
    "hybrid": _hybrid, "pairs": _pairs, "dense": _dense, "plain": _plain,
}  # fmt: skip
"""From rich to lean. hybrid: attention, Mamba and experts, as in Granite 4. pairs: attention and experts. dense:
attention and MLPs. plain: these without a norm on queries and keys, as in Llama."""

_INSTEAD = frozenset({"gqa", "mlp", "softmax", "swiglu"})
"""What a rung has in place of richer kinds."""
_FIELDS: Mapping[str, str] = {
    "prediction-heads": "mtp",
    "hyper-connections": "mhc",
    "parallel-ssm": "parallel_ssm",
    "mla": "mla",
    "dsa": "dsa",
    "qk-norm": "qk_norm",
    "relu2": "activation",
    "shared-expert": "moe.shared_hidden",
    "sigmoid": "moe.score",
    "selection-bias": "moe.selection_bias",
    "route-scale": "moe.route_scale",
    "balance-loss": "moe.aux_loss",
    "z-loss": "moe.z_loss",
    **dict.fromkeys(("attention-bias", "mlp-bias", "expert-bias", "router-bias"), "biases"),
    "capacity": "moe.capacity_factor",
}
"""Feature → the field that holds it, of what a rung would leave behind."""


def rungs(recipe: Recipe, needs: frozenset[str], *, sheds: frozenset[str] = frozenset()) -> dict[str, Recipe]:
    """The leaner recipes on which a case with these needs still has its subject, richest first.

    `sheds` are the features that a case has beside its recipe and that every rung leaves behind. A rung that needs no
    less than a richer one is none, and a pattern that is cut into pipeline stages has none.
    """
    found: dict[str, Recipe] = {}
    if "|" in recipe.pattern:
        return found
    own = features(recipe)
    seen = [own | sheds]
    for name in RUNGS:
        if name == "pairs" and recipe.moe is None:
            continue
        try:
            made = stepped_down(recipe, name, needs)
        except Refused:  # sparse attention in layers that a rung does not have, say
            continue
        needed = features(made)
        if needs & own <= needed < seen[0] | _INSTEAD and needed not in seen:
            found[name] = made
            seen.append(needed)
    return found


@cache  # contracts are written with the same few recipes, and every recipe made is checked in all its relations
def stepped_down(recipe: Recipe, rung: str, needs: frozenset[str] = frozenset()) -> Recipe:
    """A recipe on a rung, with what a case needs of it.

    Raises:
        Refused: when the two do not go together.
    """
    made = RUNGS[rung](recipe)
    kept: dict[str, Any] = {}
    routed: dict[str, Any] = {}
    for field in (field for feature, field in _FIELDS.items() if feature in needs):
        part, _, name = field.rpartition(".")
        if not part:
            kept[name] = getattr(recipe, name)
        elif recipe.moe is not None:
            routed[name] = getattr(recipe.moe, name)
    if made.moe is not None:
        kept["moe"] = replace(made.moe, **routed)
    return replace(made, name=f"{recipe.name}@{rung}", **kept)


def rung_of(recipe: Recipe) -> str:
    """The rung that a recipe stands on; empty for one that a case was written with."""
    return recipe.name.partition("@")[2]

"""The ladder: recipes from the one that a case was written with down to a dense transformer.

Few stacks have every block, and what a case is about is seldom a recurrent block or a balance loss. So a case that asks
about a whole model can be asked on leaner recipes too. A rung keeps everything that is no baggage: sizes, optimizer,
schedule, batch, embeddings, prediction heads, residual streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from contracts.spec.needs import features
from contracts.spec.recipe import Moe, Recipe


def _experts(moe: Moe | None) -> Moe | None:
    """Experts behind a softmax, as in Mixtral: no shared expert, no auxiliary loss, no tokens dropped."""
    if moe is None:
        return None
    return Moe(experts=moe.experts, top_k=moe.top_k, expert_hidden=moe.expert_hidden, shared_hidden=0, aux_loss=0.0)


def _hybrid(recipe: Recipe) -> Recipe:
    return replace(
        recipe,
        pattern="AEME",
        depth=4,
        mla=None,
        dsa=None,
        qk_norm=False,
        activation="swiglu",
        moe=_experts(recipe.moe),
    )


def _pairs(recipe: Recipe) -> Recipe:
    return replace(recipe, pattern="AE", depth=4, mla=None, dsa=None, activation="swiglu", moe=_experts(recipe.moe))


def _dense(recipe: Recipe) -> Recipe:
    return replace(_pairs(recipe), moe=None)


RUNGS: Mapping[str, Callable[[Recipe], Recipe]] = {"hybrid": _hybrid, "pairs": _pairs, "dense": _dense}
"""From rich to lean. hybrid: attention, Mamba and experts, as in Granite 4. pairs: attention and experts. dense:
attention and MLPs."""


def rungs(recipe: Recipe, needs: frozenset[str], *, sheds: frozenset[str] = frozenset()) -> dict[str, Recipe]:
    """The leaner recipes on which a case with these needs still has its subject, richest first.

    `sheds` are the features that a case has beside its recipe and that every rung leaves behind. A rung that needs as
    much as a richer one is none, and a pattern that is cut into pipeline stages has none.
    """
    found: dict[str, Recipe] = {}
    if "|" in recipe.pattern:
        return found
    seen = [features(recipe) | sheds]
    for name, leaner in RUNGS.items():
        if name == "pairs" and recipe.moe is None:
            continue
        made = replace(leaner(recipe), name=f"{recipe.name}@{name}")
        needed = features(made)
        if needs <= needed < seen[0] | {"swiglu", "softmax", "mlp"} and needed not in seen:
            found[name] = made
            seen.append(needed)
    return found


def rung_of(recipe: Recipe) -> str:
    """The rung that a recipe stands on; empty for one that a case was written with."""
    return recipe.name.partition("@")[2]

"""Token-choice mixture of experts, one token and one expert at a time.

Top-k gating: arXiv 1701.06538, section 2.1. Sigmoid gates, the selection bias and the sequence-wise
balance loss: arXiv 2412.19437, eq. 12-20. z loss: arXiv 2202.08906, eq. 5. Conventions and names: spec/blocks.py.

B sequences · T tokens · K experts a token · E experts · D hidden · F inner width
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from contracts.spec import Moe, Recipe


class Routed(NamedTuple):
    """What a mixture of experts computes for a batch. The K slots of a token are in the order of expert numbers."""

    y_BTD: Tensor
    experts_BTK: Tensor
    gates_BTK: Tensor
    dropped_BTK: Tensor
    counts_E: Tensor
    aux: Tensor
    z: Tensor


def block(
    recipe: Recipe, weights: Mapping[str, Tensor], x_BTD: Tensor, *, by_score: bool = False, pooled: bool = False
) -> Routed:
    """The E block, norm included: weights by their names in spec/blocks.py, in the dtype of `x_BTD`.

    The balance loss counts the experts chosen with the bias, or, with `by_score`, those chosen without it. It is over
    each sequence, or, where `pooled`, over all tokens at once.
    """
    moe = recipe.moe
    assert moe is not None
    batch, length, _ = x_BTD.shape
    normed_BTD = _norm(x_BTD, weights["norm.weight"], recipe.norm_eps)
    logits_BTE = normed_BTD @ weights["mixer.router.weight"].T
    if "router" in recipe.biases:
        logits_BTE = logits_BTE + weights["mixer.router.logit_bias"]
    bias_E = weights.get("mixer.router.bias", torch.zeros(moe.experts, dtype=x_BTD.dtype))
    taken, slots = [0] * moe.experts, _slots(moe, batch * length)
    rows, chosen, weighed_by, gates, dropped = [], [], [], [], []
    for logits_E in logits_BTE.flatten(0, 1):
        experts = _choose(moe, logits_E, bias_E)
        dropped.append([taken[expert] >= slots for expert in experts])
        for expert in experts:
            taken[expert] += 1
        chosen.append(experts)
        weighed_by.append(_choose(moe, logits_E, torch.zeros_like(bias_E)) if by_score else experts)
        gates.append(_gates(moe, logits_E, experts))
    if moe.drop_policy == "probs":
        dropped = _faintest(chosen, gates, slots)
    for x_D, *slot in zip(normed_BTD.flatten(0, 1), chosen, gates, dropped, strict=True):
        rows.append(_token(recipe, weights, x_D, [(*each,) for each in zip(*slot, strict=True)]))
    shape = (batch, length, moe.top_k)
    experts_BTK = torch.tensor(chosen, dtype=torch.int64).reshape(shape)
    balanced = torch.tensor(weighed_by, dtype=torch.int64).reshape(shape), logits_BTE
    counted_BTK, judged_BTE = (each.flatten(0, 1)[None] if pooled else each for each in balanced)
    return Routed(
        y_BTD=torch.stack(rows).reshape(x_BTD.shape) if rows else torch.zeros_like(x_BTD),
        experts_BTK=experts_BTK,
        gates_BTK=torch.cat([x_BTD.new_zeros(0), *gates]).reshape(shape),
        dropped_BTK=torch.tensor(dropped, dtype=torch.bool).reshape(shape),
        counts_E=torch.tensor(taken, dtype=torch.int64),
        aux=balance_loss(moe, judged_BTE, counted_BTK),
        z=z_loss(logits_BTE),
    )


def _faintest(chosen: list[list[int]], gates: list[Tensor], slots: float) -> list[list[bool]]:
    """Which assignments have as many of their expert before them as it has slots, the greatest gate first."""
    rivals: dict[int, list[float]] = {}
    for experts, weighed in zip(chosen, gates, strict=True):
        for expert, gate in zip(experts, weighed.tolist(), strict=True):
            rivals.setdefault(expert, []).append(gate)
    return [
        [sum(other > gate for other in rivals[expert]) >= slots
         for expert, gate in zip(experts, weighed.tolist(), strict=True)]
        for experts, weighed in zip(chosen, gates, strict=True)
    ]  # fmt: skip


def _token(recipe: Recipe, weights: Mapping[str, Tensor], x_D: Tensor, slots: list[tuple[int, Tensor, bool]]) -> Tensor:
    """The output for one normed token: gate times expert for each slot that was not dropped, plus the shared expert."""
    assert recipe.moe is not None
    y_D = torch.zeros_like(x_D)
    for expert, gate, dropped in slots:
        if not dropped:
            y_D = y_D + gate * _mlp(recipe, _of_expert(weights, expert), x_D)
    return y_D + _mlp(recipe, _of_shared(weights), x_D) if recipe.moe.shared_hidden else y_D


def balance_loss(moe: Moe, logits_BTE: Tensor, experts_BTK: Tensor) -> Tensor:
    """The mean over sequences of E · Σ f · P: f is an expert's share of the assignments, P its mean probability."""
    losses = []
    for logits_TE, experts_TK in zip(logits_BTE, experts_BTK, strict=True):
        asked = experts_TK.flatten().tolist()
        loss = logits_BTE.new_zeros(())
        probability_TE = [_probabilities(moe, logits_E) for logits_E in logits_TE]
        for expert in range(moe.experts if asked else 0):
            part = asked.count(expert) / len(asked)
            mean = torch.stack([each_E[expert] for each_E in probability_TE]).mean()
            loss = loss + moe.experts * part * mean
        losses.append(loss)
    return torch.stack(losses).mean()


def z_loss(logits_BTE: Tensor) -> Tensor:
    """The mean over tokens of logsumexp(logits)²."""
    tokens = logits_BTE.reshape(-1, logits_BTE.shape[-1])
    if not len(tokens):
        return logits_BTE.new_zeros(())
    return torch.stack([torch.log(torch.exp(each).sum()) ** 2 for each in tokens]).mean()


def _choose(moe: Moe, logits_E: Tensor, bias_E: Tensor) -> list[int]:
    """The k experts with the largest score plus bias, sorted by number; with groups, of those whose two best add up to
    most."""
    score_E = (torch.sigmoid(logits_E) + bias_E) if moe.score == "sigmoid" else logits_E
    scores = score_E.tolist()
    number, chosen = moe.groups or (1, 1)
    size = moe.experts // number
    groups = [range(group * size, (group + 1) * size) for group in range(number)]
    best = sorted(groups, key=lambda group: -sum(sorted((scores[expert] for expert in group), reverse=True)[:2]))
    ranked = sorted((expert for group in best[:chosen] for expert in group), key=lambda expert: -scores[expert])
    return sorted(ranked[: moe.top_k])


def _gates(moe: Moe, logits_E: Tensor, experts: list[int]) -> Tensor:
    chosen = [logits_E[expert] for expert in experts]
    if moe.score == "softmax":  # of one expert the share is of all, or it would be 1
        among = chosen if moe.top_k > 1 else list(logits_E)
        raw = torch.stack([torch.exp(each - max(among).detach()) for each in chosen])
        return moe.route_scale * raw / sum(torch.exp(each - max(among).detach()) for each in among)
    raw = torch.stack([1 / (1 + torch.exp(-each)) for each in chosen])
    return moe.route_scale * (raw if moe.top_k == 1 else raw / raw.sum())


def _probabilities(moe: Moe, logits_E: Tensor) -> Tensor:
    raw_E = torch.exp(logits_E) if moe.score == "softmax" else 1 / (1 + torch.exp(-logits_E))
    return raw_E / raw_E.sum()


def _slots(moe: Moe, tokens: int) -> float:
    """How many tokens an expert accepts in a call."""
    if moe.capacity_factor is None:
        return math.inf
    return math.ceil(moe.capacity_factor * tokens * moe.top_k / moe.experts)


def _of_expert(weights: Mapping[str, Tensor], expert: int) -> dict[str, Tensor]:
    names = [name for name in ("w1", "w2", "w3", "b1", "b2", "b3") if f"mixer.experts.{name}" in weights]
    return {name: weights[f"mixer.experts.{name}"][expert] for name in names}


def _of_shared(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    names = [name for name in ("w1", "w2", "w3") if f"mixer.shared.{name}.weight" in weights]
    return {name: weights[f"mixer.shared.{name}.weight"] for name in names}


def _mlp(recipe: Recipe, held: Mapping[str, Tensor], x_D: Tensor) -> Tensor:
    up_F = held["w1"] @ x_D + held.get("b1", 0)
    if recipe.activation == "relu2":
        inner_F = torch.clamp(up_F, min=0) ** 2
    else:
        inner_F = up_F * torch.sigmoid(up_F) * (held["w3"] @ x_D + held.get("b3", 0))
    return held["w2"] @ inner_F + held.get("b2", 0)


def _norm(x_BTD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    return x_BTD / torch.sqrt((x_BTD**2).mean(-1, keepdim=True) + eps) * weight_D

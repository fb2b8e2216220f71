"""Inputs of the checks on routing and experts: drawn blocks, and blocks whose answer can be read off by eye.

In a labelled block, token n of a call is one-hot in element n, and nothing is rounded: the norm leaves it unchanged,
the router gives it the logits of the case, expert e writes the token's label n + 1 to element e, and the shared expert
writes the label to the last element. Experts are gated by silu, which all stacks have; silu(64) is 64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import TYPE_CHECKING, Literal

from contracts.instruments import fixtures, numerics, oracles
from contracts.law._support.late import torch
from contracts.law._support.recipes import E_LAYER, SMALL
from contracts.spec import (
    BFLOAT16,
    FLOAT32,
    FLOAT64,
    Array,
    Biased,
    BlockCall,
    BlockRun,
    Element,
    Moe,
    Recipe,
    Shape,
    Tolerance,
)

if TYPE_CHECKING:
    from torch import Tensor

    from contracts.instruments.oracles.experts import Routed

SOFTMAX = Moe(experts=12, top_k=3, expert_hidden=20, shared_hidden=28, z_loss=1e-3)
SIGMOID = replace(SOFTMAX, score="sigmoid", selection_bias=True, route_scale=2.5)

PLAIN, PLAIN_SIGMOID = (replace(each, aux_loss=0.0, z_loss=0.0) for each in (SOFTMAX, SIGMOID))
"""Without auxiliary losses, for contracts that are not about them: not every stack has a balance loss."""

TOLERANCE: Mapping[Element, Tolerance] = {"float64": FLOAT64, "float32": FLOAT32, "bfloat16": BFLOAT16}

WIDE = replace(SMALL, hidden=64, norm_eps=1e-30)
"""√hidden is 8: a vector with one element of 8 has mean square 1, and the norm leaves it unchanged in bfloat16 too."""

Activation = Literal["relu2", "swiglu"]
Logits = Sequence[Sequence[Sequence[float]]]

Routes = Sequence[Sequence[tuple[int, ...]]]
"""For each sequence, the experts of each token; their gates are in the ratio 1 : 2 : 3 : …"""

ROUTED = replace(PLAIN, shared_hidden=0)

MIXED: Routes = (
    ((0, 1, 11), (11, 10, 2), (3, 0, 9), (5, 4, 10)),
    ((2, 11, 0), (1, 8, 3), (10, 11, 9), (7, 5, 1)),
)  # expert 6 has no token
CROWD: Routes = (((11, 0, 5), (5, 11, 0), (11, 0, 5)),) * 3
IDLE_ENDS: Routes = (((1, 4, 2), (4, 1, 3)), ((2, 3, 8), (8, 1, 2)), ((3, 8, 4), (2, 3, 1)))


def with_moe(moe: Moe, activation: Activation = "relu2", biases: tuple[Biased, ...] = ()) -> Recipe:
    """The small recipe with these experts."""
    return replace(SMALL, moe=moe, activation=activation, biases=biases)


def shapes(recipe: Recipe) -> dict[str, Shape]:
    """The weights of an E block, as in spec/blocks.py."""
    moe = experts_of(recipe)
    gated, hidden, inner, shared = recipe.activation == "swiglu", recipe.hidden, moe.expert_hidden, moe.shared_hidden
    found: dict[str, tuple[int, ...]] = {"norm.weight": (hidden,), "mixer.router.weight": (moe.experts, hidden)}
    found |= {"mixer.router.bias": (moe.experts,)} if moe.selection_bias else {}
    for name in ("w1", "w3") if gated else ("w1",):
        found[f"mixer.experts.{name}"] = (moe.experts, inner, hidden)
        found |= {f"mixer.shared.{name}.weight": (shared, hidden)} if shared else {}
        found |= {f"mixer.experts.b{name[1]}": (moe.experts, inner)} if "experts" in recipe.biases else {}
    found |= {"mixer.experts.b2": (moe.experts, hidden)} if "experts" in recipe.biases else {}
    found |= {"mixer.router.logit_bias": (moe.experts,)} if "router" in recipe.biases else {}
    found["mixer.experts.w2"] = (moe.experts, hidden, inner)
    found |= {"mixer.shared.w2.weight": (hidden, shared)} if shared else {}
    return {name: Shape(dtype="float64", shape=shape) for name, shape in found.items()}


def call_of(
    recipe: Recipe, weights: Mapping[str, Tensor], x_BTD: Tensor, dy_BTD: Tensor | None, dtype: Element = "float64"
) -> BlockCall:
    """A call whose activations have the given dtype, and whose weights have the dtype that parameters then have."""
    held = torch.float64 if dtype == "float64" else torch.float32
    array, activations = numerics.array, getattr(torch, dtype)
    return BlockCall(
        recipe=recipe,
        layer=E_LAYER,
        weights=fixtures.as_arrays(weights, held),
        x=array(x_BTD.to(activations)),
        dy=None if dy_BTD is None else array(dy_BTD.to(activations)),
    )


def drawn_call(recipe: Recipe, batch: int, length: int, dtype: Element = "float64", seed: int = 0) -> BlockCall:
    """A call with drawn weights, tokens and upstream gradient."""
    shape = (batch, length, recipe.hidden)
    normal = fixtures.normal
    weights = fixtures.weights(shapes(recipe), seed=seed)
    return call_of(recipe, weights, normal("x", shape, seed=seed), normal("dy", shape, seed=seed), dtype)


@dataclass(frozen=True, kw_only=True)
class OracleAnswer:
    """The oracle's answer to a call, in float64, from the call's own rounded numbers."""

    routed: Routed
    gradients: Mapping[str, Tensor]


def oracle_answer(call: BlockCall, *, by_score: bool = False, over: str = "sequence") -> OracleAnswer:
    """The oracle's answer, with the gradients of <y, dy> plus the weighted losses. One call is one microbatch, so a
    balance loss that is not `over` sequences is over all of its tokens.
    """
    moe = experts_of(call.recipe)
    leaves = numerics.tensors(call.weights, torch.float64) | {"x": numerics.tensor(call.x, torch.float64)}
    trained = {name: each.requires_grad_() for name, each in leaves.items() if not name.endswith("router.bias")}
    pooled = over != "sequence"
    routed = oracles.experts.block(call.recipe, leaves, leaves["x"], by_score=by_score, pooled=pooled)
    objective = moe.aux_loss * routed.aux + moe.z_loss * routed.z
    if call.dy is not None:
        objective = objective + (routed.y_BTD * numerics.tensor(call.dy, torch.float64)).sum()
    found = torch.autograd.grad(objective, list(trained.values()), allow_unused=True)
    pairs = zip(trained.items(), found, strict=True)
    gradients = {name: torch.zeros_like(leaf) if grad is None else grad for (name, leaf), grad in pairs}
    return OracleAnswer(routed=type(routed)(*(each.detach() for each in routed)), gradients=gradients)


def oracle_difference(call: BlockCall, words_of: Callable[[OracleAnswer], str], *, over: str = "sequence") -> str:
    """How an answer differs from the oracle's, in words. If a balance loss has two legal definitions, it must differ
    from both.

    Its source counts the experts with the largest scores without the bias (arXiv 2412.19437, eq. 18), and so do some
    stacks; others count the experts that tokens go to.
    """
    found = words_of(oracle_answer(call, over=over))
    either = experts_of(call.recipe).selection_bias
    return "" if found and either and not words_of(oracle_answer(call, by_score=True, over=over)) else found


def reported_losses(call: BlockCall, run: BlockRun, want: OracleAnswer) -> dict[str, Tensor]:
    """The losses that a block must report: those with a weight, and those without one that it reports anyway."""
    moe = experts_of(call.recipe)
    rows = (("aux", moe.aux_loss, want.routed.aux), ("z", moe.z_loss, want.routed.z))
    return {name: value for name, weight, value in rows if weight or name in run.losses}


def labelled_call(
    moe: Moe, logits: Logits, *, bias: Sequence[float] | None = None, dtype: Element = "float64", backward: bool = False
) -> BlockCall:
    """A labelled call: `logits` has a row of tokens per sequence, and for each token the logits of its experts."""
    recipe = replace(
        WIDE, activation="swiglu", moe=replace(moe, expert_hidden=64, shared_hidden=64 if moe.shared_hidden else 0)
    )
    logits_BTE = torch.tensor(logits, dtype=torch.float64)
    count, eye = logits_BTE.shape[0] * logits_BTE.shape[1], torch.eye(64, dtype=torch.float64)
    label_D = torch.arange(1, 65, dtype=torch.float64)
    router_ED = torch.zeros(moe.experts, 64, dtype=torch.float64)
    router_ED[:, :count] = logits_BTE.flatten(0, 1).T / 8
    w2_EDF = torch.zeros(moe.experts, 64, 64, dtype=torch.float64)
    w2_EDF[torch.arange(moe.experts), torch.arange(moe.experts)] = label_D
    weights = {
        "norm.weight": torch.ones(64),
        "mixer.router.weight": router_ED,
        "mixer.experts.w1": (8 * eye).expand(moe.experts, 64, 64),  # 64, times 1 / 64
        "mixer.experts.w3": (eye / 512).expand(moe.experts, 64, 64),
        "mixer.experts.w2": w2_EDF,
    }
    if moe.selection_bias:
        weights["mixer.router.bias"] = torch.tensor(bias or [0.0] * moe.experts)
    if moe.shared_hidden:
        weights["mixer.shared.w1.weight"] = 8 * eye
        weights["mixer.shared.w3.weight"] = eye / 512
        weights["mixer.shared.w2.weight"] = eye[63:].T * label_D
    x_BTD = 8 * eye[:count].reshape(*logits_BTE.shape[:2], 64)
    dy_D = 1 + torch.arange(64, dtype=torch.float64) % 4 / 4  # with equal values a router would have nothing to learn
    return call_of(recipe, weights, x_BTD, dy_D.expand(x_BTD.shape) if backward else None, dtype)


def gates_of(moe: Moe, *, rounded: bool = False) -> tuple[float, ...]:
    """Gates of a labelled token's experts, in order, in the ratio 1 : 2 : 3 : …

    With `rounded` they follow from logits in bfloat16, which has steps of 1/8 from 16 to 32: 20 + log 2 is 20.75.
    """
    weights = [exp(round(8 * log(slot + 1)) / 8) if rounded else slot + 1 for slot in range(moe.top_k)]
    return tuple(each / sum(weights) for each in weights)


def routed_call(moe: Moe, routes: Routes, dtype: Element, *, backward: bool = False) -> BlockCall:
    """A labelled call whose tokens are routed as `routes` says."""

    def logits(experts: tuple[int, ...]) -> list[float]:
        found = {expert: 20 + log(slot + 1) for slot, expert in enumerate(experts)}
        return [found.get(expert, 0.0) for expert in range(moe.experts)]

    return labelled_call(moe, [[logits(experts) for experts in row] for row in routes], dtype=dtype, backward=backward)


def rows(value: Array) -> list[list[list[float]]]:
    """The numbers of a (B, T, n) tensor."""
    found: list[list[list[float]]] = numerics.tensor(value).tolist()
    return found


def experts_of(recipe: Recipe) -> Moe:
    """The experts of a recipe that has some."""
    assert recipe.moe is not None
    return recipe.moe

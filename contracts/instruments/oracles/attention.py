"""Attention by its papers, one token and one head at a time.

    T tokens of one row · D hidden · d elements of a head

Every function takes float64 tensors and the canonical weights of `spec/blocks.py`, and is differentiable.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from contracts.spec import Recipe

Weights = Mapping[str, Tensor]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dim, arXiv 1910.07467."""
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    """A product with the matrix of a layer, plus its bias if it has one."""
    bias = weights.get(f"{name}.bias")
    product = x @ weights[f"{name}.weight"].T
    return product if bias is None else product + bias


def angles(position: int, theta: float, half: int) -> list[float]:
    """The angle of each pair: position · theta^(-2j/d). arXiv 2104.09864 section 3.4.2."""
    return [position * theta ** (-2 * j / (2 * half)) for j in range(half)]


def float32_angles(position: int, theta: float, half: int) -> list[float]:
    """The same in float32, as stacks write it: 1 / theta^(2j/d), rounded, times the position, rounded."""
    frequency = 1.0 / theta ** (torch.arange(0, 2 * half, 2, dtype=torch.float32) / (2 * half))
    return [float(each) for each in position * frequency]


def rotated(
    x: Tensor, position: int, theta: float, angles: Callable[[int, float, int], list[float]] = angles
) -> Tensor:
    """Rope on one vector: pair (j, j + d/2) turned by its angle."""
    half = x.shape[-1] // 2
    angle = angles(position, theta, half)
    cos, sin = (x.new_tensor([of(each) for each in angle]) for of in (math.cos, math.sin))
    return torch.cat((x[:half] * cos - x[half:] * sin, x[half:] * cos + x[:half] * sin))


def softmax_mean(query_d: Tensor, keys_Sd: Tensor, values_Sv: Tensor, scale: float) -> Tensor:
    """The mean of values, weighted by exp(scale · query · key)."""
    scores_S = scale * (keys_Sd @ query_d)
    weights_S = torch.exp(scores_S - scores_S.max())
    return weights_S @ values_Sv / weights_S.sum()


def positions(documents_T: Tensor | None, length: int) -> tuple[list[list[int]], list[int]]:
    """For each token, the tokens of its document up to itself, and its position in the document."""
    numbers = [0] * length if documents_T is None else documents_T.tolist()
    seen = [[s for s in range(t + 1) if numbers[s] == numbers[t]] for t in range(length)]
    return seen, [len(before) - 1 for before in seen]


def grouped(
    recipe: Recipe, weights: Weights, x_TD: Tensor, documents_T: Tensor | None = None, *,
    rows: range | None = None, angles: Callable[[int, float, int], list[float]] = angles,
) -> Tensor:  # fmt: skip
    """One row through a GQA block: (T, D), or the tokens in `rows`. arXiv 2305.13245; QK norm, 2302.05442 section 2.

    Raises KeyError for a weight that is missing.
    """
    heads, groups, d = recipe.heads, recipe.kv_groups, recipe.hidden // recipe.heads
    seen, position = positions(documents_T, len(x_TD))
    h_TD = rms_norm(x_TD, weights["norm.weight"], recipe.norm_eps)
    q, k, v = (linear(weights, f"mixer.{name}", h_TD) for name in ("wq", "wk", "wv"))

    def placed(x: Tensor, name: str, head: int, tokens: range) -> Tensor:
        mine = x[:, head * d : (head + 1) * d]
        if recipe.qk_norm:
            mine = rms_norm(mine, weights[f"mixer.{name}_norm.weight"], recipe.norm_eps)
        return torch.stack([rotated(mine[t], position[t], recipe.rope_theta, angles) for t in tokens])

    every = range(len(x_TD))
    asked = rows or every
    out: list[list[Tensor]] = [[] for _ in asked]
    for group in range(groups):
        keys, values = placed(k, "k", group, every), v[:, group * d : (group + 1) * d]
        for head in range(group * heads // groups, (group + 1) * heads // groups):
            queries = placed(q, "q", head, asked)
            for row, t in enumerate(asked):
                out[row].append(softmax_mean(queries[row], keys[seen[t]], values[seen[t]], d**-0.5))
    return torch.stack([linear(weights, "mixer.wo", torch.cat(each)) for each in out])


def latent(
    recipe: Recipe, weights: Weights, x_TD: Tensor, documents_T: Tensor | None = None, *,
    selected_TS: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """One row through an MLA block, with keys and values written out: (T, D). arXiv 2405.04434 section 2.1.

    In a sparse block, `selected_TS` marks the keys of each query.
    """
    mla = recipe.mla
    assert mla is not None, "the recipe has no MLA"
    n, r, width = mla.qk_head, mla.qk_rope, mla.v_head
    seen, position = positions(documents_T, len(x_TD))
    if selected_TS is not None:
        seen = [[s for s in range(len(x_TD)) if bool(selected_TS[t, s])] for t in range(len(x_TD))]
    h_TD, q_latent = query_latent(recipe, weights, x_TD)
    q = q_latent @ weights["mixer.wq_b.weight"].T
    compressed = h_TD @ weights["mixer.wkv_a.weight"].T
    c = rms_norm(compressed[:, : mla.kv_lora], weights["mixer.kv_norm.weight"], recipe.norm_eps)
    shared = [rotated(compressed[s, mla.kv_lora :], position[s], recipe.rope_theta) for s in range(len(x_TD))]
    kv = c @ weights["mixer.wkv_b.weight"].T
    out: list[list[Tensor]] = [[] for _ in range(len(x_TD))]
    for head in range(recipe.heads):
        mine = kv[:, head * (n + width) : (head + 1) * (n + width)]
        keys = torch.stack([torch.cat((mine[s, :n], shared[s])) for s in range(len(x_TD))])
        values = mine[:, n:]
        for t in range(len(x_TD)):
            one = q[t, head * (n + r) : (head + 1) * (n + r)]
            query = torch.cat((one[:n], rotated(one[n:], position[t], recipe.rope_theta)))
            out[t].append(softmax_mean(query, keys[seen[t]], values[seen[t]], (n + r) ** -0.5))
    return torch.stack([torch.cat(each) @ weights["mixer.wo.weight"].T for each in out])


def query_latent(recipe: Recipe, weights: Weights, x_TD: Tensor) -> tuple[Tensor, Tensor]:
    """The normed input of the block, and the normed latent from which queries are projected."""
    h_TD = rms_norm(x_TD, weights["norm.weight"], recipe.norm_eps)
    low = h_TD @ weights["mixer.wq_a.weight"].T
    return h_TD, rms_norm(low, weights["mixer.q_norm.weight"], recipe.norm_eps)


def index_scores(recipe: Recipe, weights: Weights, x_TD: Tensor, documents_T: Tensor | None = None) -> Tensor:
    """(T, T): I_ts = sum over j of w_tj · relu(q_tj · k_s) where t sees s, -inf elsewhere. arXiv 2512.02556 eq. 1."""
    dsa, mla = recipe.dsa, recipe.mla
    assert dsa is not None, "the recipe has no DSA"
    assert mla is not None, "the recipe has no MLA"
    size, plain = dsa.index_head_dim, dsa.index_head_dim - mla.qk_rope
    seen, position = positions(documents_T, len(x_TD))
    h_TD, q_latent = query_latent(recipe, weights, x_TD)
    q, w = q_latent @ weights["mixer.indexer.wq.weight"].T, h_TD @ weights["mixer.indexer.weights.weight"].T
    k = h_TD @ weights["mixer.indexer.wk.weight"].T
    centred = k - k.mean(-1, keepdim=True)
    k = centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + recipe.norm_eps)
    k = k * weights["mixer.indexer.k_norm.weight"] + weights["mixer.indexer.k_norm.bias"]

    def placed(one: Tensor, t: int) -> Tensor:
        return torch.cat((one[:plain], rotated(one[plain:], position[t], recipe.rope_theta)))

    keys = [placed(k[s], s) for s in range(len(x_TD))]
    scores = torch.full((len(x_TD), len(x_TD)), -math.inf, dtype=x_TD.dtype)
    for t in range(len(x_TD)):
        queries = [placed(q[t, j * size : (j + 1) * size], t) for j in range(dsa.index_heads)]
        for s in seen[t]:
            alike = [w[t, j] * torch.relu(torch.dot(queries[j], keys[s])) for j in range(dsa.index_heads)]
            scores[t, s] = torch.stack(alike).sum()
    return scores


def selection(scores_TS: Tensor, top_k: int) -> Tensor:
    """(T, T) bool: the `top_k` highest finite scores of each query, or all if there are fewer."""
    chosen = torch.zeros_like(scores_TS, dtype=torch.bool)
    for t, row in enumerate(scores_TS.tolist()):
        order = sorted((s for s, score in enumerate(row) if score > -math.inf), key=lambda s: -row[s])
        chosen[t, order[:top_k]] = True
    return chosen


def margin(scores_TS: Tensor, top_k: int) -> float:
    """The smallest gap, over queries, between the lowest selected score and the highest score left out."""
    rows = (sorted((score for score in row if score > -math.inf), reverse=True) for row in scores_TS.tolist())
    return min((row[top_k - 1] - row[top_k] for row in rows if len(row) > top_k), default=math.inf)

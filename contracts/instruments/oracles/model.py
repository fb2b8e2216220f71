"""A model of A and dense E layers, one token at a time: residuals, hyper-connections, multi-token prediction, losses.

Hyper-connections: arXiv 2512.24880, section 4. Multi-token prediction: arXiv 2412.19437, section 2.2. Conventions and
names of weights: spec/blocks.py.

T tokens of one row · D hidden · N streams · V vocabulary
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from contracts.instruments.oracles import attention, mamba, mlp
from contracts.spec import Recipe

Weights = Mapping[str, Tensor]
Branch = Callable[[Tensor], Tensor]
IGNORED = -100


def logits(
    recipe: Recipe, letters: str, weights: Weights, tokens_T: Tensor, documents_T: Tensor, *, reads: str = "residual"
) -> list[Tensor]:
    """The logits of one row (T, V): the model's, then those of each prediction depth.

    `reads` is the convention `prediction-input`.
    """
    embedded_TD = weights["embedding.weight"][tokens_T]
    head_VD = weights.get("head.weight", weights["embedding.weight"])
    hidden_TD = trunk(recipe, letters, weights, embedded_TD, documents_T)
    last_TD = normed(recipe, hidden_TD, weights["norm.weight"])
    found = [last_TD @ head_VD.T]
    for depth in range(recipe.mtp.depth if recipe.mtp else 0):
        mine = with_prefix(weights, f"mtp.{depth}.")
        below_TD = last_TD if reads == "normed" else hidden_TD
        hidden_TD = look_ahead(recipe, mine, below_TD, embedded_TD, documents_T, depth + 1)
        last_TD = normed(recipe, hidden_TD, mine["norm.weight"])
        found.append(last_TD @ head_VD.T)
    return found


def trunk(recipe: Recipe, letters: str, weights: Weights, x_TD: Tensor, documents_T: Tensor) -> Tensor:
    """The residual stream after the last layer, or the mean of the streams."""
    number = recipe.mhc.streams if recipe.mhc else 1
    streams = [x_TD] * number
    for layer, letter in enumerate(letters):
        mine = with_prefix(weights, f"layers.{layer}.")
        branch = branch_of(recipe, letter, mine, documents_T)
        if recipe.mhc and letter == "A":
            streams = connected(recipe, mine, streams, branch)
        else:
            y_TD = branch(torch.stack(streams).mean(0))
            streams = [each + y_TD for each in streams]
    return torch.stack(streams).mean(0)


def branch_of(recipe: Recipe, letter: str, weights: Weights, documents_T: Tensor) -> Branch:
    """A block without its residual, including its norm."""
    if letter == "A" and recipe.parallel_ssm is not None:
        return lambda x_TD: side_by_side(recipe, weights, x_TD[None], documents_T[None]).y_BTD[0]
    if letter == "A":
        attends = attention.grouped if recipe.mla is None else attention.latent
        return lambda x_TD: attends(recipe, weights, x_TD, documents_T)
    return lambda x_TD: mlp.dense(recipe, weights, x_TD)


def side_by_side(
    recipe: Recipe, weights: Weights, x_BTD: Tensor, documents_BT: Tensor, state: Weights | None = None
) -> mamba.Found:
    """Attention and Mamba-2 (Mamba-3 if there are its weights), each a block of its own under the same norm, weighed
    and added up: Falcon-H1, arXiv 2507.22448 section 2.1. The state is Mamba's.
    """
    scales, norm = recipe.parallel_ssm, {"norm.weight": weights["norm.weight"]}
    assert scales is not None
    of_attention, of_scan = (
        norm | {f"mixer.{name}": each for name, each in with_prefix(weights, f"mixer.{branch}.").items()}
        for branch in ("attention", "ssm")
    )
    attends = attention.grouped if recipe.mla is None else attention.latent
    attended = [attends(recipe, of_attention, *row) for row in zip(x_BTD, documents_BT, strict=True)]
    scans = mamba.mamba2 if "mixer.A_log" in of_scan else mamba.mamba3
    scanned = scans(recipe, of_scan, x_BTD, documents_BT, state)
    y_BTD = torch.stack(attended) * scales.attention_scale + scanned.y_BTD * scales.ssm_scale
    return mamba.Found(y_BTD, scanned.state)


def connected(recipe: Recipe, weights: Weights, streams: list[Tensor], branch: Branch) -> list[Tensor]:
    """The streams after a layer with hyper-connections: S' = H_res S + h_post branch(h_pre S), token by token."""
    n, tokens = len(streams), len(streams[0])
    maps = [maps_of(recipe, weights, torch.cat([stream[t] for stream in streams])) for t in range(tokens)]
    read = [sum((maps[t][i] * streams[i][t] for i in range(n)), torch.zeros(())) for t in range(tokens)]
    y_TD = branch(torch.stack([torch.as_tensor(each) for each in read]))
    behind: list[list[Tensor]] = [[] for _ in range(n)]
    for t in range(tokens):
        mixing = doubly_stochastic(maps[t][2 * n :].reshape(n, n))
        post = maps[t][n : 2 * n]
        for i in range(n):
            kept = torch.stack([mixing[i, j] * streams[j][t] for j in range(n)]).sum(0)
            behind[i].append(kept + post[i] * y_TD[t])
    return [torch.stack(each) for each in behind]


def maps_of(recipe: Recipe, weights: Weights, flat: Tensor) -> Tensor:
    """h_pre (n), h_post (n) and the logits of H_res (n²) of one token, from its streams laid end to end."""
    assert recipe.mhc is not None
    n = recipe.mhc.streams
    projected = weights["streams.phi.weight"] @ (flat / torch.sqrt((flat * flat).mean() + recipe.norm_eps))
    pre, post, res = projected[:n], projected[n : 2 * n], projected[2 * n :]
    alpha, bias = weights["streams.alpha"], weights["streams.bias"]
    reading = 1 / (1 + torch.exp(-(alpha[0] * pre + bias[:n])))
    writing = 2 / (1 + torch.exp(-(alpha[1] * post + bias[n : 2 * n])))
    return torch.cat((reading, writing, alpha[2] * res + bias[2 * n :]))


def doubly_stochastic(logits_NN: Tensor, rounds: int = 40) -> Tensor:
    """Sinkhorn's limit: rows and columns are divided by their sums in turn until nothing changes."""
    matrix = torch.exp(logits_NN)
    for _ in range(rounds):
        matrix = matrix / matrix.sum(1, keepdim=True)
        matrix = matrix / matrix.sum(0, keepdim=True)
    return matrix


def look_ahead(
    recipe: Recipe, weights: Weights, hidden_TD: Tensor, embedded_TD: Tensor, documents_T: Tensor, steps: int
) -> Tensor:
    """The hidden state of one depth: the state below and the token `steps` later, through an attention and an MLP."""
    joined = []
    for t in range(len(hidden_TD)):
        token_D = torch.zeros_like(hidden_TD[t])
        if t + steps < len(hidden_TD) and documents_T[t + steps] == documents_T[t]:
            token_D = embedded_TD[t + steps]
        pair = (
            normed(recipe, hidden_TD[t], weights["hidden_norm.weight"]),
            normed(recipe, token_D, weights["token_norm.weight"]),
        )
        joined.append(weights["projection.weight"] @ torch.cat(pair))
    x_TD = torch.stack(joined)
    for letter, name in (("A", "attention."), ("E", "mlp.")):
        x_TD = x_TD + branch_of(recipe, letter, with_prefix(weights, name), documents_T)(x_TD)
    return x_TD


def mean_loss(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Mean cross entropy in nats over the labels that are not -100; 0 if there are none."""
    found = [
        torch.logsumexp(row_V, 0) - row_V[label]
        for row_V, label in zip(logits_BTV.flatten(0, 1), labels_BT.flatten().tolist(), strict=True)
        if label != IGNORED
    ]
    return torch.stack(found).mean() if found else logits_BTV.sum() * 0


def later_labels(labels_BT: Tensor, documents_BT: Tensor, steps: int) -> Tensor:
    """The label `steps` later, or -100 if that is in another document or past the end of the row."""
    found = torch.full_like(labels_BT, IGNORED)
    for b, row in enumerate(documents_BT.tolist()):
        for t in range(len(row) - steps):
            if row[t] == row[t + steps]:
                found[b, t] = labels_BT[b, t + steps]
    return found


def normed(recipe: Recipe, x: Tensor, weight: Tensor) -> Tensor:
    return attention.rms_norm(x, weight, recipe.norm_eps)


def with_prefix(weights: Weights, prefix: str) -> dict[str, Tensor]:
    """The weights whose names start with `prefix`, without the prefix."""
    return {name.removeprefix(prefix): each for name, each in weights.items() if name.startswith(prefix)}

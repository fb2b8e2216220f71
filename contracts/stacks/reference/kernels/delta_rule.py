"""The gated delta rule in chunks (Yang et al., arXiv 2412.06464, section 3.3); spec/delta_rule.py has its definition.

Inside a chunk the values u that are written solve a triangular system, since each is corrected by what earlier tokens
wrote; between chunks only the state is handed on.

B sequences · T tokens · L tokens of a chunk · H heads · n keys · p values
"""

from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 64
EPS = 1e-6


class Chunk(NamedTuple):
    """Some tokens, heads before tokens: q, k (B, H, L, n), v (B, H, L, p), g, beta (B, H, L)."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    document: Tensor  # (B, L)
    before: Tensor  # (B), the document of the state


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None = None,
    *, documents: Tensor, chunk: int = CHUNK, unit_keys: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """y (B, T, H, p) in the dtype of v, and the last state (B, H, n, p); computed in float32 at least."""
    kept = v.dtype
    q, k, v, g, beta = (wide(each).transpose(1, 2) for each in (q, k, v, g, beta))
    if unit_keys:
        q, k = unit(q), unit(k)
    q = q * q.shape[-1] ** -0.5
    if state is None:
        state = v.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
    state, found, before = wide(state), [], documents[:, 0]
    for start in range(0, v.shape[2], chunk):
        here = slice(start, start + chunk)
        part = Chunk(q[:, :, here], k[:, :, here], v[:, :, here], g[:, :, here], beta[:, :, here], documents[:, here],
                     before)  # fmt: skip
        y, state = over(part, state)
        before = part.document[:, -1]
        found.append(y)
    return torch.cat(found, dim=2).transpose(1, 2).to(kept), state


def over(part: Chunk, state: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs of a chunk, (B, H, L, p), and the state after it."""
    decay = between(part)
    since = since_the_state(part)
    u = written(part, decay, since, state)
    y = since[..., None] * (part.q @ state) + (part.q @ part.k.mT * decay) @ u
    last = decay[..., -1, :, None]
    return y, since[..., -1, None, None] * state + (last * part.k).mT @ u


def between(part: Chunk) -> Tensor:
    """exp(g_{j+1} + … + g_i) for each pair of tokens j <= i of one document, 0 for the others: (B, H, L, L)."""
    total = part.g.cumsum(-1)
    reached = (part.document[:, :, None] == part.document[:, None, :]).tril()
    return (total[..., :, None] - total[..., None, :]).masked_fill(~reached[:, None], -torch.inf).exp()


def since_the_state(part: Chunk) -> Tensor:
    """How much of the state before the chunk each token finds: (B, H, L)."""
    continues = (part.document == part.before[:, None])[:, None]
    return part.g.cumsum(-1).masked_fill(~continues, -torch.inf).exp()


def written(part: Chunk, decay: Tensor, since: Tensor, state: Tensor) -> Tensor:
    """u_i = β_i (v_i - what the state and earlier tokens hold under k_i), (B, H, L, p)."""
    held = part.beta[..., None] * (part.k @ part.k.mT) * decay
    wanted = part.beta[..., None] * (part.v - since[..., None] * (part.k @ state))
    u: Tensor = torch.linalg.solve_triangular(held.tril(-1), wanted, upper=False, unitriangular=True)
    return u


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + EPS)


def wide(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))

"""The question about the gated delta rule, the recurrence of Gated DeltaNet (Yang et al., arXiv 2412.06464, eq. 10).

S_t = exp(g_t) S_{t-1} + k_t u_tᵀ        u_t = β_t (v_t - exp(g_t) S_{t-1}ᵀ k_t)        y_t = n^{-1/2} S_tᵀ q_t

B sequences · T tokens · H heads · n keys · p values. The state S is (B, H, n, p).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from contracts.spec.array import Array, Arrays
from contracts.spec.party import Party


@dataclass(frozen=True, kw_only=True)
class DeltaCall:
    """One pass of the rule forward, and one backward if there is an upstream gradient.

    Args:
        tensors: `q` and `k` (B, T, H, n), `v` (B, T, H, p) and `beta` (B, T, H), in 0 … 1, in the dtype of the
            activations; `g` (B, T, H), at most 0, float32 at least. With `state` (B, H, n, p), float32 at least, the
            rule begins there and not at zero; it belongs to the first token's document.
        dy: (B, T, H, p), gradient of the objective with respect to y; None asks for no gradients.
        dstate: (B, H, n, p), the same with respect to the last state; None is zero.
        unit_keys: whether the rule divides q and k by sqrt(x·x + 1e-6) first, head by head and token by token.
        documents: (B, T) int64, the number of each token's document, rising along T; the state begins at zero in each.
            None means one a row.
        chunk: tokens that are taken at once; None leaves it to the stack.
    """

    tensors: Arrays
    dy: Array | None = None
    dstate: Array | None = None
    unit_keys: bool = False
    documents: Array | None = None
    chunk: int | None = None


@dataclass(frozen=True, kw_only=True)
class DeltaRun:
    """What one pass returned.

    Args:
        y: (B, T, H, p), in the dtype of the activations.
        state: (B, H, n, p) after the last token, float32 at least.
        gradients: of <y, dy> + <state, dstate> with respect to each given tensor, by its name.
    """

    y: Array
    state: Array
    gradients: Mapping[str, Array] = field(default_factory=dict)


class DeltaRule(Party, Protocol):
    """The gated delta rule of a stack, by itself."""

    def run_delta_rule(self, call: DeltaCall) -> DeltaRun:
        """One pass forward, and one backward if `call.dy` is given.

        Raises `NotOffered` for documents, a chunk or a dtype that the stack does not have.
        """
        ...

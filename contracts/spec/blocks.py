"""What is asked about the numbers of one block: its output, its gradients, its state (BLK, MOE).

A block is the branch of the residual stream that a pattern letter names, its norm included and the residual left out:
`y = mixer(norm(x))`. Weights go in and gradients come out under the names below, whatever the stack calls them itself.

    D hidden · H heads · G KV groups · d head_dim · F inner width · E experts · h, p, g, n the `mamba` dims heads,
    head_dim, groups, state. A matrix is (out, in), as torch.nn.Linear has it. Every norm is an RMSNorm in float32
    with the recipe's norm_eps.

    every block   norm.weight (D); the names below begin with `mixer.`
    A             wq.weight (H·d, D), wk.weight and wv.weight (G·d, D), wo.weight (D, H·d);
                  q_norm.weight and k_norm.weight (d) with qk_norm. Scale d^-1/2; query head i reads KV head i // (H/G);
                  QK norm before rope; rope pairs element i with i + d/2 and starts at 0 in each document
    A with MLA    wq_a.weight (q_lora, D), q_norm.weight (q_lora), wq_b.weight (H·(qk_head + qk_rope), q_lora),
                  wkv_a.weight (kv_lora + qk_rope, D), kv_norm.weight (kv_lora), wkv_b.weight (H·(qk_head + v_head),
                  kv_lora), wo.weight (D, H·v_head). A head is [without rope | with rope], [key | value]; scale
                  (qk_head + qk_rope)^-1/2
    A with DSA    and indexer.wq.weight (index_heads·index_head_dim, q_lora) on the normed query latent,
                  indexer.wk.weight (index_head_dim, D), indexer.k_norm.weight and .bias (index_head_dim; LayerNorm),
                  indexer.weights.weight (index_heads, D). A query's score for a key is the sum over index heads j of
                  weights_j(x) · relu(q_j · k), with rope on the last qk_rope elements of q_j and k. Of the keys that a
                  query may see it attends to the top_k with the highest scores, or to all where they are no more.
                  The choice passes no gradient: <y, dy> has none by the indexer's weights
    E             router.weight (E, D), router.bias (E; with selection_bias, a buffer), experts.w1 (E, F, D) and
                  experts.w2 (E, D, F), experts.w3 (E, F, D) with swiglu; shared.w1.weight (S, D), shared.w2.weight
                  (D, S), shared.w3.weight. y = sum over the k chosen of gate · expert(x), plus shared(x); an expert and
                  the shared one are MLPs as below. Scores and gates are float32 at least. Gates: softmax over the k
                  chosen logits, or their sigmoids over the sum of them (k = 1: the sigmoid itself), times route_scale.
                  router.bias is added to the sigmoids to choose experts and for nothing else.
                  aux: E · sum of f · P over experts for each row of B, the mean over rows; f is an expert's part of
                  the row's assignments, or of those that scores without the bias would make (arXiv 2412.19437
                  eq. 18), P the row's mean of scores normalised over all experts, without the bias.
                  z: mean over tokens of logsumexp(logits)².
                  With capacity_factor an expert has ceil(factor · B·T · k / E) slots, which tokens take in their order
                  in (B, T); an assignment without a slot adds nothing and leaves the token's other gates unchanged
    E without MoE w1.weight (ffn, D), w2.weight (D, ffn), w3.weight (ffn, D) with swiglu.
                  relu2: w2 relu(w1 x)²; swiglu: w2 (silu(w1 x) · w3 x)
    M (Mamba-2)   wz.weight and wx.weight (h·p, D), wb.weight and wc.weight (g·n, D), wdt.weight (h, D),
                  conv_x.weight (h·p, 4) and conv_x.bias, conv_b and conv_c alike over g·n; A_log, D, dt_bias (h);
                  out_norm.weight (h·p; over y·silu(z), one norm a group of heads), wo.weight (D, h·p)
    M (Mamba-3)   wz.weight and wx.weight (h·p, D), wb.weight and wc.weight (g·n, D), wdt.weight, wa.weight and
                  wtrap.weight (h, D), wangle.weight (n/4, D); b_norm.weight and c_norm.weight (n; over each group),
                  then b_bias and c_bias (h, n); D, dt_bias (h), wo.weight (D, h·p). A is -softplus(wa x), -1e-4 at
                  most; elements 2i and 2i + 1 of B and C turn by the sum of π tanh(wangle x) dt, for i < n/4; the end
                  of a step weighs sigmoid(wtrap x); y·silu(z) without a norm
    R (M²RNN)     wg.weight and wv.weight (h·p, D), wq.weight and wk.weight (h·n, D), wf.weight (h, D), W (h, p, p),
                  A_log, D, dt_bias (h), out_norm.weight (h·p; over y·silu(g), one norm a group of heads), wo.weight
                  (D, h·p). W multiplies the state from the right: h W

A whole model has `embedding.weight` and `head.weight` (vocab, D; no head when tied), `norm.weight`, and `layers.3.`
before the names of a block. Hyper-connections (arXiv 2512.24880) of n streams stand on A layers: `streams.phi.weight`
(m, n·D) and `streams.bias` (m) with m = 2n + n², and `streams.alpha` (3), in the order reading, writing, H_res row by
row; H_res[i, j] goes from stream j to stream i. Streams begin as copies and end as their mean; a layer without maps
reads their mean and writes 1 to each. Depth k + 1 of multi-token prediction (arXiv 2412.19437 section 2.2): `mtp.k.`
before `hidden_norm.weight`, `token_norm.weight` (D), `projection.weight` (D, 2D; hidden state first, then token),
`norm.weight` (D), and before `attention.` and `mlp.` with the names of a dense A and a dense E block. It reads the
residual stream before the final norm, or that of the depth below. A check that gives weights to a whole model uses
these names; a stack that has others is not asked it.

State: `ssm` (B, h, p, n) and `conv_x`, `conv_b`, `conv_c` (B, channels, 3) for Mamba-2, inputs of the convolution, the
last token's last; `ssm`, `angle` (B, h, n/4; modulo 2π), `k` (B, h, n; normed, biased and turned) and `v` (B, h, p) of
the last token for Mamba-3; `h` (B, h, n, p) for R. A state that is given belongs to the document of the first token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from contracts.spec.array import Array, Arrays, Shape
from contracts.spec.kernel_selection import Kernel, Site, Wish
from contracts.spec.party import Party
from contracts.spec.recipe import Mode, Recipe


@dataclass(frozen=True, kw_only=True)
class BlockCall:
    """One forward pass through one block, and one backward pass if there is an upstream gradient.

    Args:
        recipe: its sizes and features.
        layer: 0-based position in the pattern; it decides the letter and, among attention layers, the A-rank.
        mode: decides the mixer of M: Mamba-2 in nemo_native, Mamba-3 in author_dp.
        weights: every parameter and buffer of the block, by name; their dtype is the parameters' dtype.
        x: (B, T, D), the residual stream before the block's norm. Its dtype is the dtype of the activations.
        dy: (B, T, D), gradient of the objective by y; None asks for no gradients.
        documents: (B, T) int64, the number of each token's document, rising along T; None means one a row.
        state: recurrent state before the first token; empty means zero.
        chunk: tokens a chunk of the scan holds; None leaves it to the stack.
        device: where it runs, as torch names it: `cpu`, `cuda`. The answer's tensors come back to the host.
        kernels: what is asked for at each site (spec/kernel_selection.py); a site that is not named has the stack's
        default.
    """

    recipe: Recipe
    layer: int
    weights: Arrays
    x: Array
    dy: Array | None = None
    mode: Mode = "nemo_native"
    documents: Array | None = None
    state: Arrays = field(default_factory=dict)
    chunk: int | None = None
    device: str = "cpu"
    kernels: Mapping[Site, Wish] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BlockRun:
    """What a block gave.

    Args:
        y: (B, T, D).
        gradients: of <y, dy> plus the recipe's weighted auxiliary losses, by each trainable weight and by `x`.
        losses: auxiliary losses before their weight: `aux` and `z` of a router, each a scalar.
        state: recurrent state after the last token.
        seen: what was routed or selected: `experts` (B, T, k) int64 and `gates` (B, T, k) of each token, `counts` (E)
            int64 of assignments asked for, `dropped` (B, T, k) bool; `selected` (B, T, T) bool, query by key, of DSA.
        buffers: those of the block as the pass left them, the amax histories of delayed scaling for instance.
        kernels: what ran at each site, noted where it ran and not where it was chosen.
    """

    y: Array
    gradients: Arrays = field(default_factory=dict)
    losses: Arrays = field(default_factory=dict)
    state: Arrays = field(default_factory=dict)
    seen: Arrays = field(default_factory=dict)
    buffers: Arrays = field(default_factory=dict)
    kernels: Mapping[Site, Kernel] = field(default_factory=dict)


class Blocks(Party, Protocol):
    """The blocks of a stack, one at a time."""

    def block_weights(self, recipe: Recipe, layer: int, mode: Mode) -> Mapping[str, Shape]:
        """Names, shapes and dtypes of a block's parameters and buffers, as the stack holds them under the recipe."""
        ...

    def run_block(self, call: BlockCall) -> BlockRun:
        """A block forward, and backward where the call has an upstream gradient."""
        ...

"""Questions about the numbers of one block: its output, its gradients, its state (BLK, MOE).

A block is the branch of the residual stream that a pattern letter names. It includes the norm and excludes the residual
connection: `y = mixer(norm(x))`. Weights and gradients have the canonical names below, whatever the stack's own names.

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
                  weights_j(x) · relu(q_j · k), with rope on the last qk_rope elements of q_j and k. A query attends to
                  the top_k visible keys with the highest scores, or to all visible keys if there are fewer.
                  The choice passes no gradient: <y, dy> has none with respect to the indexer's weights
    A with        attention. and ssm. before the names of an A block and of the mode's M block. Both read the block's
    parallel_ssm  norm: y = attention_scale · A + ssm_scale · M, and the state is M's. Prediction heads have none
    E             router.weight (E, D), router.bias (E; with selection_bias, a buffer), experts.w1 (E, F, D) and
                  experts.w2 (E, D, F), experts.w3 (E, F, D) with swiglu; shared.w1.weight (S, D), shared.w2.weight
                  (D, S), shared.w3.weight. y = sum over the k chosen of gate · expert(x), plus shared(x); an expert and
                  the shared one are MLPs as below. Scores and gates are float32 at least. Gates: softmax over the k
                  chosen logits, or the k sigmoids divided by their sum, times route_scale; for k = 1 the softmax is
                  over all logits (arXiv 2101.03961 eq. 2), and the sigmoid is the gate. router.bias is added to the
                  sigmoids only to choose experts; it is not part of the gates. With groups (n, c) neighbours make n
                  groups, and only experts of the c groups are chosen whose two best add up to most
                  aux: E · sum over experts of f · P for each row of B, averaged over rows. f is an expert's fraction of
                  the row's assignments, or of the assignments that scores without the bias would give (arXiv
                  2412.19437 eq. 18). P is the row's mean of the scores normalised over all experts, without the bias.
                  z: mean over tokens of logsumexp(logits)².
                  With capacity_factor an expert has ceil(factor · B·T · k / E) slots. Tokens take them in their order
                  in (B, T), or with drop_policy probs by their gates, the greatest of the call first. An assignment
                  without a slot adds nothing and leaves the token's other gates unchanged
    E without MoE w1.weight (ffn, D), w2.weight (D, ffn), w3.weight (ffn, D) with swiglu.
                  relu2: w2 relu(w1 x)²; swiglu: w2 (silu(w1 x) · w3 x)
    biases        with `attention`: wq.bias, wk.bias, wv.bias, wo.bias, added to the products, before QK norm and rope.
                  With `mlp`: w1.bias, w2.bias, w3.bias of E without MoE and of prediction heads. With `experts`:
                  experts.b1 and experts.b3 (E, F), experts.b2 (E, D); the gate multiplies w2's bias too. The shared
                  expert has none. With `router`: router.logit_bias (E), part of the logits, and so of choice, gates
                  and losses
    M (Mamba-2)   wz.weight and wx.weight (h·p, D), wb.weight and wc.weight (g·n, D), wdt.weight (h, D),
                  conv_x.weight (h·p, 4) and conv_x.bias, conv_b and conv_c alike over g·n; A_log, D, dt_bias (h);
                  out_norm.weight (h·p; over y·silu(z), one norm a group of heads), wo.weight (D, h·p)
    M (Mamba-3)   wz.weight and wx.weight (h·p, D), wb.weight and wc.weight (g·n, D), wdt.weight, wa.weight and
                  wtrap.weight (h, D), wangle.weight (n/4, D); b_norm.weight and c_norm.weight (n; over each group),
                  then b_bias and c_bias (h, n); D, dt_bias (h), wo.weight (D, h·p). A is -softplus(wa x), -1e-4 at
                  most; elements 2i and 2i + 1 of B and C rotate by the sum of π tanh(wangle x) dt, for i < n/4; the end
                  of a step has the weight sigmoid(wtrap x); y·silu(z) without a norm
    R (M²RNN)     wg.weight and wv.weight (h·p, D), wq.weight and wk.weight (h·n, D), wf.weight (h, D), W (h, p, p),
                  A_log, D, dt_bias (h), out_norm.weight (h·p; over y·silu(g), one norm a group of heads), wo.weight
                  (D, h·p). W multiplies the state from the right: h W

A whole model has `embedding.weight` and `head.weight` (vocab, D; no head when tied), `norm.weight`, and `layers.3.`
before the names of a block. Hyper-connections (arXiv 2512.24880) of n streams stand on A layers: `streams.phi.weight`
(m, n·D) and `streams.bias` (m) with m = 2n + n², and `streams.alpha` (3), in the order reading, writing, H_res row by
row; H_res[i, j] goes from stream j to stream i. Streams begin as copies of the embedding and end as their mean; a layer
without maps reads the mean of the streams and adds its output to each with weight 1. Depth k + 1 of multi-token
prediction (arXiv 2412.19437 section 2.2) has the prefix `mtp.k.` and the weights `hidden_norm.weight`,
`token_norm.weight` (D), `projection.weight` (D, 2D; hidden state first, then token), `norm.weight` (D), and below
`attention.` and `mlp.` the names of a dense A and a dense E block. It reads the residual stream before the final norm,
or the output of the depth below; under the convention `prediction-input` either after its norm. Its logits are an
answer where the document has the token that it looks ahead to. A check that gives weights to a whole model uses these
names; it does not judge a stack with other names.

State: for Mamba-2 `ssm` (B, h, p, n) and `conv_x`, `conv_b`, `conv_c` (B, channels, 3), the last three inputs of the
convolution in token order. For Mamba-3 `ssm`, and of the last token `angle` (B, h, n/4; modulo 2π), `k` (B, h, n;
normed, biased and rotated) and `v` (B, h, p). For R `h` (B, h, n, p). A given state belongs to the first token's
document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from contracts.spec.array import Array, Arrays, Element, Shape
from contracts.spec.kernel_selection import Kernel, Site, Wish
from contracts.spec.party import Party
from contracts.spec.recipe import Mode, Recipe


@dataclass(frozen=True, kw_only=True)
class BlockCall:
    """One forward pass through one block, and one backward pass if there is an upstream gradient.

    Args:
        recipe: sizes and features of the model.
        layer: 0-based position in the pattern; it decides the letter and, among attention layers, the A-rank.
        mode: decides the mixer of M: Mamba-2 in nemo_native, Mamba-3 in author_dp.
        weights: every parameter and buffer of the block, by name; their dtype is the parameters' dtype.
        x: (B, T, D), the residual stream before the block's norm. Its dtype is the dtype of the activations.
        dy: (B, T, D), gradient of the objective with respect to y; None asks for no gradients.
        documents: (B, T) int64, the number of each token's document, rising along T; None means one a row.
        padding: (B, T) bool, the positions that hold no token, told to a router; None means none. They count in no loss
            and in no `counts`.
        state: recurrent state before the first token; empty means zero.
        chunk: tokens in a chunk of the scan; None leaves it to the stack.
        strided: whether the stack makes tensors of `x` and `dy` whose first axis is the fastest in memory, in place of
            row-major ones. Their elements, and so the answer, are the same.
        router: the dtype of the router's product; None is float32 at least. The rest of a router is float32 either way.
        device: where the block runs, in torch's names: `cpu`, `cuda`. The tensors of the answer are on the host.
        kernels: the kernel asked for at each site (spec/kernel_selection.py); other sites have the stack's default.
    """

    recipe: Recipe
    layer: int
    weights: Arrays
    x: Array
    dy: Array | None = None
    mode: Mode = "nemo_native"
    documents: Array | None = None
    padding: Array | None = None
    state: Arrays = field(default_factory=dict)
    chunk: int | None = None
    strided: bool = False
    router: Element | None = None
    device: str = "cpu"
    kernels: Mapping[Site, Wish] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BlockRun:
    """What one pass through a block returned.

    Args:
        y: (B, T, D).
        gradients: of <y, dy> plus the recipe's weighted auxiliary losses, with respect to each trainable weight and
            to `x`.
        losses: auxiliary losses before their weight: `aux` and `z` of a router, each a scalar.
        state: recurrent state after the last token.
        seen: what was routed or selected: `experts` (B, T, k) int64 and `gates` (B, T, k) of each token, `counts` (E)
            int64 of assignments asked for, `dropped` (B, T, k) bool; `selected` (B, T, T) bool, query by key, of DSA.
        buffers: the block's buffers after the pass, for instance the amax histories of delayed scaling.
        kernels: the kernel that ran at each site, recorded where it ran and not where it was chosen.
        strided: whether the tensor that the block read had not been laid row by row, read off that tensor.
    """

    y: Array
    gradients: Arrays = field(default_factory=dict)
    losses: Arrays = field(default_factory=dict)
    state: Arrays = field(default_factory=dict)
    seen: Arrays = field(default_factory=dict)
    buffers: Arrays = field(default_factory=dict)
    kernels: Mapping[Site, Kernel] = field(default_factory=dict)
    strided: bool = False


class Blocks(Party, Protocol):
    """The blocks of a stack, one at a time. `contracts/spec/blocks.py` defines each block and names its weights."""

    def block_weights(self, recipe: Recipe, layer: int, mode: Mode) -> Mapping[str, Shape]:
        """Canonical name → shape and dtype of each parameter and buffer of a block, as the stack holds them.

        `layer` is 0-based. Raises `NotOffered` for a block that the stack does not have.
        """
        ...

    def run_block(self, call: BlockCall) -> BlockRun:
        """One forward pass through a block, and one backward pass if `call.dy` is given.

        Raises `NotOffered` for a block, dtype, device or kernel that the stack does not have.
        """
        ...

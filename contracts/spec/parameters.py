"""The parameter count of a model: each block as a list of tensors, with their sizes and how TP shards them.

Sources: GQA and relu²/SwiGLU MLPs as in Megatron-LM; MLA, arXiv 2405.04434 (latent projections on every TP rank, heads
sharded); the DSA indexer as in Megatron-Core (on every rank); Mamba-2, arXiv 2405.21060 and mamba-ssm; the M²RNN block,
arXiv 2603.14360; hyper-connections, arXiv 2512.24880.

Assumptions, where a recipe leaves it open:

- no biases except the recipe's, the convolution's, dt_bias and those of the hyper-connections; RMSNorm before every
  block;
- the convolution of M is 4 wide; R has no convolution, and its heads, state and head_dim equal `mamba`'s;
- M is counted as Mamba-2 in both modes. Mamba-3 (author_dp) drops the convolution and adds trap, A and angle
  projections, 1.2 % of the block at NAM56R's sizes. R is the M²RNN block in both modes; nemo_native builds the smaller
  M in its place;
- A blocks have the hyper-connections and the branch of `parallel_ssm`; an MTP head is a GQA or MLA block without
  either, never sparse, and a dense MLP;
- the vocabulary is not padded. Megatron-LM pads it to a multiple of 128 · tp.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from contracts.spec import pattern as patterns
from contracts.spec.capacity import ParameterCount, Share
from contracts.spec.recipe import Biased, Recipe

CONV_WIDTH = 4  # mamba-ssm's default d_conv; Megatron-LM has no flag for it


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor of a block. `times` counts equal tensors (experts); `whole` is its full size, before TP or EP.

    `pieces` is the maximal number of shards: KV heads, SSM groups, 1 for a bias after what is cut. With more TP ranks
    than that, ranks hold copies.
    `fp32` marks state-space vectors that stay float32 under bf16; `matrix` marks what Muon updates in a Muon recipe.
    """

    name: str
    whole: int
    share: Share = "replicated"
    times: int = 1
    pieces: int | None = None
    fp32: bool = False
    matrix: bool = False

    def on_a_rank(self, tp: int, ep: int, etp: int) -> int:
        """Its parameters on one rank, before data parallelism shards it."""
        if self.share == "replicated":
            return self.whole * self.times
        if self.share == "ep":
            return self.whole * self.times // (ep * min(etp, self.pieces or etp))
        return self.whole * self.times // min(tp, self.pieces or tp)

    @property
    def parameters(self) -> int:
        return self.whole * self.times


Tensors = tuple[Tensor, ...]


def block(recipe: Recipe, letter: str, *, sparse: bool = False) -> Tensors:
    """The tensors of one block; `sparse` says that an A block carries the DSA indexer."""
    norm = Tensor(name="norm", whole=recipe.hidden)
    if letter == "A":
        beside = _mamba(recipe) if recipe.parallel_ssm else ()
        return (norm, *_attention(recipe), *(_indexer(recipe) if sparse else ()), *beside, *_hyper_connections(recipe))
    if letter == "E":
        return (norm, *(_experts(recipe) if recipe.moe else _dense(recipe)))
    return (norm, *(_mamba(recipe) if letter == "M" else _recurrent(recipe)))


def blocks(recipe: Recipe) -> tuple[Tensors, ...]:
    """The tensors of each layer, in order."""
    letters = patterns.parse(recipe.pattern, recipe.depth).letters
    sparse, rank, found = recipe.dsa.a_ranks if recipe.dsa else (), 0, []
    for letter in letters:
        found.append(block(recipe, letter, sparse=letter == "A" and rank in sparse))
        rank += letter == "A"
    return tuple(found)


def embedding(recipe: Recipe) -> Tensors:
    return (Tensor(name="embedding", whole=recipe.vocab * recipe.hidden, share="tp"),)


def head(recipe: Recipe) -> Tensors:
    """The output projection; empty when it is tied to the embedding."""
    if not recipe.untied_embeddings:
        return ()
    return (Tensor(name="head", whole=recipe.vocab * recipe.hidden, share="tp"),)


def final_norm(recipe: Recipe) -> Tensors:
    return (Tensor(name="norm", whole=recipe.hidden),)


def mtp(recipe: Recipe) -> Tensors:
    """The heads of multi-token prediction: two norms and a projection, a dense block pair, and a final norm.

    DeepSeek-V3, arXiv 2412.19437 section 2.2. They share the model's embedding and output projection. AdamW updates
    them, like the output projection.
    """
    if recipe.mtp is None:
        return ()
    hidden = recipe.hidden
    one = (
        Tensor(name="norms", whole=3 * hidden),
        Tensor(name="projection", whole=2 * hidden * hidden, share="tp"),
        Tensor(name="norm", whole=2 * hidden),
        *_attention(recipe),
        *_dense(recipe),
    )
    return tuple(replace(tensor, matrix=False) for tensor in one) * recipe.mtp.depth


def count(recipe: Recipe) -> ParameterCount:
    """Parameters of the whole model by family, and the parameters that one token uses."""
    letters = patterns.parse(recipe.pattern, recipe.depth).letters
    families = dict.fromkeys(("A", "E", "M", "R"), 0)
    for letter, tensors in zip(letters, blocks(recipe), strict=True):
        families[letter] += total(tensors)
    families |= {
        "embedding": total(embedding(recipe)),
        "head": total(head(recipe)),
        "norm": total(final_norm(recipe)),
        "mtp": total(mtp(recipe)),
    }
    whole, idle = sum(families.values()), 0
    if recipe.moe is not None:
        expert = sum(tensor.whole for tensor in _experts(recipe) if tensor.share == "ep")
        idle = letters.count("E") * (recipe.moe.experts - recipe.moe.top_k) * expert
    return ParameterCount(total=whole, active=whole - idle, families=families)


def total(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.parameters for tensor in tensors)


def _matrices(recipe: Recipe) -> int:
    """Matrices of an MLP: up and down, and with SwiGLU the gate."""
    return 3 if recipe.activation == "swiglu" else 2


def _mlp(recipe: Recipe, inner: int) -> Tensors:
    return (Tensor(name="mlp", whole=_matrices(recipe) * recipe.hidden * inner, share="tp", matrix=True),)


def _dense(recipe: Recipe) -> Tensors:
    return (*_mlp(recipe, recipe.ffn_hidden), *_biases_of_mlp(recipe, "mlp", recipe.ffn_hidden, "tp", 1))


def _biases_of_mlp(recipe: Recipe, place: Biased, inner: int, share: Share, times: int) -> Tensors:
    if place not in recipe.biases:
        return ()
    wide = (_matrices(recipe) - 1) * inner
    return (
        Tensor(name=f"{place} bias", whole=wide, share=share, times=times),
        Tensor(name=f"{place} output bias", whole=recipe.hidden, share=share, times=times, pieces=1),
    )


def _experts(recipe: Recipe) -> Tensors:
    moe = recipe.moe
    assert moe is not None
    expert = _matrices(recipe) * recipe.hidden * moe.expert_hidden
    router = Tensor(name="router", whole=recipe.hidden * moe.experts, fp32=True)
    experts = Tensor(name="experts", whole=expert, share="ep", times=moe.experts, matrix=True)
    biases = _biases_of_mlp(recipe, "experts", moe.expert_hidden, "ep", moe.experts)
    if "router" in recipe.biases:
        biases += (Tensor(name="router bias", whole=moe.experts, fp32=True),)
    return (router, experts, *biases, *(_mlp(recipe, moe.shared_hidden) if moe.shared_hidden else ()))


def _attention(recipe: Recipe) -> Tensors:
    hidden, heads, mla = recipe.hidden, recipe.heads, recipe.mla
    if mla is None:
        keys_and_values = 2 * hidden * recipe.kv_groups * recipe.head_dim
        found: Tensors = (
            Tensor(name="query and output", whole=2 * hidden * hidden, share="tp", matrix=True),
            Tensor(name="key and value", whole=keys_and_values, share="tp", pieces=recipe.kv_groups, matrix=True),
        )
        if "attention" in recipe.biases:
            found += (
                Tensor(name="query bias", whole=hidden, share="tp"),
                Tensor(name="key and value bias", whole=keys_and_values // hidden, share="tp", pieces=recipe.kv_groups),
                Tensor(name="output bias", whole=hidden),
            )
        return (*found, Tensor(name="qk norm", whole=2 * recipe.head_dim)) if recipe.qk_norm else found
    down = hidden * (mla.q_lora + mla.kv_lora + mla.qk_rope)
    up = heads * (mla.q_lora * (mla.qk_head + mla.qk_rope) + mla.kv_lora * (mla.qk_head + mla.v_head))
    return (
        Tensor(name="latent down", whole=down, matrix=True),
        Tensor(name="latent norms", whole=mla.q_lora + mla.kv_lora),
        Tensor(name="latent up", whole=up, share="tp", matrix=True),
        Tensor(name="output", whole=heads * mla.v_head * hidden, share="tp", matrix=True),
    )


def _indexer(recipe: Recipe) -> Tensors:
    assert recipe.dsa is not None
    assert recipe.mla is not None
    wide, heads = recipe.dsa.index_head_dim, recipe.dsa.index_heads
    whole = recipe.mla.q_lora * heads * wide + recipe.hidden * (wide + heads)
    return (Tensor(name="indexer", whole=whole, matrix=True), Tensor(name="indexer norm", whole=2 * wide))


def _hyper_connections(recipe: Recipe) -> Tensors:
    if recipe.mhc is None:
        return ()
    n = recipe.mhc.streams
    mixes = 2 * n + n * n  # reading, writing, and stream to stream
    return (Tensor(name="hyper-connections", whole=n * recipe.hidden * mixes + mixes + 3),)


def _mamba(recipe: Recipe) -> Tensors:
    mamba, hidden = recipe.mamba, recipe.hidden
    inner, grouped = mamba.heads * mamba.head_dim, 2 * mamba.groups * mamba.state
    return (
        Tensor(name="z, x, dt in", whole=hidden * (2 * inner + mamba.heads), share="tp", matrix=True),
        Tensor(name="B and C in", whole=hidden * grouped, share="tp", pieces=mamba.groups, matrix=True),
        Tensor(name="convolution of x", whole=inner * (CONV_WIDTH + 1), share="tp"),
        Tensor(name="convolution of B and C", whole=grouped * (CONV_WIDTH + 1), share="tp", pieces=mamba.groups),
        Tensor(name="A_log, D, dt_bias", whole=3 * mamba.heads, share="tp", fp32=True),
        Tensor(name="gated norm", whole=inner, share="tp"),
        Tensor(name="out", whole=inner * hidden, share="tp", matrix=True),
    )


def _recurrent(recipe: Recipe) -> Tensors:
    mamba, hidden = recipe.mamba, recipe.hidden
    inner, keyed = mamba.heads * mamba.head_dim, 2 * mamba.heads * mamba.state
    return (
        Tensor(name="g, v, f in", whole=hidden * (2 * inner + mamba.heads), share="tp", matrix=True),
        Tensor(name="q and k in", whole=hidden * keyed, share="tp", matrix=True),
        Tensor(name="W", whole=mamba.heads * mamba.head_dim * mamba.head_dim, share="tp", matrix=True),
        Tensor(name="A_log, D, dt_bias", whole=3 * mamba.heads, share="tp", fp32=True),
        Tensor(name="gated norm", whole=inner, share="tp"),
        Tensor(name="out", whole=inner * hidden, share="tp", matrix=True),
    )

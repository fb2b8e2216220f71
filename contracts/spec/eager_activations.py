"""What layers keep for the backward pass if eager torch runs each of their operations by itself, in bytes a token.

Fused kernels keep the inputs of a layer's matrices. By itself, each operation keeps its own operands, in float32 where
it computes in float32: norms, attention over packed documents (scores are written out), gates of experts, and the scan
of Mamba-2 in chunks, which a batched product also copies. Counted by `torch.autograd.graph.saved_tensors_hooks` over
the reference's layers, tensor by tensor, and found again in the peak of its steps (MEM-02m, MEM-02o). Weights that are
cast for a product are in the budget as 16-bit weights.

T tokens of a sequence · D hidden · H heads of d, G KV groups · F inner width, K experts a token · h heads of M with p
elements and n states, g groups, Q tokens of a chunk
"""

from collections.abc import Callable, Mapping

from contracts.spec.capacity import Spread
from contracts.spec.errors import Refusals
from contracts.spec.recipe import Recipe
from contracts.spec.topology import Degrees

CHUNK = 64  # tokens that the scan of M takes at once
Terms = Mapping[str, int]


def refusals(recipe: Recipe, spread: Spread, found: Refusals) -> None:
    """Layers that nobody counted: other ones than A, E and M, and layers that are cut."""
    remedy = 'plan with kernels = "fused"'
    for name in ("mla", "dsa", "mhc", "mtp", "parallel_ssm"):
        if getattr(recipe, name) is not None:
            found.add("kernels", "eager", f"is not counted for {name}", remedy)
    if "R" in recipe.pattern:
        found.add("kernels", "eager", f"is not counted for R, and the pattern is {recipe.pattern}", remedy)
    if spread.degrees != Degrees():
        found.add("kernels", "eager", "is counted for layers that no axis cuts", remedy)


def kept(recipe: Recipe, letter: str, wide: int) -> Terms:
    """Bytes of one layer for each token, by what they are; `wide` is the size of an activation."""
    return {"norm": (8 + wide) * recipe.hidden, **LAYERS[letter](recipe, wide)}


def _attention(recipe: Recipe, wide: int) -> Terms:
    inner, groups = recipe.heads * recipe.head_dim, recipe.kv_groups * recipe.head_dim
    return {
        "QK norms": 8 * (inner + groups) if recipe.qk_norm else 0,
        "cosines and sines": 8 * recipe.head_dim,
        "q, k and v in float32, each head": 12 * inner,
        "softmax in float32": 4 * recipe.heads * recipe.seq_length,
        "mask": recipe.seq_length,
        "input of wo": wide * inner,
    }


def _experts(recipe: Recipe, wide: int) -> Terms:
    factors = 4 if recipe.activation == "swiglu" else 2
    if recipe.moe is None:
        return {"MLP": factors * wide * recipe.ffn_hidden}
    return {
        "input of the router in float32": 4 * recipe.hidden if wide < 4 else 0,
        "experts": factors * wide * recipe.moe.top_k * recipe.moe.expert_hidden,
        "shared expert": factors * wide * recipe.moe.shared_hidden,
    }


def _mamba(recipe: Recipe, wide: int) -> Terms:
    mamba = recipe.mamba
    inner, expanded = mamba.heads * mamba.head_dim, mamba.heads * mamba.state
    channels = inner + 2 * mamba.groups * mamba.state
    return {
        "convolution": (4 + wide) * channels,
        "x, y and the gate in float32": 16 * inner,
        "gated norm": 8 * inner + wide * inner,
        "B and C of each head, and their copies": 20 * expanded,
        "decays and weights of a chunk": 12 * CHUNK * mamba.heads,
        "u, and what enters a chunk": 12 * inner,
        "states of chunks": 4 * inner * mamba.state // CHUNK,
    }


LAYERS: Mapping[str, Callable[[Recipe, int], Terms]] = {"A": _attention, "E": _experts, "M": _mamba}

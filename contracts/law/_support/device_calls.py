"""What the checks ask on a device: calls that a CPU takes too, so that no code runs for the first time on a GPU.

Widths are multiples of 8, which grouped and fused kernels want; ratios that would hide a bug at 1 stay above 1. The
first elements of a token decide its experts, with gaps that survive rounding to bfloat16. Drawn scores are so close
that half a unit in the last place would send one token in twenty to other experts, and no comparison would hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from contracts.instruments import fixtures, numerics
from contracts.law._support.late import Tensor, torch
from contracts.law._support.recipes import A_LAYER, E_LAYER, M_LAYER, R_LAYER, SMALL
from contracts.spec import BlockCall, Blocks, Element, Mamba, Mode, Moe, Recipe

WIDE = replace(
    SMALL, name="wide", hidden=64, ffn_hidden=72, mamba=Mamba(heads=6, head_dim=16, state=16, groups=3),
    moe=Moe(experts=12, top_k=3, expert_hidden=24, shared_hidden=40, aux_loss=0.0), norm_eps=1e-6,
)  # fmt: skip
SWIGLU = replace(WIDE, name="wide-swiglu", activation="swiglu")
DENSE = replace(WIDE, name="wide-dense", moe=None)

BLOCKS: dict[str, tuple[Recipe, int, Mode]] = {
    "attention": (WIDE, A_LAYER, "nemo_native"),
    "mlp": (DENSE, E_LAYER, "nemo_native"),
    "experts": (WIDE, E_LAYER, "nemo_native"),
    "experts-swiglu": (SWIGLU, E_LAYER, "nemo_native"),
    "mamba2": (WIDE, M_LAYER, "nemo_native"),
    "mamba3": (WIDE, M_LAYER, "author_dp"),
    "recurrent": (WIDE, R_LAYER, "nemo_native"),
}

Routes = Sequence[tuple[int, ...]]
"""The experts of each token."""

Lengths = tuple[tuple[int, ...], ...]
SHORT: Lengths = ((3, 8, 2), (9, 4))
LONG: Lengths = ((4, 57, 2, 34), (61, 36))


@dataclass(frozen=True, kw_only=True)
class BlockCase:
    """One block on a device, with a dtype for the activations. Weights are exact in bfloat16 and held in float32, or in
    float64 when activations are float64. `spread` names how the tokens of a block with experts are routed.
    """

    recipe: Recipe
    layer: int
    mode: Mode
    device: str
    dtype: Element = "bfloat16"
    lengths: Lengths = SHORT
    spread: str = "last-idle"

    @property
    def family(self) -> str:
        return self.recipe.pattern[self.layer % len(self.recipe.pattern)]


def cases_on(device: str, *names: str, dtype: Element = "bfloat16") -> dict[str, BlockCase]:
    """Cases: each named block, or all, on a device."""
    lengths = SHORT if device == "cpu" else LONG
    return {
        name: BlockCase(recipe=recipe, layer=layer, mode=mode, device=device, dtype=dtype, lengths=lengths)
        for name, (recipe, layer, mode) in BLOCKS.items()
        if not names or name in names
    }


def routings(moe: Moe, tokens: int) -> dict[str, Routes]:
    """Ten ways to distribute tokens over experts."""
    every, slots = moe.experts, moe.top_k
    half = every // 2

    def strided(step: int, first: int, count: int) -> Routes:
        return [tuple(first + (step * n + slot) % count for slot in range(slots)) for n in range(tokens)]

    alike = tuple(every - 1 - slot for slot in range(slots))
    return {
        "even": strided(slots, 0, every),
        "last-idle": strided(1, 0, every - 1),
        "first-idle": strided(1, 1, every - 1),
        "upper-half-idle": strided(1, 0, half),
        "lower-half-idle": strided(1, every - half, half),
        "all-alike": [alike] * tokens,
        "all-but-one-alike": [alike] * (tokens - 1) + [tuple(range(slots))],
        "one-everywhere": [(0, *(1 + (n + slot) % (every - 1) for slot in range(slots - 1))) for n in range(tokens)],
        "in-runs": [tuple((slots * (8 * n // tokens) + slot) % every for slot in range(slots)) for n in range(tokens)],
        "strided-by-5": strided(5, 0, every),
    }


def call_of(stack: Blocks, asked: BlockCase, *, seed: int = 0) -> BlockCall:
    """Drawn weights, tokens and upstream gradient; the tokens of a block with experts are steered."""
    recipe = asked.recipe
    shape, several = (len(asked.lengths), sum(asked.lengths[0]), recipe.hidden), any(len(r) > 1 for r in asked.lengths)
    weights = fixtures.weights(stack.block_weights(recipe, asked.layer, asked.mode), seed=seed)
    x_BTD, dy_BTD = (fixtures.normal(name, shape, seed=seed) for name in ("x", "dy"))
    if asked.family == "E" and recipe.moe is not None:
        route_tokens(recipe, weights, x_BTD, routings(recipe.moe, shape[0] * shape[1])[asked.spread])
    if asked.family == "M":  # long time steps and a small skip: with drawn ones the scan is a hundredth of the output
        weights["mixer.D"] *= 0.3
        weights["mixer.dt_bias"] += 2
    half, element = torch.bfloat16, getattr(torch, asked.dtype)
    kept = torch.float64 if asked.dtype == "float64" else torch.float32
    held = {name: each.to(half).to(kept) for name, each in weights.items()}
    return BlockCall(
        recipe=recipe,
        layer=asked.layer,
        mode=asked.mode,
        weights=numerics.arrays(held),
        x=numerics.array(x_BTD.to(half).to(element)),
        dy=numerics.array(dy_BTD.to(half).to(element)),
        documents=numerics.array(fixtures.documents(asked.lengths)) if several else None,
        chunk=5 if asked.family == "M" else None,
        device=asked.device,
    )


def route_tokens(recipe: Recipe, weights: dict[str, Tensor], x_BTD: Tensor, routes: Routes) -> None:
    """Send token n to the experts routes[n], in place: element e of a token is the score of expert e.

    Chosen experts score 2 and above, the others -2 and below, a quarter apart.
    """
    assert recipe.moe is not None
    every = recipe.moe.experts
    router_ED = torch.zeros_like(weights["mixer.router.weight"])
    router_ED[:, :every] = torch.eye(every)
    weights["mixer.router.weight"] = router_ED
    weights["norm.weight"][:every] = 1
    _steer(x_BTD, recipe.moe, routes)


def _steer(x_BTD: Tensor, moe: Moe, routes: Routes) -> None:
    scores_NE = -2 - 0.25 * torch.arange(moe.experts, dtype=x_BTD.dtype).repeat(len(routes), 1)
    levels_NK = (2 + 0.25 * torch.arange(moe.top_k, dtype=x_BTD.dtype)).expand(len(routes), moe.top_k)
    x_BTD.view(-1, x_BTD.shape[-1])[:, : moe.experts] = scores_NE.scatter(1, torch.tensor(routes), levels_NK)


def rerouted(call: BlockCall, spread: str) -> BlockCall:
    """A call of `call_of` with its tokens sent otherwise: what `call_of` makes of that spread, and nothing drawn again.

    At true size the weights by themselves are 110 million numbers.
    """
    assert call.recipe.moe is not None
    x_BTD = numerics.tensor(call.x).clone()
    _steer(x_BTD, call.recipe.moe, routings(call.recipe.moe, x_BTD.shape[0] * x_BTD.shape[1])[spread])
    return replace(call, x=numerics.array(x_BTD))

"""What runs in FP8 and what does not: as declared, and as seen in what a model computes."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import fixtures, numerics
from contracts.law._support.fp8_calls import DENSE, FP8, LATENT, call_of, with_scaling
from contracts.law._support.late import Tensor
from contracts.law._support.recipes import A_LAYER, E_LAYER, M_LAYER, R_LAYER
from contracts.spec import EXACT, Array, Blocks, Execution, Mode, ParallelSsm, Recipe, Seams, Tokens, Training

MATRICES = {  # letter → the weights of its mixer that are in FP8; `mla` stands for A with latent attention
    "A": ("wq", "wk", "wv", "wo"),
    "mla": ("wq_a", "wq_b", "wkv_a", "wo"),
    "E": ("shared.w1", "shared.w2"),
    "dense": ("w1", "w2"),
    "M": ("wz", "wx", "wb", "wc", "wo"),
    "R": ("wg", "wv", "wq", "wk", "wo"),
}
OUTSIDE = frozenset({"norm", "router", "ssm", "conv", "bias", "embedding", "head", "mixing"})
BESIDE = replace(FP8, name="small-fp8-beside-a-scan", parallel_ssm=ParallelSsm())
"""A scan beside attention, and one in a layer of its own."""
PLANS: dict[str, tuple[Recipe, Mode]] = {
    "native": (FP8, "nemo_native"),
    "author": (with_scaling(FP8, "mxfp8", "e4m3"), "author_dp"),
    "dense-delayed": (with_scaling(DENSE, "delayed"), "nemo_native"),
    "latent-and-ahead": (LATENT, "author_dp"),
    "off": (replace(FP8, fp8=None), "nemo_native"),
    "beside-a-scan": (BESIDE, "nemo_native"),
}


class _Offers(Seams, Training, Blocks):
    """A stack that answers all three groups of questions."""


@contract("PREC-01a", asks=("precision_plan", "built"), cases=PLANS, source="hub")
def what_is_in_fp8_is_declared(stack: _Offers, recipe: Recipe, mode: Mode) -> None:
    """The plan declares projections, MLPs and experts as FP8. Router, norms, embeddings, head, convolutions, biases and
    recurrence parameters are not in FP8, and nothing is when the recipe does not ask for FP8.

    The plan names every parameter of the model once. A scan beside attention has the plan of one in a layer of its own.
    """
    plan = {row.name: row.compute for row in stack.precision_plan(recipe, mode)}
    roles = {row.name: row.role for row in stack.built(recipe, mode).parameters}
    assert plan.keys() == roles.keys(), f"the plan and the model differ in {sorted(plan.keys() ^ roles.keys())[:5]}"
    inside = _inside(recipe) if recipe.fp8 is not None else set()
    for name in sorted(inside):
        assert plan.get(name) == "fp8", f"{name} computes in {plan.get(name)}, expected fp8"
    for name, role in roles.items():
        out = recipe.fp8 is None or role in OUTSIDE or name.endswith("mixer.W")
        assert not (out and plan[name] == "fp8"), f"{name} ({role}) computes in fp8"
    inner = {name.partition(".mixer.")[2]: compute for name, compute in plan.items()}
    for name, compute in inner.items():
        alone = inner.get(name.removeprefix("ssm."), compute)
        assert compute == alone, f"{name} beside attention computes in {compute}, in a layer of its own in {alone}"


def _inside(recipe: Recipe) -> set[str]:
    letters = (recipe.pattern * recipe.depth)[: recipe.depth]
    found = set()
    for number, letter in enumerate(letters):
        kind = "mla" if letter == "A" and recipe.mla else "dense" if letter == "E" and recipe.moe is None else letter
        beside = letter == "A" and recipe.parallel_ssm is not None
        branch = "attention." if beside else ""
        found |= {f"layers.{number}.mixer.{branch}{name}.weight" for name in MATRICES[kind]}
        found |= {f"layers.{number}.mixer.ssm.{name}.weight" for name in MATRICES["M"] if beside}
        if kind == "E":
            found |= {f"layers.{number}.mixer.experts.{name}" for name in ("w1", "w2")}
    return found


BLOCKS: dict[str, tuple[Recipe, int, Mode]] = {
    "attention": (FP8, A_LAYER, "nemo_native"),
    "experts": (FP8, E_LAYER, "nemo_native"),
    "dense": (DENSE, E_LAYER, "nemo_native"),
    "mamba2": (FP8, M_LAYER, "nemo_native"),
    "mamba3": (FP8, M_LAYER, "author_dp"),
    "recurrent": (FP8, R_LAYER, "nemo_native"),
}
LOW, HIGH = -2, 2
"""Around 72, 80 … 112 the numbers of e4m3 are 8 apart: it rounds values this far below and above to the same number."""


@contract("PREC-01b", asks=("block_weights", "run_block", "precision_plan"), cases=BLOCKS, source="hub")
def a_block_computes_as_declared(stack: _Offers, recipe: Recipe, layer: int, mode: Mode) -> None:
    """A weight declared as FP8 has the resolution of FP8, and a weight declared otherwise has a finer one.

    Each weight takes two values that FP8 cannot tell apart: with the weight in FP8 the outputs are bit-identical,
    otherwise they differ.
    """
    plan = {row.name: row.compute for row in stack.precision_plan(recipe, mode)}
    call = call_of(stack, recipe, layer, mode=mode, backward=False, rows=(2, 5))
    for name, weight in call.weights.items():
        compute = plan.get(f"layers.{layer}.{name}")
        if compute is None:
            continue  # a buffer
        pair = [{**call.weights, name: numerics.array(_off(name, weight, by))} for by in (LOW, HIGH)]
        low, high = (stack.run_block(replace(call, weights=weights)).y for weights in pair)
        blind = not numerics.difference("y", low, high, EXACT)
        seen = "changes nothing" if blind else "changes the output"
        assert blind == (compute == "fp8"), f"{name} is declared {compute}, and a change below FP8's resolution {seen}"


def _off(name: str, weight: Array, by: float) -> Tensor:
    """A weight whose elements are 448ths of its amax that e4m3 represents, each shifted by `by` to either side.

    The element with the greatest magnitude stays. Each expert is a matrix of its own, with its own amax.
    """

    held = numerics.tensor(weight)
    rows = held.flatten(1) if ".experts." in name else held.reshape(1, -1)
    amax = rows.abs().amax(1, keepdim=True)
    number = 72 + 8 * fixtures.integers(name, rows.shape, 6)
    side = 2 * fixtures.integers(f"{name}/side", rows.shape, 2) - 1
    near = rows.sign() * (number + by * side) / 448 * amax
    return near.scatter(1, rows.abs().argmax(1, keepdim=True), rows.sign() * amax).view(held.shape)


ENDS = {"embedding": "embedding.weight", "head": "head.weight", "norm": "norm.weight"}


@contract("PREC-01c", asks=("initial", "run_model"), cases=ENDS, source="hub")
def the_ends_of_a_model_are_not_in_fp8(stack: Training, name: str) -> None:
    """Embedding, final norm and output projection have a finer resolution than FP8."""
    recipe = replace(FP8, depth=2)
    held = stack.initial(recipe, "nemo_native")
    weights = {each: numerics.array(numerics.tensor(value)) for each, value in held.items()}
    tokens = fixtures.integers("tokens", (2, 9), recipe.vocab)
    batch = Tokens(tokens=numerics.array(tokens), labels=numerics.array(tokens))
    logits: list[Array] = []
    for by in (LOW, HIGH):
        given = weights | {name: numerics.array(_off(name, weights[name], by))}
        logits.append(stack.run_model(recipe, Execution(precision="float64"), given, batch, False).logits)
    assert numerics.difference("logits", logits[0], logits[1], EXACT), (
        f"a change of {name} below FP8's resolution changes no logit"
    )

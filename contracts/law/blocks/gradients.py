"""Gradients of a whole model: they match finite differences, every weight has one, and recomputation changes none."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import fixtures, numerics, work
from contracts.law._support.model_passes import EVERYTHING, WHOLE, batch, drawn_weights, one_pass, tensor
from contracts.law._support.recipes import DENSE, PARALLEL, SMALL_MLA
from contracts.spec import (
    EXACT,
    FLOAT64,
    Array,
    Mhc,
    Mode,
    Moe,
    Mtp,
    NotOffered,
    Parameter,
    Precision,
    Recipe,
    Tokens,
    Training,
)

_SIGMOID = Moe(
    experts=12, top_k=3, expert_hidden=20, shared_hidden=28, score="sigmoid", selection_bias=True, z_loss=0.01
)

DIFFERENCED: dict[str, tuple[Recipe, Mode]] = {
    "streams-and-depths": (replace(EVERYTHING, moe=_SIGMOID, depth=4), "nemo_native"),
    "custom-mixers": (replace(WHOLE, depth=4), "author_dp"),
    "dense": (DENSE, "nemo_native"),
    "tied-latent": (
        replace(SMALL_MLA, pattern="AE", depth=2, untied_embeddings=False, mtp=Mtp(depth=1)),
        "nemo_native",
    ),
}

STEP = 1e-5  # of a central difference: its own error is about STEP² and 1e-16 / STEP, both near 1e-10


CUSTOM = {"custom-mixers": ("mamba", "recurrent"), "tied-latent": ("mla", "tied")}


@contract(
    "BLK-07a",
    float32=False,
    asks=("built", "initial", "run_model"),
    cases=DIFFERENCED,
    needs=CUSTOM,
    sheds=("packed",),
    source="F18; PRV-30",
)
def gradients_are_the_slope_of_the_loss(stack: Training, recipe: Recipe, mode: Mode) -> None:
    """In float64 the gradient of `total` predicts its change under a small step in the weights of one layer, of the
    embedding, of the output projection or of a prediction head, along a random direction.

    Finite differences do not use autograd, so they reveal a detached path, a residual that doubles its gradient, and a
    fused loss that broadcasts its gradient from the first element. No loss curve shows these.
    """
    weights, tokens = drawn_weights(stack, recipe, mode=mode), batch(recipe, ((2, 3), (4, 1)))
    rows = stack.built(recipe, mode).parameters
    run = one_pass(stack, recipe, weights, tokens, backward=True, mode=mode)
    gradients = numerics.tensors(run.gradients)
    for place in dict.fromkeys(map(_place, rows)):
        names = [row.name for row in rows if _place(row) == place]
        direction = {name: fixtures.normal(f"way {name}", weights[name].shape) for name in names}
        totals = []
        for sign in (1, -1):
            shifted = {name: tensor(weights[name]) + sign * STEP * direction[name] for name in names}
            moved = {**weights, **numerics.arrays(shifted)}
            totals.append(one_pass(stack, recipe, moved, tokens, mode=mode).losses["total"])
        slope = (totals[0] - totals[1]) / (2 * STEP)
        found = sum(float((gradients[name] * direction[name]).sum()) for name in names if name in gradients)
        size = sum(float(each.square().sum()) for name, each in gradients.items() if name in direction) ** 0.5
        assert abs(slope - found) <= 1e-6 * max(size, abs(slope)), (
            f"the gradient of {place} gives a slope of {found:.9g}, finite differences give {slope:.9g}"
        )


def _place(row: Parameter) -> str:
    """The group of a weight: its layer, or its role."""
    if row.layer is not None:
        return f"layer {row.layer}"
    return row.role if row.role in ("embedding", "head") else "the rest"


REACHED: dict[str, tuple[Recipe, Mode]] = {
    "streams-and-depths": (replace(EVERYTHING, moe=_SIGMOID), "nemo_native"),
    "custom-mixers": (replace(WHOLE, activation="swiglu"), "author_dp"),
    "dense": (DENSE, "nemo_native"),
    "latent": (replace(SMALL_MLA, pattern="AER", depth=3, mtp=Mtp(depth=1)), "nemo_native"),
    "bf16": (replace(EVERYTHING, dtype="bf16"), "nemo_native"),
    "side-by-side": (PARALLEL, "nemo_native"),
}


GRADED = {
    "streams-and-depths": ("experts",),
    "bf16": ("experts",),
    "custom-mixers": ("mamba", "recurrent"),
    "latent": ("mla",),
    "side-by-side": ("parallel-ssm",),
}


@contract(
    "BLK-07b",
    asks=("built", "initial", "run_model"),
    cases=REACHED,
    needs=GRADED,
    sheds=("packed",),
    source="F18; OPT-26",
)
def every_weight_gets_a_gradient(stack: Training, recipe: Recipe, mode: Mode) -> None:
    """After one pass every weight that the optimizer updates has a finite, nonzero gradient, and so does each expert
    that received a token.

    A model with a kernel without a backward pass, an unused module or a layer under no_grad still reaches the same
    loss, a little later.
    """
    weights = {} if recipe.dtype == "bf16" else drawn_weights(stack, recipe, mode=mode)
    precision: Precision = "declared" if recipe.dtype == "bf16" else "float64"
    run = one_pass(stack, recipe, weights, _labelled(recipe), backward=True, mode=mode, precision=precision)
    for row in stack.built(recipe, mode).parameters:
        if row.optimizer is None:
            continue
        assert row.name in run.gradients, f"{row.name} gets no gradient"
        gradient = tensor(run.gradients[row.name])
        assert bool(gradient.isfinite().all()), f"the gradient of {row.name} is not finite"
        assert bool(gradient.any()), f"the gradient of {row.name} is zero"
        if row.role == "expert" and f"layers.{row.layer}.counts" in run.seen:
            given = tensor(run.seen[f"layers.{row.layer}.counts"]) > 0
            dead = [e for e, each in enumerate(gradient) if bool(given[e]) and not bool(each.any())]
            assert not dead, f"experts {dead} of {row.name} were given tokens and get no gradient"


def _labelled(recipe: Recipe) -> Tokens:
    """A batch. Without a balance loss a label stands at every position: in the last layer nothing else reaches an
    expert."""
    tokens = batch(recipe)
    if recipe.moe is None or recipe.moe.aux_loss:
        return tokens
    return replace(tokens, labels=numerics.array(tensor(tokens.tokens).roll(-1, 1)))


RECOMPUTED: dict[str, tuple[Recipe, Mode, Precision]] = {
    "streams-and-depths": (replace(EVERYTHING, moe=_SIGMOID), "nemo_native", "float64"),
    "custom-mixers-bf16": (replace(WHOLE, dtype="bf16"), "author_dp", "declared"),
    "latent-streams": (replace(SMALL_MLA, pattern="AEM", depth=4, mhc=Mhc(streams=2)), "nemo_native", "float32"),
    "seven-dense": (replace(WHOLE, pattern="AE", depth=7, moe=None), "nemo_native", "float64"),
    "side-by-side": (PARALLEL, "nemo_native", "float64"),
}


MORE = 1.1
"""A forward pass is a third of both: all layers once more are a third more, less what lies outside of them. Parts that
are recomputed one by one leave out the last product of each, since nobody reads it."""
TWICE = {
    "": ("recompute", "experts"),
    "custom-mixers-bf16": ("recompute", "mamba", "recurrent"),
    "latent-streams": ("recompute", "mla"),
    "seven-dense": ("recompute",),
    "side-by-side": ("recompute", "parallel-ssm"),
}


@contract("BLK-07e", asks=("initial", "run_model"), cases=RECOMPUTED, needs=TWICE, sheds=("packed",),
          source="F15; ACK-07; ACK-08")  # fmt: skip
def recomputed_layers_run_twice(stack: Training, recipe: Recipe, mode: Mode, precision: Precision) -> None:
    """With recomputation, set by the execution or by the recipe, a forward and backward pass computes at least 10 %
    more matrix products than without.

    Recomputation that is asked for and wraps nothing, or every second layer, changes no number: it shows where a step
    at full size runs out of memory.
    """
    weights, tokens = drawn_weights(stack, recipe, mode=mode), batch(recipe)
    full, found = replace(recipe, recompute="full"), []
    for asked, recompute in ((recipe, False), (recipe, True), (full, False)):
        with work.counted() as done:
            one_pass(stack, asked, weights, tokens, backward=True, mode=mode, precision=precision, recompute=recompute)
        found.append(done.operations)
    if not found[0]:
        raise NotOffered("it computes in another process, where products are not counted", "adapter")
    for setter, operations in zip(("the execution", "the recipe"), found[1:], strict=True):
        times = operations / found[0]
        assert times >= MORE, (
            f"recompute set by {setter}: {times:.2f} times the products of a pass that keeps everything"
        )


@contract(
    "BLK-07c",
    asks=("initial", "run_model"),
    cases=RECOMPUTED,
    needs=TWICE,
    sheds=("packed",),
    source="F13; ACK-01; AUX-14; MXP-11",
)
def recomputation_changes_nothing(stack: Training, recipe: Recipe, mode: Mode, precision: Precision) -> None:
    """Recomputing layers in the backward pass, set by the execution or by the recipe, changes no bit of logits, losses,
    gradients and counters: a layer that runs twice counts its tokens once.
    """
    weights, tokens = drawn_weights(stack, recipe, mode=mode), batch(recipe)
    kept = one_pass(stack, recipe, weights, tokens, backward=True, mode=mode, precision=precision)
    full = replace(recipe, recompute="full")
    runs = {
        "the execution": one_pass(
            stack, recipe, weights, tokens, backward=True, mode=mode, precision=precision, recompute=True
        ),
        "the recipe": one_pass(stack, full, weights, tokens, backward=True, mode=mode, precision=precision),
    }
    for asked, run in runs.items():
        named: list[tuple[str, Array, Array]] = [("logits", run.logits, kept.logits)]
        named += [(f"the counter {name}", each, kept.seen[name]) for name, each in run.seen.items()]
        named += [(f"the gradient of {name}", each, kept.gradients[name]) for name, each in run.gradients.items()]
        for what, got, want in named:
            words = numerics.difference(what, got, want, EXACT)
            assert not words, f"recompute set by {asked}: {words}"
        assert run.losses == kept.losses, f"recompute set by {asked}: losses are {run.losses}, kept {kept.losses}"
        missing = kept.gradients.keys() - run.gradients.keys()
        assert not missing, f"recompute set by {asked}: {', '.join(sorted(missing))} have no gradient"


WATCHED: dict[str, tuple[Recipe, Mode]] = {
    "streams-and-depths": (replace(EVERYTHING, moe=_SIGMOID), "nemo_native"),
    "custom-mixers": (WHOLE, "author_dp"),
    "dense": (replace(DENSE, depth=3), "nemo_native"),
}


@contract("BLK-07d", asks=("initial", "run_model"), cases=WATCHED, sheds=("packed",), source="F13; F15",
          needs={"": (), "custom-mixers": ("mamba", "author-dp")})  # fmt: skip
def a_pass_that_only_looks_is_the_one_that_trains(stack: Training, recipe: Recipe, mode: Mode) -> None:
    """A pass without gradients (`no_grad`) gives the same logits, losses and counters as a pass with gradients, before
    or after it.

    A validation loss is compared with a training loss. Noise, capacity or a kernel that depends on whether gradients
    are wanted makes them losses of two models, and a mode that nobody sets back stays.
    """
    weights, tokens = drawn_weights(stack, recipe, mode=mode), batch(recipe)
    before, trained, after = (
        one_pass(stack, recipe, weights, tokens, backward=backward, mode=mode) for backward in (False, True, False)
    )
    for when, looked in (("before", before), ("after", after)):
        words = numerics.difference(f"{when} a pass with gradients logits", looked.logits, trained.logits,
                                                FLOAT64)  # fmt: skip
        assert not words, words
        for name, loss in trained.losses.items():
            found = looked.losses.get(name, float("nan"))
            assert abs(found - loss) <= 1e-12 * max(1.0, abs(loss)), (
                f"{when} a pass with gradients {name} is {found:.10g}, with them {loss:.10g}"
            )
        words = numerics.differences(f"{when} a pass with gradients the counter", looked.seen,
                                                 trained.seen, EXACT)  # fmt: skip
        assert not words, words

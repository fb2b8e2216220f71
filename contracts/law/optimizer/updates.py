"""An optimizer step: which weights and moments follow from the gradients that the step itself observed."""

from collections.abc import Mapping
from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics, oracles
from contracts.law._support.fp8_calls import FP8
from contracts.law._support.late import Tensor
from contracts.law._support.training_run import (
    DENSE,
    LETTERS,
    MUON,
    ROWS_OF_16,
    TIED,
    batch,
    batches,
    drawn_weights,
    run,
    table,
    updates,
)
from contracts.law.optimizer.parameter_groups import OF_MUON, SPARSE, after_muon, muon_difference
from contracts.spec import (
    FLOAT32,
    FLOAT64,
    FLOAT64_SCAN,
    Arrays,
    Execution,
    Optim,
    Parameter,
    Recipe,
    Session,
    Tokens,
    Trained,
    Training,
    chosen,
    within,
)


def _with(recipe: Recipe, **changes: object) -> Recipe:
    return replace(recipe, optim=replace(recipe.optim, **changes))  # type: ignore[arg-type]  # fields by name


OUTSIDE = {"embedding.weight": 0.25, "head.weight": 0.25}
"""Rates of embedding and output projection, in shares of the schedule's."""
STEPS: dict[str, tuple[Recipe] | tuple[Recipe, Mapping[str, float]]] = {
    "warming-up-and-clipped": (LETTERS,),
    "never-clipped": (_with(LETTERS, clip=1e6),),
    "gradients-as-small-as-epsilon": (_with(LETTERS, clip=1e-6),),
    "other-betas": (_with(LETTERS, beta1=0.5, beta2=0.7, weight_decay=0.0),),
    "no-first-moment": (_with(LETTERS, beta1=0.0),),
    "tied": (TIED,),
    "dense": (DENSE,),
    "muon": (MUON,),
    "muon-other-betas": (_with(MUON, beta1=0.5, beta2=0.7),),
    "muon-never-clipped": (_with(MUON, clip=0.0, warmup=0),),
    "two-rates": (DENSE, OUTSIDE),
    "rates-in-layers": (DENSE, {"layers.1.mixer.w2.weight": 0.5, "layers.2.norm.weight": 2.0}),
    "rising-decay": (_with(DENSE, weight_decay=0.2, end_weight_decay=0.8),),
    "rising-from-0": (_with(DENSE, weight_decay=0.0, end_weight_decay=0.6, steps=3),),
    "muon-rising-decay": (_with(MUON, weight_decay=0.2, end_weight_decay=0.8),),
    "muon-rates": (_with(DENSE, rule="muon"), {"layers.1.mixer.w2.weight": 0.5, "layers.2.mixer.wq.weight": 2.0}),
}
"""Four steps each: two of warm-up, two of decay. Rates, gradients and clip factors differ from step to step."""
OF_RATES = {
    **dict.fromkeys(("rising-decay", "rising-from-0"), ("changing-decay",)),
    "muon-rising-decay": ("changing-decay", "muon"),
    "two-rates": ("outer-rates",),
    "rates-in-layers": ("layer-rates",),
    "muon-rates": ("layer-rates", "muon"),
}


@contract(
    "OPT-04a", asks=("built", "train"), cases=STEPS, sheds=("packed",), source="F01 F09",
    needs={"": (), "gradients-as-small-as-epsilon": ("float64",), **OF_RATES}, conventions=(*OF_MUON, "first-rate"),
)  # fmt: skip
def weights_after_each_step_are_those_of_the_rule(
    stack: Training, recipe: Recipe, shares: Mapping[str, float] | None = None
) -> None:
    """Each step moves the weights as AdamW or Muon does, given the step's gradients, clip factor and rate.

    Bias correction uses the number of steps; epsilon is added to the root and not under it; decay is decoupled and
    follows the schedule; Muon has Nesterov momentum and a step of 0.2 · sqrt(max(out, in)). If a weight has a rate of
    its own, all of that is by its share of the schedule's, and no other weight moves otherwise. The check compares
    moves, not weights, because a wrong step of a thousandth disappears in the weights.

    A decay with an end follows its line up to the last step and stays there. What it spares does not depend on where
    it begins: norms do not decay after a decay of 0.
    """
    rows = table(stack, _with(recipe, weight_decay=1.0, end_weight_decay=None))
    weights = drawn_weights(rows)
    trained = run(stack, recipe, batches(4, recipe=recipe), "gradients", "weights", weights=weights, rates=shares)
    betas = {"beta1": recipe.optim.beta1, "beta2": recipe.optim.beta2}
    moved, line = updates(weights, trained), _decays(stack, recipe.optim, len(trained.steps))
    for row in rows:
        weight, share = numerics.tensor(weights[row.name]), (shares or {}).get(row.name, 1.0)
        what = f"the {row.optimizer} move of {row.name}"
        rates, decays = [step.lr * share for step in trained.steps], [row.weight_decay * each for each in line]
        if row.optimizer == "muon":
            wanted, rounded = (
                _by_muon(stack, row, weights, trained, rates, decays, half=half) for half in (False, True)
            )
        else:
            given = _clipped(trained, row.name)
            wanted = rounded = _moves(weight, oracles.optimizers.adamw(weight, given, rates, decay=decays, **betas))
        for step, (move, want, half) in enumerate(zip(moved, wanted, rounded, strict=True), start=1):
            if row.optimizer == "muon":
                words = muon_difference(stack, what, move[row.name], want, half)
            else:
                words = numerics.difference(what, move[row.name], want, FLOAT64_SCAN)
            assert not words, f"{words} (step {step})"


def _decays(stack: object, optim: Optim, steps: int) -> list[float]:
    """The weight decay of each step, of what decays by the whole of it."""
    end = optim.weight_decay if optim.end_weight_decay is None else optim.end_weight_decay
    before = 1 if chosen(stack, "first-rate") == "step-0" else 0
    done = [min(1.0, (step - before) / optim.steps) for step in range(1, steps + 1)]
    return [optim.weight_decay + (end - optim.weight_decay) * each for each in done]


def _by_muon(
    stack: object, row: Parameter, weights: Arrays, trained: Trained, rates: list[float], decays: list[float], *,
    half: bool,
) -> list[Tensor]:  # fmt: skip
    """The moves of one parameter by Muon's oracle; `half` is for products in bfloat16."""
    start = numerics.tensors(weights)
    given = [
        {name: each * step.clip_coef for name, each in numerics.tensors(step.gradients).items()}
        for step in trained.steps
    ]
    return _moves(start[row.name], after_muon(stack, row.name, start, given, rates, decay=decays, half=half))


def _moves(weight: Tensor, after: list[Tensor]) -> list[Tensor]:
    return [new - old for new, old in zip(after, [weight, *after[:-1]], strict=True)]


def _clipped(trained: Trained, name: str) -> list[Tensor]:
    tensor = numerics.tensor
    return [tensor(step.gradients[name]) * step.clip_coef for step in trained.steps]


MOMENTS = {"adamw": (LETTERS,), "muon": (MUON,), "dense": (DENSE,)}


@contract("OPT-04b", asks=("built", "train"), cases=MOMENTS, needs=(), sheds=("packed",), source="F01 F07")
def moments_are_means_of_clipped_gradients(stack: Training, recipe: Recipe) -> None:
    """AdamW's moments after k steps are the running means of the clipped gradients and of their squares.

    Adam's first move does not depend on a factor on the gradients. A wrong factor (clipped twice or too late, divided
    by microbatches or ranks, scaled for the loss) therefore shows here and not in the loss.
    """
    rows = [row for row in table(stack, recipe) if row.optimizer == "adamw"]
    trained = run(
        stack, recipe, batches(3, recipe=recipe), "gradients", "optimizer", weights=drawn_weights(table(stack, recipe))
    )
    beta1, beta2 = recipe.optim.beta1, recipe.optim.beta2
    for row in rows:
        gradients = _clipped(trained, row.name)
        g1, g2, g3 = gradients
        first = (1 - beta1) * (beta1**2 * g1 + beta1 * g2 + g3)
        second = (1 - beta2) * (beta2**2 * g1**2 + beta2 * g2**2 + g3**2)
        for entry, want in (("exp_avg", first), ("exp_avg_sq", second)):
            held = trained.steps[-1].optimizer.get(f"{row.name}/{entry}")
            assert held is not None, f"{row.name} has no {entry}"
            words = numerics.difference(f"{entry} of {row.name}", held, want, FLOAT64)
            assert not words, f"{words} (step 3)"


NEARLY = {"letters": (LETTERS,), "dense": (DENSE,)}


@contract("OPT-04g", asks=("built", "train"), cases=NEARLY, source="F07; CLP-05")
def a_gradient_a_little_over_the_limit_is_clipped(stack: Training, recipe: Recipe) -> None:
    """If the gradient norm is 25 % over the limit, the moments equal the unclipped step's times the reported clip
    factor.

    If every norm in a test is many times the limit or below it, a clipping that begins at twice the limit is right.
    """
    rows = table(stack, recipe)
    weights, given = drawn_weights(rows), batches(1, recipe=recipe)
    (free,) = run(stack, _with(recipe, clip=1e6), given, "optimizer", weights=weights).steps
    (held,) = run(stack, _with(recipe, clip=0.8 * free.grad_norm), given, "optimizer", weights=weights).steps
    assert 0.79 < held.clip_coef < 0.81, f"at 0.8 of the norm gradients were multiplied by {held.clip_coef:.6g}"
    for name in (f"{row.name}/exp_avg" for row in rows if row.optimizer == "adamw"):
        assert name in free.optimizer.keys() & held.optimizer.keys(), f"after a step there is no {name}"
        want = numerics.tensor(free.optimizer[name]) * held.clip_coef
        words = numerics.difference(f"{name} of a gradient a little over", held.optimizer[name], want, FLOAT64)
        assert not words, words


PRECISIONS = {
    "bf16": (replace(LETTERS, dtype="bf16"),),
    "bf16-muon": (replace(MUON, dtype="bf16"),),
    "fp32": (LETTERS,),
    "fp32-dense": (DENSE,),
}


@contract("OPT-05a", asks=("built", "train"), cases=PRECISIONS, needs=(), sheds=("packed",), source="F09")
def weights_and_state_are_float32(stack: Training, recipe: Recipe) -> None:
    """Weights, gradients and optimizer state are float32, whatever the dtype of the activations.

    In bfloat16 a step of 1e-3 on a weight of 1 is lost to rounding, and the loss curve does not show it. The check
    reads the dtype of what is held, and expects a norm's weight, near 1, to move by a small rate.
    """
    recipe = _with(recipe, lr=1e-4, min_lr=1e-4, warmup=0, weight_decay=0.0)
    trained = run(
        stack, recipe, (batch("precision", recipe=recipe),), "weights", "optimizer", "gradients", declared=True
    )
    (step,) = trained.steps
    for name, held in {**step.weights, **step.gradients, **step.optimizer}.items():
        assert held.dtype in ("float32", "int64"), f"{name} is held in {held.dtype}, expected float32"
    for row in table(stack, recipe):
        if row.role == "norm":
            moved = numerics.tensor(step.weights[row.name]).double() - 1
            reached = numerics.tensor(step.gradients[row.name]) != 0
            largest = float(moved[reached].abs().max()) if bool(reached.any()) else 1e-4
            assert 0.9e-4 < largest < 1.1e-4, f"{row.name} moved by {largest:.3g} in a first step at a rate of 0.0001"


HALF = replace(LETTERS, name="letters-half", dtype="bf16")
FRESH: dict[str, tuple[Recipe, Execution]] = {
    "adamw": (LETTERS, Execution(precision="float64")),
    "muon": (MUON, Execution(precision="float64")),
    "dense": (DENSE, Execution(precision="float64")),
    "half": (HALF, Execution(microbatches=2)),
    "half-dense": (replace(DENSE, name="dense-half", dtype="bf16"), Execution(recompute=True)),
    "fp8": (replace(FP8, pattern="AE", depth=2, optim=LETTERS.optim), Execution(microbatches=2)),
    "sparse": (SPARSE, Execution(precision="float64")),
}


@contract(
    "OPT-04c", asks=("built", "train"), cases=FRESH, needs={"": (), "sparse": ("dsa", "mla")},
    sheds=("packed",), source="F07 F19",
)  # fmt: skip
def gradients_of_a_step_are_of_its_batch_alone(stack: Training, recipe: Recipe, execution: Execution) -> None:
    """The gradients of a step depend only on its own batch: the second step's gradients equal those of a pass over its
    batch at its weights.

    A gradient that is not zeroed, or a tensor that keeps an old one because the batch did not reach it, accumulates. A
    second copy of the weights, in 16 or 8 bits, that an update does not reach computes with those of an earlier step.
    So do keys that sparse attention selected once and kept, and a mask that is kept for the next batch of its shape.
    """
    weights = drawn_weights(table(stack, recipe))
    given = unlike_batches("step", recipe)
    words = stale_gradient(stack, Session(recipe=recipe, steps=2, execution=execution, batches=given, weights=weights))
    assert not words, words


def unlike_batches(name: str, recipe: Recipe) -> tuple[Tokens, Tokens]:
    """Two batches of one shape, whose rows have other documents and other labels that count."""
    first, second = (batch(f"{name} {i}", recipe.vocab, rows, recipe=recipe)
                     for i, rows in enumerate((ROWS_OF_16, ROWS_OF_16[::-1])))  # fmt: skip
    return first, second


def stale_gradient(stack: Training, session: Session) -> str:
    """How the second step of a session differs from a run that takes only this step, from the weights of the first."""
    both = stack.train(replace(session, observe=frozenset({"gradients", "weights"})))
    alone = replace(session, steps=1, batches=session.batches[1:], weights=both.steps[0].weights)
    (again,) = stack.train(replace(alone, observe=frozenset({"gradients"}))).steps
    second = both.steps[1]
    for name, loss in again.losses.items():
        if abs(second.losses[name] - loss) > within(1e-9) * max(1.0, abs(loss)):
            return f"the second step's {name} is {second.losses[name]:.9g}, from its weights it is {loss:.9g}"
    tolerance = FLOAT64 if session.execution.precision == "float64" else FLOAT32
    return numerics.gradient_differences("the second step's gradient of", second.gradients, again.gradients, tolerance)

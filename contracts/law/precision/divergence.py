"""A run that diverged says so: numbers that are not finite reach whoever watches the loss."""

import math
from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import own_axis
from contracts.law._support.training_run import DENSE, ROWS_OF_16, batch, large_expert_weights
from contracts.spec import Arrays, Execution, Recipe, Refused, Session, Step, Tokens, Training

LOUD = DENSE.vocab - 1
"""A token whose embedding is not finite. No batch has it but the one that is to diverge."""
RECIPE = replace(DENSE, name="dense-diverging", seq_length=16)
SOURCE = "transformers: logging_nan_inf_filter; Megatron-LM's check_for_nan_in_loss_and_grad"
DIVERGED: dict[str, tuple[Recipe, float, int, bool]] = {  # embedding of the token, microbatches, in a validation
    "not-a-number": (RECIPE, math.nan, 1, False),
    "infinite": (RECIPE, math.inf, 1, False),
    "one-microbatch": (RECIPE, math.nan, 4, False),
    "validation": (RECIPE, math.nan, 1, True),
}


@contract(
    "PREC-05g", asks=("built", "train"), cases=DIVERGED, needs={"": (), "validation": ("validation",)},
    sheds=("packed",), source=SOURCE,
)  # fmt: skip
def a_run_that_diverged_says_so(
    stack: Training, recipe: Recipe, value: float, microbatches: int, validates: bool
) -> None:
    """If one token's embedding is NaN or Inf, a step reports a non-finite loss and a non-finite gradient norm, and a
    validation a non-finite loss, or either is refused.

    A display that leaves NaN out, a mean over the microbatches that are finite and a gradient that is cleaned before
    its norm is taken make a run that is lost look like one that learns.
    """
    quiet, loud = _batch(recipe, "quiet", loud=False), _batch(recipe, "loud", loud=True)
    asked = Session(
        recipe=recipe, steps=1, execution=Execution(microbatches=microbatches), batches=(quiet,),
        weights=_weights(stack, recipe, value),
    )  # fmt: skip
    if validates:
        asked = replace(asked, validation=(quiet,), validate_at=frozenset({1}))
    (before,) = stack.train(asked).steps
    assert _finite(before) == {"lm", "grad_norm"} | ({"validation"} if validates else set()), (
        f"without the token, {before.losses['lm']:g} is the loss and {before.grad_norm:g} the norm"
    )
    try:
        (got,) = stack.train(
            replace(asked, validation=(quiet, loud)) if validates else replace(asked, batches=(loud,))
        ).steps
    except Refused:
        return
    silent = _finite(got) & ({"validation"} if validates else {"lm", "grad_norm"})
    assert not silent, _told(got, silent, f"an embedding of the batch is {value}")


ON_RANKS: dict[str, tuple[Recipe, Execution, int]] = {
    "dp2": (RECIPE, own_axis(2), 2),
    "fsdp2": (RECIPE, own_axis(2, fsdp=True), 2),
}


@contract("PREC-05h", asks=("built", "train"), cases=ON_RANKS, tier="dist", source=SOURCE)
def a_run_that_diverged_on_one_rank_says_so_on_all(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """If the embedding of one rank's rows is NaN or Inf, the step reports a non-finite loss and a non-finite gradient
    norm on every rank, or is refused.

    A rank that leaves itself out of the sum when its loss is NaN hides it from all: the log has only the others.
    """
    asked = Session(
        recipe=recipe, steps=1, execution=replace(in_a_layout_of(stack, execution), precision="declared"),
        batches=(_batch(recipe, "loud", loud=True),), weights=_weights(stack, recipe, math.nan),
    )  # fmt: skip
    try:
        (got,) = stack.train(asked).steps
    except Refused:
        return
    silent = _finite(got) & {"lm", "grad_norm"}
    assert not silent, _told(got, silent, "an embedding of the rows of rank 0 is nan")


def _weights(stack: Training, recipe: Recipe, value: float) -> Arrays:
    held = numerics.tensors(large_expert_weights(stack, recipe, "float32"))
    for row in stack.built(recipe, "nemo_native").parameters:
        if row.role == "embedding":
            held[row.name][LOUD] = value
    return numerics.arrays(held)


def _batch(recipe: Recipe, name: str, *, loud: bool) -> Tokens:
    """Four rows of 16 tokens; in a loud batch the first has the token in its fourth place."""
    given = batch(name, LOUD, ROWS_OF_16, recipe=recipe)
    tokens_BT = numerics.tensor(given.tokens)
    if loud:
        tokens_BT[0, 3] = LOUD
    return replace(given, tokens=numerics.array(tokens_BT))


def _finite(step: Step) -> set[str]:
    """Which of the numbers that a step reports are finite."""
    return {name for name, each in _numbers(step).items() if each is not None and math.isfinite(each)}


def _numbers(step: Step) -> dict[str, float | None]:
    return {"lm": step.losses["lm"], "grad_norm": step.grad_norm, "validation": step.validation}


def _told(step: Step, silent: set[str], why: str) -> str:
    numbers = _numbers(step)
    return f"{', '.join(f'{name} is {numbers[name]:.6g}' for name in sorted(silent))}, and {why}"

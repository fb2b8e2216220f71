"""What is added up in half precision, and what must not be: gradients of microbatches, labels, losses and norms."""

import math
from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.fp8_calls import FP8, with_scaling
from contracts.law._support.label_weights import WINDOW
from contracts.law._support.late import torch
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import own_axis
from contracts.law._support.step_comparison import loss_difference, on_one_rank
from contracts.law._support.training_run import AHEAD, DENSE, LETTERS, Rows, batch, large_expert_weights, run
from contracts.law.precision.loss_scale import DENSE_HALF
from contracts.spec import FLOAT32_SCAN, Execution, Moe, Recipe, Session, Step, Tokens, Training

EIGHT: Rows = tuple(((13,), 4) for _ in range(4))
OF_16: Rows = tuple(((16,), 7) for _ in range(4))
"""Eight labels in each of four rows: shares are powers of two, and round nothing. FP8 takes rows of sixteen tokens."""
ADDED: dict[str, tuple[Recipe]] = {
    "letters": (replace(LETTERS, dtype="bf16", moe=replace(LETTERS.moe or Moe(), aux_loss=0.0)),),
    "dense": (replace(DENSE, dtype="bf16"),),
    "dense-fp16": (replace(DENSE_HALF, name="dense-half-added"),),
    "fp8": (with_scaling(replace(FP8, pattern="AE", depth=2, moe=None, optim=LETTERS.optim), "tensorwise", "e4m3"),),
}


@contract(
    "PREC-05d", asks=("built", "train"), cases=ADDED, conventions=WINDOW, sheds=("packed",),
    needs={
        "": ("microbatches",),
        "letters": ("experts", "microbatches"),
        "fp8": ("fp8", "microbatches"),
    },
    source="Megatron-Core: main_grad, grad_reduce_in_fp32; F09",
)  # fmt: skip
def gradients_of_microbatches_are_added_in_float32(stack: Training, recipe: Recipe) -> None:
    """Under bfloat16, float16 and FP8 the gradients of microbatches are added in float32: a step over four of them has
    the mean of the gradients that each gives by itself, to the accuracy of float32.

    All shares are powers of two, so that each microbatch rounds as it does by itself. In bfloat16 a sum of many
    microbatches stands still once it is 256 times as large as the next one; in float16 it overflows. Scales of FP8 that
    are kept from the first microbatch give the later ones other gradients.
    """
    held = numerics.tensors(large_expert_weights(stack, recipe, "float32"))
    for row in stack.built(recipe, "nemo_native").parameters:
        if row.role == "head" and recipe.dtype == "fp16":
            held[row.name] *= 2**-6  # so that the eight labels of one microbatch overflow no gradient
    weights = numerics.arrays(held)
    given = replace(batch("added", rows=OF_16 if recipe.fp8 else EIGHT, recipe=recipe), documents=None)
    (whole,) = run(stack, recipe, (given,), "gradients", weights=weights, microbatches=4, declared=True).steps
    rows = zip(*(numerics.tensor(each)[:, None].unbind() for each in (given.tokens, given.labels)), strict=True)
    alone = [
        numerics.tensors(
            run(
                stack, recipe, (Tokens(tokens=numerics.array(tokens_BT), labels=numerics.array(labels_BT)),),
                "gradients", weights=weights, declared=True,
            ).steps[0].gradients
        )
        for tokens_BT, labels_BT in rows
    ]  # fmt: skip
    want = {name: torch.stack([each[name] for each in alone]).mean(0) for name in alone[0]}
    words = numerics.gradient_differences("over four microbatches the gradient of", whole.gradients, want, FLOAT32_SCAN)
    assert not words, words


FIGURES = 1e-5
"""Relative, of what is added up in float32: hundreds of numbers, each off by 6e-8. In bfloat16 a sum is off by 2e-3."""
FOUR: Rows = (((13,), 5), *(((13,), 0),) * 3)
TWENTY_FIVE: Rows = (((13,), 7), *(((13,), 0),) * 24)
"""Rows of a microbatch, with 43 labels and with 293. Seven have 301, which bfloat16 does not hold, and 2051, which
float16 does not."""
TOLD: dict[str, tuple[Recipe, Rows, int]] = {
    "letters": (ADDED["letters"][0], FOUR, 301),
    "dense": (ADDED["dense"][0], FOUR, 301),
    "prediction-heads": (replace(AHEAD, pattern="AE", depth=2, moe=None, dtype="bf16"), FOUR, 301),
    "dense-fp16": (replace(DENSE_HALF, name="dense-half-told", depth=2), TWENTY_FIVE, 2051),
}


@contract(
    "PREC-06a", asks=("built", "train"), cases=TOLD, sheds=("packed",),
    needs={
        "": ("microbatches",),
        "letters": ("experts", "microbatches"),
        "prediction-heads": ("prediction-heads", "microbatches"),
    },
    source="torchtitan #4135; transformers #8561; Megatron-LM #7081",
)  # fmt: skip
def what_a_step_tells_is_not_rounded(stack: Training, recipe: Recipe, rows: Rows, labels: int) -> None:
    """Under bfloat16 and float16 a step sums its labels, losses and gradient norm in float32: it counts every label,
    its losses are the means of its microbatches' losses, and its gradient norm and clip coefficient follow from its
    gradients.

    A count in the dtype of the model stands still at 256, and every gradient is divided by it. A norm in that dtype
    moves in steps of half a percent, and another grouping of tensors clips otherwise. Microbatches have equally many
    labels, and round as they do by themselves.
    """
    weights = large_expert_weights(stack, recipe, "float32")
    every = replace(batch("told", rows=rows * 7, recipe=recipe), documents=None)
    parts = zip(*(numerics.tensor(each).chunk(7) for each in (every.tokens, every.labels)), strict=True)
    (step,) = run(stack, recipe, (every,), "gradients", weights=weights, microbatches=7, declared=True).steps
    alone = [
        run(stack, recipe, (Tokens(tokens=numerics.array(tokens_BT), labels=numerics.array(labels_BT)),),
            weights=weights, declared=True).steps[0]
        for tokens_BT, labels_BT in parts
    ]  # fmt: skip
    assert step.tokens == labels, f"{step.tokens} labels count, expected {labels}"
    for name in ("lm", "mtp") if recipe.mtp else ("lm",):
        want = math.fsum(each.losses[name] for each in alone) / 7
        got = step.losses[name]
        assert abs(got - want) <= FIGURES * want, f"{name} is {got:.9g}, the mean of its microbatches {want:.9g}"
    words = _norm_difference(step, recipe)
    assert not words, words


def _norm_difference(step: Step, recipe: Recipe) -> str:
    """How the norm that a step reports differs from its gradients', or the clip coefficient not that of the norm."""
    squares = (each.double().square().sum() for each in numerics.tensors(step.gradients).values())
    norm = math.sqrt(math.fsum(map(float, squares)))
    if abs(step.grad_norm - norm) > FIGURES * norm:
        return f"the norm is {step.grad_norm:.9g}, that of the gradients {norm:.9g}"
    want = min(1.0, recipe.optim.clip / (norm + 1e-6))
    if abs(step.clip_coef - want) > FIGURES * want:
        return f"gradients of norm {norm:.9g} were multiplied by {step.clip_coef:.9g}, expected {want:.9g}"
    return ""


VALIDATED = {"letters": (TOLD["letters"][0],), "dense": (TOLD["dense"][0],)}


@contract(
    "PREC-06c", asks=("built", "train"), cases=VALIDATED, sheds=("packed",),
    needs={"": ("validation",), "letters": ("experts", "validation")},
    source="transformers #8561; torchtitan: Validator",
)  # fmt: skip
def the_loss_of_a_validation_is_not_rounded(stack: Training, recipe: Recipe) -> None:
    """Under bfloat16 the loss of a validation is the mean, in float32, of its batches' losses.

    The step that follows reports the loss of its batch before it moves a weight. A curve of validations that moves by
    half a percent or not at all hides when a run begins to overfit. Batches have equally many labels.
    """
    weights = large_expert_weights(stack, recipe, "float32")
    first, *others = (replace(batch(f"validated {at}", rows=FOUR, recipe=recipe), documents=None) for at in range(8))
    asked = Session(
        recipe=recipe, steps=1, execution=Execution(precision="declared"), batches=(first,), weights=weights,
        observe=frozenset({"weights"}), at=frozenset({1}), validation=tuple(others), validate_at=frozenset({1}),
    )  # fmt: skip
    (step,) = stack.train(asked).steps
    later = (stack.train(replace(asked, steps=2, batches=(first, each))).steps[1].losses["lm"] for each in others)
    want = math.fsum(later) / 7
    got = math.nan if step.validation is None else step.validation
    assert abs(got - want) <= FIGURES * want, (  # not so where it is NaN
        f"the loss of a validation over 7 batches is {got:.9g}, the mean of theirs {want:.9g}"
    )


WIDE = replace(DENSE, name="dense-half-wide", dtype="bf16", seq_length=16, batch=replace(DENSE.batch, total=22))
ROWS_OF_15: Rows = (((16,), 15), ((16,), 14), *(((16,), 0),) * 20)
"""Rows of 15 labels, of which two are masked all but one: 301 labels count."""
ON_RANKS: dict[str, tuple[Recipe, Execution, int]] = {
    "dp2": (WIDE, own_axis(2), 2),
    "fsdp2": (WIDE, own_axis(2, fsdp=True), 2),
    "tp2-sp": (WIDE, own_axis(2, tp=2, sp=True), 2),
    "pp2": (WIDE, replace(own_axis(2, pp=2), microbatches=2), 2),
}


@contract("PREC-06b", asks=("built", "train"), cases=ON_RANKS, tier="dist", source="torchtitan #4135; fairscale #1092")
def what_ranks_tell_is_not_rounded(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Under bfloat16 every rank counts all labels of the step, and its gradient norm and clip coefficient equal those
    of the whole gradients in float32. Data-parallel ranks report the loss that one rank reports when it takes their
    shares as its microbatches.

    What ranks send to one another of counts, losses and norms has the dtype of the model where nobody says otherwise.
    """
    execution = replace(in_a_layout_of(stack, execution), precision="declared")
    asked = Session(
        recipe=recipe, steps=1, execution=execution, weights=large_expert_weights(stack, recipe, "float32"),
        batches=(replace(batch("told", rows=ROWS_OF_15, recipe=recipe), documents=None),),
        observe=frozenset({"gradients"}),
    )  # fmt: skip
    (step,) = stack.train(asked).steps
    assert step.tokens == 301, f"{step.tokens} labels count, expected 301"
    words = _norm_difference(step, recipe)
    if not words and execution.degrees.tp * execution.degrees.pp == 1:
        single = Execution(layout=execution.layout, microbatches=world)
        (one,) = on_one_rank(stack, replace(asked, execution=single, observe=frozenset())).steps
        words = loss_difference(one, step, "lm", bound=FIGURES)
    assert not words, words

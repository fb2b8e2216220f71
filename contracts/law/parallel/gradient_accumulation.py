"""Gradient accumulation: one optimizer step is the same, however many microbatches its batch is cut into."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support import model_passes
from contracts.law._support.label_weights import label_shares
from contracts.law._support.late import torch
from contracts.law._support.model_passes import EVERYTHING, WHOLE
from contracts.law._support.recipes import SMALL_MLA
from contracts.law._support.training_run import (
    AHEAD,
    BIASED,
    BIASES,
    DENSE,
    LETTERS,
    OF_SCANS,
    ROWS,
    SCANS,
    batch,
    drawn_weights,
    run,
    table,
)
from contracts.spec import FLOAT64, FLOAT64_SCAN, Array, Execution, Moe, Recipe, Tokens, Training, chosen, within
from contracts.spec.ladder import rung_of

PLAIN = replace(
    LETTERS, name="letters-without-auxiliary-losses", moe=Moe(experts=14, top_k=3, expert_hidden=20, aux_loss=0.0)
)


EMPTY = (*ROWS[:3], ((13,), 12), ((13,), 13))  # with 5 microbatches the last of them has no label at all
EQUAL = (((13,), 4),) * 5
PAIRS = (((2, 2, 2, 2, 2, 2, 1), 0),) * 5  # a label every other token, and none two tokens on


BY_GROUPS = replace(PLAIN.moe or Moe(), experts=16, top_k=4, score="sigmoid", groups=(4, 2))
GROUPED = replace(PLAIN, name="letters-groups", pattern="AE", depth=4, activation="swiglu", moe=BY_GROUPS)
CUTS = {
    "two": (LETTERS, ROWS, 2),
    "three": (LETTERS, ROWS, 3),
    "one-a-sequence": (LETTERS, ROWS, 5),
    "no-auxiliary-losses": (PLAIN, ROWS, 4),
    "prediction-heads": (AHEAD, ROWS, 4),
    "dense": (DENSE, ROWS, 4),
    "biased": (BIASED, ROWS, 5),
    "groups": (GROUPED, EQUAL, 5),
    "groups-latent": (
        replace(GROUPED, qk_norm=False, mla=SMALL_MLA.mla, moe=replace(BY_GROUPS, shared_hidden=40)),
        EQUAL,
        5,
    ),
    "balance-loss-a-sequence": (LETTERS, ROWS, 5),
    "z-loss-a-sequence": (LETTERS, ROWS, 5),
    "a-microbatch-without-a-label": (LETTERS, EMPTY, 5),
    "heads-without-a-label": (AHEAD, EMPTY, 5),
    "a-step-without-a-label-for-heads": (AHEAD, PAIRS, 5),
    **{name: (recipe, ROWS, 4) for name, recipe in SCANS.items()},
}
"""Five sequences, so that no number of microbatches but 5 divides them."""
UNEVEN = ("microbatches", "uneven-microbatches")
HEADED = {
    "": UNEVEN,
    "one-a-sequence": ("microbatches",),
    "biased": ("microbatches", *BIASES),
    "balance-loss-a-sequence": ("experts", "balance-loss", "microbatches"),
    "z-loss-a-sequence": ("experts", "z-loss", "microbatches"),
    **dict.fromkeys(("groups", "groups-latent"), ("experts", "group-limited", "microbatches")),
    "a-microbatch-without-a-label": ("microbatches",),
    "prediction-heads": ("prediction-heads", *UNEVEN),
    "heads-without-a-label": ("prediction-heads", "microbatches"),
    "a-step-without-a-label-for-heads": ("prediction-heads", "microbatches", "packed"),
    **{name: (*needed, *UNEVEN) for name, needed in OF_SCANS.items()},
}


@contract(
    "PAR-05a", asks=("built", "train"), cases=CUTS, needs=HEADED, sheds=("packed",), source="F19",
    conventions=("window-divides-by", "balance-over"),
)  # fmt: skip
def a_step_does_not_depend_on_its_microbatches(
    stack: Training, recipe: Recipe, rows: tuple[tuple[tuple[int, ...], int], ...], microbatches: int
) -> None:
    """Losses, gradients and weights of a step do not depend on how many microbatches its batch is cut into.

    A label weighs the same in a microbatch with few labels, for auxiliary losses and prediction heads too; a smaller
    last microbatch counts. A mean of means gives the same result only when all microbatches have equally many labels.
    A stack that declares such a mean is asked where it must be so, and one whose balance loss is not over sequences
    without that loss.
    """
    if chosen(stack, "window-divides-by") == "microbatch-means":
        rows, microbatches = EQUAL, len(EQUAL)
    if recipe.moe is not None and chosen(stack, "balance-over") != "sequence":
        recipe = replace(recipe, moe=replace(recipe.moe, aux_loss=0.0))
    weights = drawn_weights(table(stack, recipe))
    given = tuple(batch(name, rows=rows, recipe=recipe) for name in ("one", "two"))
    whole = run(stack, recipe, given, "gradients", "weights", weights=weights)
    cut = run(stack, recipe, given, "gradients", "weights", weights=weights, microbatches=microbatches)
    for one, other in zip(whole.steps, cut.steps, strict=True):
        where = f"in {microbatches} microbatches"
        assert other.tokens == one.tokens, f"{other.tokens} labels count {where}, {one.tokens} in one"
        for name, want in one.losses.items():
            found = other.losses.get(name, float("nan"))
            assert abs(found - want) <= within(1e-11) * max(1.0, abs(want)), (
                f"{name} is {found:.10g} {where}, {want:.10g} in one"
            )
        what, apart = f"{where} the gradient of", numerics.gradient_differences
        words = apart(what, other.gradients, one.gradients, FLOAT64_SCAN)
        assert not words, f"{words} (step {one.number})"


WEIGHED = {"one": (PLAIN, 1), "four": (PLAIN, 4)}


@contract(
    "PAR-05b",
    asks=("built", "train"),
    cases=WEIGHED,
    needs={"four": UNEVEN},
    sheds=("packed",),
    conventions=("window-divides-by",),
    source="F19",
)
def a_label_weighs_the_same_in_every_sequence(stack: Training, recipe: Recipe, microbatches: int) -> None:
    """The loss of a batch is the mean over its labels: the losses and gradients of its single sequences, weighted by
    their label counts, add up to those of the batch.

    Five runs over one sequence each give the expected values. Positions without a label count nowhere. Of a stack that
    declares the mean of its microbatches' means, a sequence weighs by its share of the labels of its microbatch.
    """
    weights, given = drawn_weights(table(stack, recipe)), batch("weigh", recipe=recipe)
    (whole,) = run(stack, recipe, (given,), "gradients", weights=weights, microbatches=microbatches).steps
    alone = [run(stack, recipe, (_row(given, row),), "gradients", weights=weights).steps[0] for row in range(5)]
    counted = [step.tokens for step in alone]
    labels = [1, 12, 6, 12, 2] if rung_of(recipe) else [1, 11, 6, 11, 2]  # a second document costs a label
    assert counted == labels, f"labels that count in each sequence: {counted}, expected {labels}"
    every = sum(labels)
    shares = label_shares(stack, labels, microbatches)
    mean = sum(step.losses["lm"] * share for step, share in zip(alone, shares, strict=True))
    assert whole.tokens == every, f"{whole.tokens} labels count in the batch, expected {every}"
    assert abs(whole.losses["lm"] - mean) < within(1e-11) * mean, (
        f"lm is {whole.losses['lm']:.10g}, the mean over labels {mean:.10g}"
    )
    parts = [numerics.tensors(step.gradients) for step in alone]
    want = {
        name: torch.stack([part[name] * share for part, share in zip(parts, shares, strict=True)]).sum(0)
        for name in parts[0]
    }
    words = numerics.gradient_differences("the batch's gradient of", whole.gradients, want, FLOAT64_SCAN)
    assert not words, words


def _row(given: Tokens, row: int) -> Tokens:
    def cut(value: Array) -> Array:
        return numerics.array(numerics.tensor(value)[row : row + 1])

    documents = None if given.documents is None else cut(given.documents)
    return Tokens(tokens=cut(given.tokens), labels=cut(given.labels), documents=documents)


LENGTHS = {"one": (LETTERS, 1), "three": (LETTERS, 3)}


@contract(
    "PAR-05c", asks=("built", "train"), cases=LENGTHS, needs={"three": ("microbatches",)}, sheds=("packed",),
    source="F19",
)  # fmt: skip
def the_sequence_length_may_change_from_step_to_step(stack: Training, recipe: Recipe, microbatches: int) -> None:
    """If a step's sequences have another length than those of the step before, the step equals the first step of a run
    that begins there: no mask, position or count of the earlier length remains.
    """
    lengths = (((9, 4), 2), ((13,), 5), ((6, 7), 0)), (((7,), 3), ((2, 5), 0), ((7,), 0)), (((1, 15), 1),) * 3
    given = tuple(batch(f"length {i}", rows=rows, recipe=recipe) for i, rows in enumerate(lengths))
    weights = drawn_weights(table(stack, recipe))
    steps = run(stack, recipe, given, "gradients", "weights", weights=weights, microbatches=microbatches).steps
    for before, step, each in zip(steps, steps[1:], given[1:], strict=False):
        (alone,) = run(stack, recipe, (each,), "gradients", weights=before.weights, microbatches=microbatches).steps
        words = numerics.gradient_differences("the gradient of", step.gradients, alone.gradients, FLOAT64)
        assert not words, f"{words} (step {step.number}, after a step of another length)"


PASSED: dict[str, tuple[Recipe, int]] = {
    "one-a-row": (WHOLE, 3),
    "two-of-three-rows": (WHOLE, 2),
    "everything": (EVERYTHING, 3),
    "dense": (replace(DENSE, name="passed"), 3),
}


@contract("PAR-05l", asks=("initial", "run_model"), cases=PASSED, needs=("microbatches",),
          sheds=("packed",), source="F19; GATE-22")  # fmt: skip
def a_pass_in_microbatches_is_the_pass(stack: Training, recipe: Recipe, microbatches: int) -> None:
    """One forward and backward pass over a batch in microbatches has the logits, losses and gradients of the pass over
    the whole batch, row by row.

    An evaluation cuts a batch that does not fit. A mean of means weighs a row of one label as much as a row of twelve;
    gradients that are not added equal the last part's.
    """
    weights, given = model_passes.drawn_weights(stack, recipe), model_passes.batch(recipe)
    whole = model_passes.one_pass(stack, recipe, weights, given, backward=True)
    execution = Execution(microbatches=microbatches, precision="float64")
    cut = stack.run_model(recipe, execution, weights, given, True)
    words = numerics.difference("the logits", cut.logits, whole.logits, FLOAT64_SCAN)
    for depth, (got, want) in enumerate(zip(cut.mtp_logits, whole.mtp_logits, strict=True)):
        words = words or numerics.difference(f"the logits of depth {depth}", got, want, FLOAT64_SCAN)
    for name, want_loss in whole.losses.items():
        told = cut.losses.get(name)
        same = told is not None and abs(told - want_loss) <= within(1e-11) * max(1.0, abs(want_loss))
        words = words or ("" if same else f"the loss {name} is {told}, {want_loss} whole")
    words = words or numerics.gradient_differences("the gradient of", cut.gradients, whole.gradients, FLOAT64_SCAN)
    assert not words, f"in {microbatches} microbatches {words}"

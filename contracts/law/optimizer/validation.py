"""Validation between two steps: it reports a loss, and the run continues as if there had been none."""

from dataclasses import replace
from pathlib import Path

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.fp8_calls import FP8, with_scaling
from contracts.law._support.saved_states import shared_folder
from contracts.law._support.small_models import GROUPED_EXPERTS, LATENT_EXPERTS, Cell, cell, session
from contracts.law._support.step_comparison import on_one_rank
from contracts.law._support.training_run import (
    DENSE,
    LETTERS,
    ROWS,
    ROWS_OF_16,
    Rows,
    batch,
    batches,
    drawn_weights,
    large_expert_weights,
    seed_generators,
    table,
)
from contracts.law._support.transformer_layouts import cells_named
from contracts.spec import (
    EXACT,
    FLOAT32_TRANSFORMER,
    Execution,
    Moe,
    NotOffered,
    Observed,
    Recipe,
    Refused,
    Session,
    Step,
    Tokens,
    Training,
    chosen,
    require_none,
    within,
)

BIASED = replace(
    LETTERS, name="letters-biased",
    moe=Moe(experts=14, top_k=3, expert_hidden=20, score="sigmoid", selection_bias=True, bias_rate=0.25, aux_loss=0.3),
)  # fmt: skip
KEPT: dict[str, tuple[Recipe, bool]] = {  # recipe, and whether the stack reads its own data
    "letters": (LETTERS, False),
    "selection-bias": (BIASED, False),
    "recomputed": (replace(LETTERS, recompute="full"), False),
    "bf16": (replace(LETTERS, dtype="bf16"), False),
    "dropout": (replace(LETTERS, dropout=0.2), False),
    "own-data": (LETTERS, True),
    "fp8-delayed": (with_scaling(replace(FP8, pattern="AE", depth=2, optim=LETTERS.optim), "delayed"), False),
}
KEEPS = {
    "": ("validation",),
    "selection-bias": ("validation", "experts", "sigmoid", "selection-bias"),
    "recomputed": ("validation", "recompute"),
    "bf16": ("validation", "bf16"),
    "dropout": ("validation", "dropout"),
    "own-data": ("validation", "own-data"),
    "fp8-delayed": ("validation", "fp8"),
}


@contract(
    "OPT-06a",
    asks=("built", "train"),
    cases=KEPT,
    needs=KEEPS,
    sheds=("packed",),
    source="torchtitan: Validator; Megatron-LM's evaluate; F10",
)
def a_validation_changes_nothing(stack: Training, recipe: Recipe, own: bool) -> None:
    """A validation between two steps leaves the run bit-identical: weights, optimizer state, router biases, random
    generators, the losses, gradients and sequences of later steps and the loss of a later validation equal those of the
    run without it.

    A model that stays in evaluation mode drops nothing and balances nothing for the rest of the run. A router that
    counts the tokens of a validation moves its bias by them, and amax histories that record it scale the steps after
    it. A validation that draws from the generators of the run, or reads from its data, makes a run that validates more
    often another run. One that masks its labels in place has fewer of them each time.
    """
    seen: frozenset[Observed] = frozenset({"gradients", "weights", "optimizer", "buffers", "rng"})
    rows = ROWS_OF_16 if recipe.fp8 else ROWS  # products in FP8 take rows by eight or sixteen
    asked = Session(
        recipe=recipe, steps=3, execution=Execution(precision="declared"),
        batches=() if own else batches(3, "kept", rows=rows, recipe=recipe),
        weights=large_expert_weights(stack, recipe, "float32"), observe=seen,
    )  # fmt: skip
    others = batches(2, "validated", rows=rows, recipe=recipe)
    seed_generators(12)
    plain = stack.train(replace(asked, validation=others, validate_at=frozenset({2}))).steps
    seed_generators(12)
    validated = stack.train(replace(asked, validation=others, validate_at=frozenset({1, 2}))).steps
    pairs = list(zip(plain, validated, strict=True))
    for _, got in pairs:
        assert (got.validation is None) == (got.number == 3), f"after step {got.number} the loss is {got.validation}"
    left = [f"step {got.number}: {words}" for want, got in pairs if (words := _unlike(got, want))]
    drawn = numerics.differences("the generator", validated[-1].rng, plain[-1].rng, EXACT)
    require_none(
        *(f"with a validation after step 1, {words}" for words in left[:1]),
        f"a validation draws: {drawn}" if drawn else "",
    )


def _unlike(got: Step, want: Step) -> str:
    """How two steps differ: the first number that differs, or the tensors of the first state that does."""
    for fact in ("losses", "tokens", "lr", "grad_norm", "samples"):
        found, expected = getattr(got, fact), getattr(want, fact)
        if found != expected:
            return f"{fact} is {found}, {expected} without"
    kinds = {"gradients": "the gradient of", "weights": "the weight", "optimizer": "the optimizer state",
             "buffers": "the buffer"}  # fmt: skip
    words = (numerics.differences(what, getattr(got, kind), getattr(want, kind), EXACT) for kind, what in kinds.items())
    unlike = next(filter(None, words), "")
    if not unlike and want.validation is not None and got.validation != want.validation:
        return f"the loss of another validation is {got.validation}, {want.validation} without"
    return unlike


FULL: Rows = tuple(((13,), 0) for _ in range(5))
FEW: Rows = tuple(((13,), masked) for masked in (11, 0, 6, 3, 10))
NONE: Rows = tuple(((13,), 13) for _ in range(5))
TOLD: dict[str, tuple[Recipe, tuple[Rows, ...]]] = {
    "one-batch": (LETTERS, (FEW,)),
    "few-labels": (LETTERS, (FULL, FEW)),
    "a-short-batch": (LETTERS, (FULL, FEW[:2])),
    "dense": (DENSE, (FULL, FEW)),
    "a-batch-without-labels": (DENSE, (FULL, NONE, FEW)),
    "selection-bias": (BIASED, (FULL, FEW)),
}


@contract(
    "OPT-06b",
    asks=("built", "train"),
    cases=TOLD,
    needs={
        "": ("validation", "experts"),
        "dense": ("validation",),
        "a-batch-without-labels": ("validation",),
        "selection-bias": KEEPS["selection-bias"],
    },
    conventions=("validation-mean",),
    source="torchtitan: Validator; transformers: Trainer.evaluation_loop",
)
def the_loss_of_a_validation_is_the_mean_over_its_labels(
    stack: Training, recipe: Recipe, lengths: tuple[Rows, ...]
) -> None:
    """The loss of a validation is the mean over all of its labels that count, at the weights that the step left.

    The step that follows reports the loss of its batch before it moves a weight, so a run that trains on the batch says
    what its validation must be. A router whose selection bias counts only in training sends the tokens of a validation
    to other experts. A stack may declare that it takes the mean of its batches' means.
    """
    over_labels = chosen(stack, "validation-mean") == "labels"
    if not over_labels:  # what a short one weighs is left open, and what the mean of none is
        lengths = tuple(each for each in lengths if len(each) == len(lengths[0]) and each != NONE)
    rows = table(stack, recipe)
    weights = drawn_weights(rows)
    given = tuple(replace(batch(f"told {at}", rows=each, recipe=recipe), documents=None)
                  for at, each in enumerate(lengths))  # fmt: skip
    first = replace(batch("first", rows=FULL, recipe=recipe), documents=None)

    def trained(*steps: Tokens, validation: tuple[Tokens, ...] = ()) -> tuple[Step, ...]:
        return stack.train(
            Session(recipe=recipe, steps=len(steps), execution=Execution(precision="float64"), batches=steps,
                    weights=weights, observe=frozenset({"weights"}), at=frozenset({1}), validation=validation,
                    validate_at=frozenset({1}))
        ).steps  # fmt: skip

    later = [trained(first, each)[1] for each, told in zip(given, lengths, strict=True) if told != NONE]
    counts = [step.tokens if over_labels else 1 for step in later]
    want = sum(step.losses["lm"] * count for step, count in zip(later, counts, strict=True)) / sum(counts)
    (step,) = trained(first, validation=given)
    got = float("nan") if step.validation is None else step.validation
    assert abs(got - want) <= within(1e-11, 4e-6) * want, (  # not so where it is NaN
        f"the loss of a validation over {len(given)} batches is {got:.9g}, expected {want:.9g}"
    )


RANKS: dict[str, Cell] = {
    **cells_named("dp2", "fsdp2", "hsdp-2x2", "dense-dp2", "tp2-sp-grouped", "borrowed-ep2-fsdp"),
    "cp2": cell(LATENT_EXPERTS, 2, cp=2),
    "dense-fsdp2-one-row-each": cell(cells_named("dense-dp2")["dense-dp2"][0], 2, fsdp=True, microbatches=2),
    "cp2-dp2": cell(GROUPED_EXPERTS, 4, cp=2),
    "tp2-sp-dp2": cell(GROUPED_EXPERTS, 4, tp=2, sp=True),
}


@contract(
    "OPT-06c", asks=("built", "train"), cases=RANKS,
    needs={"": ("validation", "experts"), "dense-dp2": ("validation",), "dense-fsdp2-one-row-each": ("validation",)},
    tier="dist", source="torchtitan: Validator; transformers: Trainer.evaluation_loop",
)  # fmt: skip
def the_loss_of_a_validation_is_that_of_one_rank(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """On several ranks, the validation loss equals the single-rank value, and validating does not change the next step.

    A mean over ranks or over batches over-weights labels that stand where few do. A loss that is summed over ranks that
    share a row counts it twice. A rank that reports the loss of its own rows reports another one than its peers, and
    stops, saves or lowers its rate by itself. A forward pass without gradients may leave reductions or reshards off.
    A validation may have fewer rows than a step has microbatches.
    """
    asked = session(stack, recipe, execution, 4, "gradients", "weights", "optimizer", "buffers")
    first, second, *others = asked.batches
    if execution.microbatches > 1:  # fewer rows than a rank's step has microbatches
        others = [_rows(each, world) for each in others]
    plain = replace(asked, steps=2, batches=(first, second), at=frozenset({2}))
    asked = replace(plain, validation=(others[0], _with_few_labels(others[1])), validate_at=frozenset({1}))
    alone = replace(asked, execution=Execution(precision="float32", layout=asked.execution.layout))
    one, many = on_one_rank(stack, alone).steps, stack.train(asked).steps
    want, got = one[0].validation, many[0].validation
    assert want is not None, "a validation on one rank reported no loss"
    assert got is not None, f"a validation on {world} ranks reported no loss"
    bound = FLOAT32_TRANSFORMER.bound  # wider than that of a first loss: Adam turns rounding into steps
    assert abs(got - want) <= bound * want, f"the loss of a validation is {got:.7g} on {world} ranks, {want:.7g} on one"
    words = _unlike(many[1], stack.train(plain).steps[1])
    assert not words, f"after a validation on {world} ranks, {words}"


UNEVEN: dict[str, tuple[Recipe, Execution, int, int]] = {
    f"{name}-of-{rows}": (*RANKS[name], rows)
    for name, rows in (
        ("dp2", 3),
        ("fsdp2", 3),
        ("dense-dp2", 1),
        ("hsdp-2x2", 3),
        ("borrowed-ep2-fsdp", 1),
        ("cp2-dp2", 3),
        ("tp2-sp-dp2", 3),
    )
}


@contract(
    "OPT-06d", asks=("built", "train"), cases=UNEVEN,
    needs={"": ("uneven-validation", "checkpoint", "experts"), "dense-dp2-of-1": ("uneven-validation", "checkpoint")},
    tier="dist",
    conventions=("validation-mean",), source="torch: DistributedSampler; transformers: Trainer.evaluation_loop",
)  # fmt: skip
def a_validation_that_ranks_do_not_divide_is_whole_or_refused(
    stack: Training, recipe: Recipe, execution: Execution, world: int, rows: int
) -> None:
    """If the number of validation sequences does not divide over the ranks, the validation loss equals one rank's, or
    the run is refused before its first step, with that number.

    A sampler that gives every rank as many pads with copies of the first sequences, or drops the last. A rank without a
    sequence is missed in a collective, or refuses when the run has trained for hours.
    """
    if chosen(stack, "validation-mean") != "labels":
        raise NotOffered("means of batches weigh what ranks hold, and these hold unequal numbers", "case")
    asked = session(stack, recipe, execution, 3)
    first, second, other = asked.batches
    few = _rows(other, rows)
    asked = replace(asked, steps=2, batches=(first, second), validation=(few,), validate_at=frozenset({2}))
    alone = replace(asked, execution=Execution(precision="float32", layout=asked.execution.layout))
    want = on_one_rank(stack, alone).steps[1].validation
    assert want is not None, "a validation on one rank reported no loss"
    with shared_folder() as at:
        words = _uneven(stack, replace(asked, save=str(at), save_at=frozenset({1})), want, rows)
    assert not words, words


def _uneven(stack: Training, asked: Session, want: float, rows: int) -> str:
    """What is wrong with the validation of some rows, or with their refusal; asked by every rank."""
    words = f"a validation over {rows} sequences on {asked.execution.world} ranks"
    try:
        got = stack.train(asked).steps[1].validation
    except Refused as refused:
        left = any(Path(asked.save or "").iterdir())
        said = f"{words} is refused: {refused}"
        return f"{said}; a step was saved by then" if left else "" if str(rows) in str(refused) else said
    off = got is None or abs(got - want) > FLOAT32_TRANSFORMER.bound * want
    return f"the loss of {words} is {got}, {want:.7g} on one rank" if off else ""


def _rows(given: Tokens, number: int) -> Tokens:
    """The first rows of a batch of whole documents."""
    tokens, labels = (numerics.array(numerics.tensor(each)[:number]) for each in (given.tokens, given.labels))
    return Tokens(tokens=tokens, labels=labels)


def _with_few_labels(given: Tokens) -> Tokens:
    """A batch in which the last six labels of a row count, and all of the first row."""
    labels_BT = numerics.tensor(given.labels)
    labels_BT[1:, :-6] = -100
    return replace(given, labels=numerics.array(labels_BT))

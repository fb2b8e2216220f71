"""What says the same must give the same: the order of a mapping, the numbers of documents, who looks on, old memory."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support import multi_rank_run
from contracts.law._support.answers import refusal_of
from contracts.law._support.late import torch
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import SPREAD, borrowed, own_axis
from contracts.law._support.recipes import SMALL_MLA
from contracts.law._support.training_run import LETTERS, batch, drawn_weights, table
from contracts.spec import (
    FLOAT32_STEPS,
    FLOAT64_SCAN,
    Array,
    Execution,
    Moe,
    Parameter,
    Precision,
    Recipe,
    Session,
    Tokens,
    Tolerance,
    Training,
    require_none,
    within,
)

Relation = Literal[
    "weights in another order", "rows in another order", "documents by other numbers", "documents by large numbers",
    "one document a row written out",
    "every step observed", "fresh memory filled with NaN", "all logits shifted alike",
]  # fmt: skip
SHIFTED = replace(LETTERS, moe=replace(LETTERS.moe or Moe(), z_loss=0.0))
"""The z loss is the one that a shift changes."""
SHIFT = 200.0
"""Of each weight: a logit moves by some hundreds, beyond what `exp` takes in any dtype."""
SHIFTED_BOUND = Tolerance(name="float64, shifted", bound=1e-8, why="logits of 1e3 keep 13 digits; faults from 1e-3")
RELATIONS: dict[str, tuple[Recipe, Relation]] = {
    "order-of-weights": (LETTERS, "weights in another order"),
    "order-of-rows": (LETTERS, "rows in another order"),
    "numbers-of-documents": (LETTERS, "documents by other numbers"),
    "large-numbers-of-documents": (LETTERS, "documents by large numbers"),
    "one-document-a-row": (LETTERS, "one document a row written out"),
    "observed": (LETTERS, "every step observed"),
    "fresh-memory": (LETTERS, "fresh memory filled with NaN"),
    "shifted-logits": (SHIFTED, "all logits shifted alike"),
}
NEEDS = {
    "": (), "numbers-of-documents": ("packed",), "large-numbers-of-documents": ("packed",),
    "one-document-a-row": ("packed",),
    "shifted-logits": ("float64",), "observed": ("float64",),
}  # fmt: skip
"""Of logits that large float32 keeps four digits, and steps in float32 hide what an observer rounds."""


@contract("PAR-13", asks=("built", "train"), cases=RELATIONS, needs=NEEDS, sheds=("packed",), source="F13; F06")
def what_says_the_same_gives_the_same(stack: Training, recipe: Recipe, relation: Relation) -> None:
    """A step has the same losses and gradients if weights or rows are given in another order, documents are numbered
    otherwise, a row of one document has document numbers, every step is observed, fresh memory holds NaN instead of
    zeros, or all logits of a token are shifted by one number.

    Weights that are taken by their place, document numbers that are read as a mask or as weights, an observer that
    changes what it looks at, memory that nobody wrote, and logits that stand for probabilities all pass while nothing
    is moved.
    """
    packed = LETTERS if "document" in relation else recipe
    given = tuple(batch(f"alike {step}", recipe=packed) for step in range(3))
    words = _unlike(stack, recipe, relation, given, Execution(precision="float64"))
    assert not words, words


LEFT: dict[str, tuple[Recipe, Precision]] = {
    "declared": (LETTERS, "declared"),
    "bf16": (replace(LETTERS, dtype="bf16"), "declared"),
    "float64": (LETTERS, "float64"),
}


@contract(
    "PAR-13b", asks=("built", "train"), cases=LEFT,
    needs={"": (), "bf16": ("bf16",), "float64": ("float64",)}, sheds=("packed",),
    source="transformers: PreTrainedModel._set_default_dtype; torchtitan: set_default_dtype",
)  # fmt: skip
def a_run_leaves_torch_as_it_found_it(stack: Training, recipe: Recipe, precision: Precision) -> None:
    """After a model was built, trained, or refused for a weight that it does not have, torch has the default dtype, the
    default device and the gradient mode that it had before.

    A model is built under the dtype of its weights. If that is not undone, also after an error, every tensor that
    the process makes later without naming a dtype has it: twice the memory, or statistics with three digits.
    """
    given = (batch("leaves nothing", recipe=recipe),)
    before = _of_the_process()
    with _process_restored():
        rows = table(stack, recipe)
    asked = Session(recipe=recipe, steps=1, execution=Execution(precision=precision), batches=given,
                    weights=drawn_weights(rows))  # fmt: skip
    strange = replace(asked, weights={**asked.weights, "nobody.has.it": next(iter(asked.weights.values()))})
    left = []
    for what, ask in (
        ("building", lambda: stack.built(recipe, "nemo_native")),
        ("training", lambda: stack.train(asked)),
        ("a refusal", lambda: refusal_of(stack.train, strange)),
    ):
        with _process_restored():
            ask()
            after = _of_the_process()
        left += [
            f"{what} leaves {name} {after[name]}, it was {was}" for name, was in before.items() if after[name] != was
        ]
    require_none(*left)


def _of_the_process() -> dict[str, Any]:
    return {
        "the default dtype": torch.get_default_dtype(), "the default device": torch.get_default_device(),
        "the gradient mode": torch.is_grad_enabled(),
    }  # fmt: skip


@contextmanager
def _process_restored() -> Iterator[None]:
    """Whatever is asked within, the next check finds torch as this one did."""
    dtype, device, mode = _of_the_process().values()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(device)
        torch.set_grad_enabled(mode)


LATENT = replace(SPREAD, name="spread-mla", mla=SMALL_MLA.mla)
SPREAD_SHIFTED = replace(SPREAD, name="spread-shifted", moe=replace(SPREAD.moe or Moe(), z_loss=0.0))
_ON_RANKS: tuple[tuple[str, Recipe, Relation, Execution], ...] = (
    ("shifted-logits-tp2", SPREAD_SHIFTED, "all logits shifted alike", own_axis(2, tp=2)),
    ("fresh-memory-tp2-sp", SPREAD, "fresh memory filled with NaN", own_axis(2, tp=2, sp=True)),
    ("fresh-memory-fsdp2", SPREAD, "fresh memory filled with NaN", own_axis(2, fsdp=True)),
    ("fresh-memory-borrowed-ep2-fsdp", SPREAD, "fresh memory filled with NaN", borrowed(2, ep=2, fsdp=True)),
    ("fresh-memory-cp2", SPREAD, "fresh memory filled with NaN", borrowed(2, cp=2)),
    ("fresh-memory-pp2", SPREAD, "fresh memory filled with NaN", replace(own_axis(2, pp=2), microbatches=2)),
    ("numbers-of-documents-cp2", SPREAD, "documents by other numbers", borrowed(2, cp=2)),
    ("numbers-of-documents-tp2-sp", SPREAD, "documents by other numbers", own_axis(2, tp=2, sp=True)),
    ("order-of-weights-fsdp2", SPREAD, "weights in another order", own_axis(2, fsdp=True)),
    ("observed-ep2", SPREAD, "every step observed", own_axis(2, ep=2)),
    ("one-document-a-row-cp2", SPREAD, "one document a row written out", borrowed(2, cp=2)),
    ("one-document-a-row-cp2-latent", LATENT, "one document a row written out", borrowed(2, cp=2)),
    ("one-document-a-row-tp2-sp", SPREAD, "one document a row written out", own_axis(2, tp=2, sp=True)),
    ("one-document-a-row-pp2", SPREAD, "one document a row written out", replace(own_axis(2, pp=2), microbatches=2)),
)
ON_RANKS = {
    name: (replace(recipe, depth=4 if execution.degrees.pp > 1 else 5), relation, execution, execution.world)
    for name, recipe, relation, execution in _ON_RANKS
}


@contract("PAR-13a", asks=("built", "train"), cases=ON_RANKS, source="F13; F06", tier="dist")
def what_says_the_same_gives_the_same_on_ranks(
    stack: Training, recipe: Recipe, relation: Relation, execution: Execution, world: int
) -> None:
    """On several ranks a step has the same losses and gradients if weights are given in another order, documents are
    numbered otherwise, a row of one document has document numbers, every step is observed, fresh memory holds NaN
    instead of zeros, or all logits of a token are shifted by one number.

    A row of one document may take a kernel of its own, which knows nothing of other ranks' tokens. Ranks allocate what
    they receive into, and pad what does not divide; a softmax over ranks takes its largest logit from all of them. What
    is never written, or subtracted twice, is right while memory is zero and logits are small.
    """
    execution = in_a_layout_of(stack, execution)
    words = _unlike(stack, recipe, relation, multi_rank_run.batches(2), replace(execution, precision="float64"))
    assert not words, words


def _unlike(
    stack: Training, recipe: Recipe, relation: Relation, given: tuple[Tokens, ...], execution: Execution
) -> str:
    """How a run differs from the same run in other words: the first loss, or gradients of the first step."""
    if relation == "one document a row written out":
        given = tuple(replace(each, documents=None) for each in given)
    rows = table(stack, recipe)
    plain = Session(
        recipe=recipe, steps=len(given), execution=execution, batches=given, weights=drawn_weights(rows),
        observe=frozenset({"gradients"}), at=frozenset({1}),
    )  # fmt: skip
    one = stack.train(plain)
    with _memory_of_nan(relation == "fresh memory filled with NaN"):
        other = stack.train(_said_otherwise(plain, relation, rows))
    shifted = relation == "all logits shifted alike"
    pairs = list(zip(one.steps, other.steps, strict=True))
    bound = within(1e-9, FLOAT32_STEPS.bound)  # Adam makes steps of another rounding
    for want, got in pairs[:1] if shifted else pairs:  # weights of that size move by another rounding
        for name, loss in want.losses.items():
            if shifted and name == "z":
                continue
            found = got.losses.get(name, float("nan"))
            if not abs(found - loss) <= bound * max(1.0, abs(loss)):
                return f"{relation}: {name} is {found:.10g} at step {want.number}, expected {loss:.10g}"
    tolerance = SHIFTED_BOUND if shifted else FLOAT64_SCAN
    words = numerics.gradient_differences(
        "the gradient of", other.steps[0].gradients, one.steps[0].gradients, tolerance
    )
    return f"{relation}: {words}" if words else ""


def _said_otherwise(plain: Session, relation: Relation, rows: tuple[Parameter, ...]) -> Session:
    """The same session in other words."""
    if relation == "all logits shifted alike":
        weights = numerics.tensors(plain.weights)
        for name in (row.name for row in rows if row.role in ("head", "router")):
            weights[name] = weights[name] + SHIFT
        return replace(plain, weights=numerics.arrays(weights))
    if relation == "weights in another order":
        return replace(plain, weights=dict(reversed([*plain.weights.items()])))
    if relation == "every step observed":
        return replace(plain, observe=frozenset({"gradients", "weights", "optimizer", "buffers"}), at=frozenset())
    if relation == "fresh memory filled with NaN":
        return plain
    return replace(plain, batches=tuple(_rewritten(each, relation) for each in plain.batches))


def _rewritten(given: Tokens, relation: Relation) -> Tokens:
    if relation == "rows in another order":
        documents = None if given.documents is None else _turned(given.documents)
        return Tokens(tokens=_turned(given.tokens), labels=_turned(given.labels), documents=documents)
    if given.documents is None:
        return replace(given, documents=numerics.array(torch.zeros_like(numerics.tensor(given.tokens))))
    numbers_BT = numerics.tensor(given.documents)
    large = relation == "documents by large numbers"  # of which float32 does not know every one
    return replace(given, documents=numerics.array(2**24 + numbers_BT if large else 3 * numbers_BT + 7))


def _turned(value: Array) -> Array:
    """The rows from the last to the first."""
    return numerics.array(numerics.tensor(value).flip(0))


@contextmanager
def _memory_of_nan(wanted: bool) -> Iterator[None]:
    """torch fills fresh memory with NaN while it is asked for deterministic algorithms."""
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    settings: Any = torch.utils.deterministic  # torch types its attributes away
    filled = settings.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.use_deterministic_algorithms(True, warn_only=True)
            settings.fill_uninitialized_memory = True
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            settings.fill_uninitialized_memory = filled

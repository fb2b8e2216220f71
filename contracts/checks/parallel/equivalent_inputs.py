"""What says the same must give the same: the order of a mapping, the numbers of documents, who looks on, old memory."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from contracts import instruments
from contracts.checks._support.training_run import LETTERS, batch, drawn_weights, table
from contracts.contract import contract
from contracts.spec.array import Array
from contracts.spec.recipe import Moe, Recipe
from contracts.spec.tolerance import FLOAT64_SCAN, Tolerance
from contracts.spec.training import Execution, Parameter, Session, Tokens, Training

Relation = Literal[
    "weights in another order", "rows in another order", "documents by other numbers", "one document a row written out",
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
    "one-document-a-row": (LETTERS, "one document a row written out"),
    "observed": (LETTERS, "every step observed"),
    "fresh-memory": (LETTERS, "fresh memory filled with NaN"),
    "shifted-logits": (SHIFTED, "all logits shifted alike"),
}
NEEDS = {"": (), "numbers-of-documents": ("packed",), "one-document-a-row": ("packed",)}


@contract("PAR-13", asks=("built", "train"), cases=RELATIONS, needs=NEEDS, sheds=("packed",), source="F13; F06")
def what_says_the_same_gives_the_same(stack: Training, recipe: Recipe, relation: Relation) -> None:
    """A step has the same losses and gradients whether weights or rows are given in another order, documents have other
    numbers, a row of one document says so, every step is observed, fresh memory holds NaN instead of zeros, or all
    logits of a token are shifted by one number.

    Weights that are taken by their place, document numbers that are read as a mask or as weights, an observer that
    changes what it looks at, memory that nobody wrote, and logits that stand for probabilities all pass while nothing
    is moved.
    """
    packed = LETTERS if "document" in relation else recipe
    given = tuple(batch(f"alike {step}", recipe=packed) for step in range(3))
    if relation == "one document a row written out":
        given = tuple(replace(each, documents=None) for each in given)
    rows = table(stack, recipe)
    plain = Session(
        recipe=recipe, steps=3, execution=Execution(precision="float64"), batches=given,
        weights=drawn_weights(rows), observe=frozenset({"gradients"}), at=frozenset({1}),
    )  # fmt: skip
    one = stack.train(plain)
    with _memory_of_nan(relation == "fresh memory filled with NaN"):
        other = stack.train(_said_otherwise(plain, relation, rows))
    shifted = relation == "all logits shifted alike"
    pairs = list(zip(one.steps, other.steps, strict=True))
    for want, got in pairs[:1] if shifted else pairs:  # weights of that size move by another rounding
        for name, loss in want.losses.items():
            if shifted and name == "z":
                continue
            found = got.losses.get(name, float("nan"))
            assert abs(found - loss) <= 1e-9 * max(1.0, abs(loss)), (
                f"{relation}: {name} is {found:.10g} at step {want.number}, expected {loss:.10g}"
            )
    tolerance = SHIFTED_BOUND if shifted else FLOAT64_SCAN
    words = instruments.numerics.gradient_differences(
        "the gradient of", other.steps[0].gradients, one.steps[0].gradients, tolerance
    )
    assert not words, f"{relation}: {words}"


def _said_otherwise(plain: Session, relation: Relation, rows: tuple[Parameter, ...]) -> Session:
    """The same session in other words."""
    if relation == "all logits shifted alike":
        weights = instruments.numerics.tensors(plain.weights)
        for name in (row.name for row in rows if row.role in ("head", "router")):
            weights[name] = weights[name] + SHIFT
        return replace(plain, weights=instruments.numerics.arrays(weights))
    if relation == "weights in another order":
        return replace(plain, weights=dict(reversed([*plain.weights.items()])))
    if relation == "every step observed":
        return replace(plain, observe=frozenset({"gradients", "weights", "optimizer", "buffers"}), at=frozenset())
    if relation == "fresh memory filled with NaN":
        return plain
    return replace(plain, batches=tuple(_rewritten(each, relation) for each in plain.batches))


def _rewritten(given: Tokens, relation: Relation) -> Tokens:
    import torch

    numerics = instruments.numerics
    if relation == "rows in another order":
        documents = None if given.documents is None else _turned(given.documents)
        return Tokens(tokens=_turned(given.tokens), labels=_turned(given.labels), documents=documents)
    if given.documents is None:
        return replace(given, documents=numerics.array(torch.zeros_like(numerics.tensor(given.tokens))))
    return replace(given, documents=numerics.array(3 * numerics.tensor(given.documents) + 7))


def _turned(value: Array) -> Array:
    """The rows from the last to the first."""
    return instruments.numerics.array(instruments.numerics.tensor(value).flip(0))


@contextmanager
def _memory_of_nan(wanted: bool) -> Iterator[None]:
    """torch fills fresh memory with NaN while it is asked for deterministic algorithms."""
    import torch

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

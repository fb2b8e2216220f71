"""What says the same must give the same: the order of a mapping, the numbers of documents, who looks on, old memory."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from contracts import instruments
from contracts.checks._support.training_run import LETTERS, batch, drawn_weights, table
from contracts.contract import contract
from contracts.spec.array import Array
from contracts.spec.recipe import Recipe
from contracts.spec.tolerance import FLOAT64_SCAN
from contracts.spec.training import Execution, Session, Tokens, Training

Relation = Literal[
    "weights in another order", "rows in another order", "documents by other numbers", "one document a row written out",
    "every step observed", "fresh memory filled with NaN",
]  # fmt: skip
RELATIONS: dict[str, tuple[Recipe, Relation]] = {
    "order-of-weights": (LETTERS, "weights in another order"),
    "order-of-rows": (LETTERS, "rows in another order"),
    "numbers-of-documents": (LETTERS, "documents by other numbers"),
    "one-document-a-row": (LETTERS, "one document a row written out"),
    "observed": (LETTERS, "every step observed"),
    "fresh-memory": (LETTERS, "fresh memory filled with NaN"),
}
NEEDS = {"": (), "numbers-of-documents": ("packed",), "one-document-a-row": ("packed",)}


@contract("PAR-13", asks=("built", "train"), cases=RELATIONS, needs=NEEDS, sheds=("packed",), source="F13; F06")
def what_says_the_same_gives_the_same(stack: Training, recipe: Recipe, relation: Relation) -> None:
    """A step has the same losses and gradients whether weights or rows are given in another order, documents have other
    numbers, a row of one document says so, every step is observed, or fresh memory holds NaN instead of zeros.

    Weights that are taken by their place, document numbers that are read as a mask or as weights, an observer that
    changes what it looks at, and memory that nobody wrote all pass while nothing is moved.
    """
    packed = LETTERS if "document" in relation else recipe
    given = tuple(batch(f"alike {step}", recipe=packed) for step in range(3))
    if relation == "one document a row written out":
        given = tuple(replace(each, documents=None) for each in given)
    plain = Session(
        recipe=recipe, steps=3, execution=Execution(precision="float64"), batches=given,
        weights=drawn_weights(table(stack, recipe)), observe=frozenset({"gradients"}), at=frozenset({1}),
    )  # fmt: skip
    one = stack.train(plain)
    with _memory_of_nan(relation == "fresh memory filled with NaN"):
        other = stack.train(_said_otherwise(plain, relation))
    for want, got in zip(one.steps, other.steps, strict=True):
        for name, loss in want.losses.items():
            found = got.losses.get(name, float("nan"))
            assert abs(found - loss) <= 1e-9 * max(1.0, abs(loss)), (
                f"{relation}: {name} is {found:.10g} at step {want.number}, expected {loss:.10g}"
            )
    words = instruments.numerics.gradient_differences(
        "the gradient of", other.steps[0].gradients, one.steps[0].gradients, FLOAT64_SCAN
    )
    assert not words, f"{relation}: {words}"


def _said_otherwise(plain: Session, relation: Relation) -> Session:
    """The same session in other words."""
    if relation == "weights in another order":
        return replace(plain, weights=dict(reversed(plain.weights.items())))
    if relation == "every step observed":
        return replace(plain, observe=frozenset({"gradients", "weights", "optimizer", "buffers"}), at=frozenset())
    if relation == "fresh memory filled with NaN":
        return plain
    return replace(plain, batches=tuple(_rewritten(each, relation) for each in plain.batches))


def _rewritten(given: Tokens, relation: Relation) -> Tokens:
    import torch

    numerics = instruments.numerics

    def turned(value: Array | None) -> Array | None:
        return None if value is None else numerics.array(numerics.tensor(value).flip(0))

    if relation == "rows in another order":
        return Tokens(tokens=turned(given.tokens) or given.tokens, labels=turned(given.labels) or given.labels,
                      documents=turned(given.documents))  # fmt: skip
    if given.documents is None:
        return replace(given, documents=numerics.array(torch.zeros_like(numerics.tensor(given.tokens))))
    return replace(given, documents=numerics.array(3 * numerics.tensor(given.documents) + 7))


@contextmanager
def _memory_of_nan(wanted: bool) -> Iterator[None]:
    """torch fills fresh memory with NaN while it is asked for deterministic algorithms."""
    import torch

    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.utils.deterministic.fill_uninitialized_memory = True
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            torch.utils.deterministic.fill_uninitialized_memory = filled

"""Two runs from the same whole weights and batches, on one rank and on several, and in which layouts."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from contracts.instruments.ranks import here
from contracts.law._support import training_run
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.step_comparison import on_one_rank_and_many
from contracts.law._support.training_run import LETTERS, ROWS_OF_16, large_expert_weights
from contracts.spec import Arrays, Degrees, Execution, Moe, Observed, Recipe, Session, Step, Tokens, Training, rungs

SPREAD = replace(
    LETTERS,
    name="spread",
    pattern="AEMRE",
    depth=5,
    seq_length=16,
    vocab=67,
    moe=Moe(experts=16, top_k=3, expert_hidden=20, shared_hidden=28, aux_loss=0.3, z_loss=0.05),
    batch=replace(LETTERS.batch, total=4),
)
BIASED = replace(
    SPREAD,
    name="spread-biased",
    moe=Moe(
        experts=16, top_k=3, expert_hidden=20, score="sigmoid", selection_bias=True, bias_rate=0.25, aux_loss=0.3,
        z_loss=0.05,
    ),
)  # fmt: skip


def own_axis(world: int, *, fsdp: bool = False, replicas: int = 1, **degrees: int) -> Execution:
    return Execution(world=world, degrees=Degrees(**degrees), fsdp=fsdp, replicas=replicas)  # type: ignore[arg-type]  # sp


def borrowed(world: int, *, fsdp: bool = False, replicas: int = 1, **degrees: int) -> Execution:
    return replace(own_axis(world, fsdp=fsdp, replicas=replicas, **degrees), layout="borrowed")


def with_rungs(
    cases: Mapping[str, tuple[Recipe, Execution, *tuple[Any, ...]]], *needs: str
) -> dict[str, tuple[Any, ...]]:
    """Cases, and after each its leaner rungs, whose vocabulary every number of ranks here divides, and whose experts
    four ranks cut into rows of whole 16 bytes: few stacks cut others, and grouped products take none. If ranks share
    experts, a rung has experts.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for name, (recipe, execution, *more) in cases.items():
        others = (execution, *more)
        found[name] = (recipe, *others)
        moe = recipe.moe and replace(
            recipe.moe, expert_hidden=recipe.moe.expert_hidden + -recipe.moe.expert_hidden % 16
        )
        even = replace(recipe, vocab=recipe.vocab + -recipe.vocab % 4, moe=moe)
        needed = frozenset(needs) | ({"experts"} if execution.degrees.ep > 1 else set())
        for rung, lean in rungs(even, needed, sheds=frozenset({"packed"})).items():
            found[f"{name}@{rung}"] = (lean, *others)
    return found


def batches(steps: int, recipe: Recipe = SPREAD) -> tuple[Tokens, ...]:
    return training_run.batches(steps, "spread", SPREAD.vocab, ROWS_OF_16, recipe=recipe)


def one_rank_and_many(
    stack: Training,
    recipe: Recipe,
    execution: Execution,
    given: tuple[Tokens, ...],
    *observe: Observed,
    weights: Arrays | None = None,
    buffers: Arrays | None = None,
    steps: int = 0,
    at: frozenset[int] = frozenset(),
) -> list[tuple[Step, Step]]:
    """For each step, in float64, the step on one rank and the step on all ranks. With no batches given, `steps` steps
    run over the stack's own data. `observe` applies to the steps `at`, or to every step where `at` is empty.
    """
    execution = in_a_layout_of(stack, execution)
    session = Session(
        recipe=recipe,
        steps=len(given) or steps,
        execution=replace(execution, precision="float64"),
        batches=given,
        weights=large_expert_weights(stack, recipe) if weights is None else weights,
        buffers=buffers or {},
        observe=frozenset(observe),
        at=at,
    )
    return on_one_rank_and_many(stack, session)


@contextmanager
def nodes_of(size: int) -> Iterator[None]:
    """The variables that torchrun gives a rank if each node has this many."""
    node, local = divmod(here().rank, size)
    said = {"LOCAL_RANK": local, "LOCAL_WORLD_SIZE": size, "GROUP_RANK": node}
    before = {name: os.environ.get(name) for name in said}
    os.environ.update({name: str(value) for name, value in said.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

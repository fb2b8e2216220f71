"""Training in float16 under a loss scale, and in bfloat16 over several microbatches."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterator
from dataclasses import replace

from contracts import instruments
from contracts.checks._support.folders import shared_folder
from contracts.checks._support.layouts import in_a_layout_of
from contracts.checks._support.multi_rank_run import own_axis
from contracts.checks._support.step_comparison import update_difference
from contracts.checks._support.training_run import (
    DENSE,
    LETTERS,
    ROWS,
    ROWS_OF_16,
    Rows,
    batch,
    large_expert_weights,
    run,
)
from contracts.checks._support.windows import WINDOW
from contracts.contract import contract
from contracts.spec.array import Arrays
from contracts.spec.errors import NotOffered
from contracts.spec.recipe import Moe, Optim, Recipe
from contracts.spec.tolerance import EXACT, FLOAT32_SCAN
from contracts.spec.training import Execution, Session, Step, Tokens, Training

FLOAT16 = 5e-2
"""Relative L2 error: units of 2^-11, which scans make larger: 1.5e-2 was seen. Without a scale 0.18 and more."""
STEADY = Optim(lr=1e-3, min_lr=1e-3, schedule="constant", warmup=0, steps=8, weight_decay=0.1, clip=0.5)
ROUTED = replace(
    LETTERS, name="letters-half", dtype="fp16", optim=STEADY,
    moe=Moe(experts=14, top_k=3, expert_hidden=20, score="sigmoid", selection_bias=True, bias_rate=0.25, aux_loss=0.0),
)  # fmt: skip
DENSE_HALF = replace(DENSE, name="dense-half", dtype="fp16", optim=STEADY)
SCALED: dict[str, tuple[Recipe]] = {"letters": (ROUTED,), "dense": (DENSE_HALF,)}
SCALES = {"letters": ("experts",), "dense": ()}
LOUD = DENSE.vocab - 1
"""A token whose embedding is infinite in float16. No batch has it but those that are to overflow."""
SOURCE = "arXiv 1710.03740, section 3.2; torch: GradScaler; Megatron-Core: DynamicGradScaler"


def _weights(stack: Training, recipe: Recipe) -> Arrays:
    numerics = instruments.numerics
    held = numerics.tensors(large_expert_weights(stack, recipe, "float32"))
    for row in stack.built(recipe, "nemo_native").parameters:
        if row.role == "embedding":
            held[row.name][LOUD] = 1e5
    return numerics.arrays(held)


def _batch(recipe: Recipe, name: str, *, loud: bool = False, rows: Rows = ROWS) -> Tokens:
    given = batch(name, recipe.vocab - 1, rows, recipe=recipe)
    tokens_BT = instruments.numerics.tensor(given.tokens)
    if loud:
        tokens_BT[0, 3] = LOUD
    return replace(given, tokens=instruments.numerics.array(tokens_BT))


def _steps(stack: Training, recipe: Recipe, *given: Tokens, weights: Arrays) -> tuple[Step, ...]:
    return run(stack, recipe, given, "weights", "optimizer", "buffers", weights=weights, declared=True).steps


@contract("PREC-05a", asks=("built", "train"), cases=SCALED, needs=SCALES, sheds=("packed",), source=SOURCE)
def a_step_that_overflows_moves_nothing(stack: Training, recipe: Recipe) -> None:
    """Under float16 a step whose gradients are not finite changes no bit of weights, optimizer state and router biases,
    and the loss scale falls. The next finite step is that of a run without the steps that overflowed.

    One NaN in a moment stays there for the rest of the run. An optimizer that counts the step has another bias
    correction, and a router that moves its bias by it balances a batch that nobody learned from. The step overflows by
    an embedding; a stack whose residual stream is wider than float16 is not asked.
    """
    weights = _weights(stack, recipe)
    first, later = _batch(recipe, "finite 1"), _batch(recipe, "finite 2")
    loud = _batch(recipe, "loud", loud=True)
    before, *skipped, last = _steps(stack, recipe, first, loud, loud, later, weights=weights)
    if all(math.isfinite(number) for step in skipped for number in (step.losses["lm"], step.grad_norm)):
        raise NotOffered("its residual stream is wider than float16, and nothing overflows", "case")
    _, want = _steps(stack, recipe, first, later, weights=weights)
    for step in skipped:
        for kind, what in (("weights", "the weight"), ("optimizer", "the optimizer state"), ("buffers", "the buffer")):
            words = instruments.numerics.differences(what, getattr(step, kind), getattr(before, kind), EXACT)
            assert not words, f"a step that overflowed moved something: {words} (step {step.number})"
    scales = [_scale(step) for step in (before, *skipped)]
    fell = f"the loss scale is {scales[-1]:g} behind two steps that overflowed, {scales[0]:g} before"
    assert scales[-1] < scales[0], fell
    words = update_difference(before.weights, last.weights, want.weights, FLOAT16)
    assert not words, f"behind two steps that overflowed {words}"
    words = instruments.numerics.differences("the buffer", last.buffers, want.buffers, EXACT)
    assert not words, f"behind two steps that overflowed {words}"


SPREAD_OUT: dict[str, tuple[Recipe, Execution, int]] = {
    "dp2": (DENSE_HALF, own_axis(2), 2),
    "fsdp2": (DENSE_HALF, own_axis(2, fsdp=True), 2),
    "tp2": (DENSE_HALF, own_axis(2, tp=2), 2),
    "ep2-fsdp2": (ROUTED, own_axis(4, ep=2, fsdp=True), 4),
}


@contract("PREC-05f", asks=("built", "train"), cases=SPREAD_OUT, tier="dist", source=SOURCE)
def a_step_that_overflows_on_one_rank_moves_nothing_on_any(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """Under float16 a step whose gradients are not finite on one rank changes no bit of weights, optimizer state and
    router biases on any rank, and the loss scale falls on all of them alike.

    One row of the batch overflows, in two steps, and one rank has it. A rank that asks its own gradients before they
    are reduced takes the step, and what the others sent it is infinite. A scale may fall behind the second such step.
    """
    weights = _weights(stack, recipe)
    names = ("finite 1", "loud", "loud", "finite 2")
    given = [_batch(recipe, name, loud=name == "loud", rows=ROWS_OF_16) for name in names]
    asked = Session(
        recipe=recipe, steps=4, execution=replace(in_a_layout_of(stack, execution), precision="declared"),
        batches=tuple(given), weights=weights, observe=frozenset({"weights", "optimizer", "buffers"}),
    )  # fmt: skip
    before, *skipped, last = stack.train(asked).steps
    if all(math.isfinite(number) for step in skipped for number in (step.losses["lm"], step.grad_norm)):
        raise NotOffered("its residual stream is wider than float16, and nothing overflows", "case")
    for step in skipped:
        for kind, what in (("weights", "the weight"), ("optimizer", "the optimizer state"), ("buffers", "the buffer")):
            words = instruments.numerics.differences(what, getattr(step, kind), getattr(before, kind), EXACT)
            assert not words, f"a step that overflowed on one rank moved something: {words}"
    scales = [_scale(step) for step in (before, *skipped, last)]
    fell = f"the loss scale is {scales[2]:g} behind two steps that overflowed on one rank, {scales[0]:g} before"
    assert scales[2] < scales[0], fell
    numbers = [each for step in (before, last) for each in step.weights.values()]
    assert all(bool(instruments.numerics.tensor(each).isfinite().all()) for each in numbers), (
        "behind a step that overflowed on one rank weights are not finite"
    )
    want = stack.train(replace(asked, steps=2, batches=(given[0], given[3]))).steps[-1]
    words = update_difference(before.weights, last.weights, want.weights, FLOAT16)
    assert not words, f"behind a step that overflowed on one rank {words}"


def _scale(step: Step) -> float:
    assert "loss_scale" in step.seen, f"step {step.number} tells no loss_scale"
    return float(instruments.numerics.tensor(step.seen["loss_scale"]))


@contract("PREC-05b", asks=("built", "train"), cases=SCALED, needs=SCALES, sheds=("packed",), source=SOURCE)
def small_gradients_survive_float16(stack: Training, recipe: Recipe) -> None:
    """Gradients under float16 are those in float32, to the accuracy of float16, also where they are smaller than any
    number of float16: the loss is scaled before the backward pass, and the gradients are divided by it exactly once.

    Here the output projection is small, and so is every gradient behind it. Unscaled they are 0, and a norm that is
    taken before the division clips all of them away. Each token goes to all experts: by rounded scores it might choose
    others than in float32.
    """
    numerics = instruments.numerics
    if recipe.moe is not None:
        recipe = replace(recipe, moe=replace(recipe.moe, top_k=recipe.moe.experts))
    held = numerics.tensors(large_expert_weights(stack, recipe, "float32"))
    for row in stack.built(recipe, "nemo_native").parameters:
        if row.role == "head":
            held[row.name] *= 2**-14
    weights, given = numerics.arrays(held), (_batch(recipe, "small"),)
    (half,) = run(stack, recipe, given, "gradients", weights=weights, declared=True).steps
    (want,) = run(stack, replace(recipe, dtype="fp32"), given, "gradients", weights=weights, declared=True).steps
    ratio = half.grad_norm / want.grad_norm
    assert 0.9 < ratio < 1.1, f"the norm of the gradient is {ratio:.3g} times that in float32"
    for row in stack.built(recipe, "nemo_native").parameters:
        if row.role in ("matrix", "embedding"):
            got, expected = (numerics.tensor(each.gradients[row.name]) for each in (half, want))
            off = numerics.distances(got, expected)["L2"].relative
            assert off <= FLOAT16, f"under float16 the gradient of {row.name} is off by {off:.1e}, over {FLOAT16:.0e}"


FIRST = ("loud", "finite 2")
"""Batches of a run that has taken no step where it is saved: all so far overflowed, and there are no moments yet."""
SAVED_BEHIND: dict[str, tuple[Recipe, tuple[str, ...]]] = {  # the run is saved before the last batch
    "letters": (ROUTED, ("finite 1", *FIRST)),
    "dense": (DENSE_HALF, ("finite 1", *FIRST)),
    "the-first-step": (DENSE_HALF, FIRST),
    "the-first-step-under-muon": (replace(ROUTED, name="letters-half-muon", optim=replace(STEADY, rule="muon")), FIRST),
}


@contract(
    "PREC-05c", asks=("built", "train"), cases=SAVED_BEHIND, sheds=("packed",), source=f"{SOURCE}; Megatron-LM #602",
    needs={
        "": ("checkpoint",),
        "letters": ("experts", "checkpoint"),
        "the-first-step-under-muon": ("muon", "checkpoint"),
    },
)  # fmt: skip
def a_resumed_run_has_the_loss_scale(stack: Training, recipe: Recipe, names: tuple[str, ...]) -> None:
    """A run that resumes has the loss scale of the run that was saved, and its next step is bit-identical.

    A scale that begins anew overflows a dozen steps in a row, each of which is left out. So do the first steps of a
    run, by design: one that is saved among them has no moments yet, and its checkpoint is complete without.
    """
    weights = _weights(stack, recipe)
    given = tuple(_batch(recipe, name, loud=name == "loud") for name in names)
    last = len(given) - 1
    asked = Session(
        recipe=recipe, steps=len(given), execution=Execution(precision="declared"), batches=given, weights=weights,
        observe=frozenset({"weights"}),
    )  # fmt: skip
    want = stack.train(asked).steps[-1]
    with tempfile.TemporaryDirectory() as folder:
        stack.train(replace(asked, steps=last, batches=given[:last], save=folder, save_at=frozenset({last})))
        (got,) = stack.train(replace(asked, steps=1, batches=given[last:], weights={}, load=folder)).steps
    assert _scale(got) == _scale(want), f"the loss scale is {_scale(got):g} resumed, {_scale(want):g} without"
    words = instruments.numerics.differences("the weight", got.weights, want.weights, EXACT)
    assert not words, f"resumed behind a step that overflowed, {words}"


BEHIND = ("finite 1", "loud", "loud", "finite 2")
RESUMED: dict[str, tuple[Recipe, Execution, tuple[str, ...], int]] = {
    **{name: (*SPREAD_OUT[name][:2], BEHIND, SPREAD_OUT[name][2]) for name in ("dp2", "fsdp2", "tp2")},
    "fsdp2-the-first-steps": (*SPREAD_OUT["fsdp2"][:2], BEHIND[1:], 2),
}


@contract("PREC-05i", asks=("built", "train"), cases=RESUMED, tier="dist", source=f"{SOURCE}; accelerate #4289")
def ranks_that_resume_have_the_loss_scale(
    stack: Training, recipe: Recipe, execution: Execution, names: tuple[str, ...], world: int
) -> None:
    """Under float16 ranks that resume have the loss scale of the run that was saved, every one of them, and their next
    step is bit-identical.

    A load that makes the state of an optimizer by a step of its own moves the scale that it has set. Where one rank
    begins with another scale than the rest, their gradients are added up by different measures.
    """
    weights = _weights(stack, recipe)
    given = tuple(_batch(recipe, name, loud=name == "loud", rows=ROWS_OF_16) for name in names)
    last = len(given) - 1
    asked = Session(
        recipe=recipe, steps=len(given), execution=replace(in_a_layout_of(stack, execution), precision="declared"),
        batches=given, weights=weights, observe=frozenset({"weights"}), at=frozenset({len(given)}),
    )  # fmt: skip
    with shared_folder() as at:
        *before, want = stack.train(replace(asked, save=str(at), save_at=frozenset({last}))).steps
        (got,) = stack.train(replace(asked, steps=1, batches=given[last:], weights={}, load=str(at))).steps
    if all(math.isfinite(number) for step in before for number in (step.losses["lm"], step.grad_norm)):
        raise NotOffered("its residual stream is wider than float16, and nothing overflows", "case")
    assert _scale(got) == _scale(want), f"the loss scale is {_scale(got):g} resumed, {_scale(want):g} without"
    words = instruments.numerics.differences("the weight", got.weights, want.weights, EXACT)
    assert not words, f"resumed behind steps that overflowed, {words}"


QUIET = replace(DENSE_HALF, name="quiet-half", pattern="E", depth=1, hidden=8, ffn_hidden=8, heads=2, kv_groups=1,
                vocab=17, optim=replace(STEADY, lr=1e-5, min_lr=1e-5, steps=4000))  # fmt: skip
"""One layer: a step takes milliseconds."""
GROWN = {"dense": (QUIET,)}
STEPS, SAVED = 2003, 1990


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Two thousand steps of some numbers each: a second thread only waits, for minutes on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contract("PREC-05e", asks="train", cases=GROWN, slow=True, source=SOURCE)
def the_loss_scale_rises_again(stack: Training, recipe: Recipe) -> None:
    """Within 2000 steps of which none overflows the loss scale rises, and a run that was resumed on the way raises it
    in the same step as the run that was not.

    GradScaler waits 2000 steps, Megatron-Core 1000. A scale that only falls ends where small gradients are 0, and one
    whose count begins anew at each load never rises in a run that saves more often.
    """
    given = replace(batch("quiet", recipe.vocab, (((13,), 0),), recipe=recipe), documents=None)
    asked = Session(
        recipe=recipe, steps=STEPS, execution=Execution(precision="declared"), batches=(given,) * STEPS,
        observe=frozenset({"weights"}), at=frozenset({STEPS}),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, _one_thread():
        whole = stack.train(replace(asked, save=folder, save_at=frozenset({SAVED}))).steps
        left = replace(asked, steps=STEPS - SAVED, batches=asked.batches[SAVED:], load=folder)
        resumed = stack.train(left).steps
    scales = [_scale(step) for step in whole]
    lost = next((step.number for step in whole if not math.isfinite(step.grad_norm)), None)
    if lost is not None:
        raise NotOffered(f"its step {lost} overflows where every number is small", "case")
    assert max(scales) > scales[0], f"the loss scale is {scales[-1]:g} behind {STEPS} finite steps, and was in each"
    for got, want in zip(resumed, scales[SAVED:], strict=True):
        words = f"{_scale(got):g} resumed behind step {SAVED}, {want:g} without"
        assert _scale(got) == want, f"the loss scale of step {got.number} is {words}"


EIGHT: Rows = tuple(((13,), 4) for _ in range(4))
"""Eight labels in each of four rows: shares are powers of two, and round nothing."""
ADDED: dict[str, tuple[Recipe]] = {
    "letters": (replace(LETTERS, dtype="bf16", moe=replace(LETTERS.moe or Moe(), aux_loss=0.0)),),
    "dense": (replace(DENSE, dtype="bf16"),),
}


@contract(
    "PREC-05d", asks=("built", "train"), cases=ADDED, conventions=WINDOW, sheds=("packed",),
    needs={"letters": ("experts", "microbatches"), "dense": ("microbatches",)},
    source="Megatron-Core: main_grad, grad_reduce_in_fp32; F09",
)  # fmt: skip
def gradients_of_microbatches_are_added_in_float32(stack: Training, recipe: Recipe) -> None:
    """Under bfloat16 the gradients of microbatches are added in float32: a step over four of them has the mean of the
    gradients that each gives by itself, to the accuracy of float32.

    All shares are powers of two, so that each microbatch rounds as it does alone. In bfloat16 a sum of many
    microbatches stands still once it is 256 times as large as the next one.
    """
    import torch

    numerics = instruments.numerics
    weights = large_expert_weights(stack, recipe, "float32")
    given = replace(batch("added", rows=EIGHT, recipe=recipe), documents=None)
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

"""Training in float16 under a loss scale: steps that overflow, small gradients, and resumes."""

import math
import tempfile
from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import own_axis
from contracts.law._support.saved_states import shared_folder
from contracts.law._support.step_comparison import update_difference
from contracts.law._support.training_run import (
    DENSE,
    LETTERS,
    ROWS,
    ROWS_OF_16,
    Rows,
    batch,
    large_expert_weights,
    run,
)
from contracts.spec import (
    EXACT,
    Arrays,
    Execution,
    Moe,
    Mtp,
    NotOffered,
    Optim,
    Recipe,
    Session,
    Step,
    Tokens,
    Training,
)

FLOAT16 = 5e-2
"""Relative L2 error: units of 2^-11, which scans make larger: 1.5e-2 was seen. Without a scale 0.18 and more."""
ROUTED_APART = 2e-1
"""Likewise of a router where a token may go to another expert than in float32, which moves a load by some percent."""
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


def loud_weights(stack: Training, recipe: Recipe) -> Arrays:
    """Drawn weights, and the embedding of one token so large that float16 overflows."""
    held = numerics.tensors(large_expert_weights(stack, recipe, "float32"))
    for row in stack.built(recipe, "nemo_native").parameters:
        if row.role == "embedding":
            held[row.name][LOUD] = 1e5
    return numerics.arrays(held)


def _batch(recipe: Recipe, name: str, *, loud: bool = False, rows: Rows = ROWS) -> Tokens:
    given = batch(name, recipe.vocab - 1, rows, recipe=recipe)
    tokens_BT = numerics.tensor(given.tokens)
    if loud:
        tokens_BT[0, 3] = LOUD
    return replace(given, tokens=numerics.array(tokens_BT))


def _steps(stack: Training, recipe: Recipe, *given: Tokens, weights: Arrays) -> tuple[Step, ...]:
    return run(stack, recipe, given, "weights", "optimizer", "buffers", weights=weights, declared=True).steps


@contract("PREC-05a", asks=("built", "train"), cases=SCALED, needs=SCALES, sheds=("packed",), source=SOURCE)
def a_step_that_overflows_moves_nothing(stack: Training, recipe: Recipe) -> None:
    """Under float16 a step whose gradients are not finite changes no bit of weights, optimizer state and router biases,
    and the loss scale falls. The next finite step equals that of a run without the steps that overflowed.

    One NaN in a moment stays there for the rest of the run. An optimizer that counts the step has another bias
    correction, and a router that moves its bias by it balances a batch that nobody learned from. The step overflows by
    an embedding; a stack whose residual stream is wider than float16 is not asked.
    """
    weights = loud_weights(stack, recipe)
    first, later = _batch(recipe, "finite 1"), _batch(recipe, "finite 2")
    loud = _batch(recipe, "loud", loud=True)
    before, *skipped, last = _steps(stack, recipe, first, loud, loud, later, weights=weights)
    if all(math.isfinite(number) for step in skipped for number in (step.losses["lm"], step.grad_norm)):
        raise NotOffered("its residual stream is wider than float16, and nothing overflows", "case")
    _, want = _steps(stack, recipe, first, later, weights=weights)
    for step in skipped:
        for kind, what in (("weights", "the weight"), ("optimizer", "the optimizer state"), ("buffers", "the buffer")):
            words = numerics.differences(what, getattr(step, kind), getattr(before, kind), EXACT)
            assert not words, f"a step that overflowed moved something: {words} (step {step.number})"
    scales = [scale_of(step) for step in (before, *skipped)]
    fell = f"the loss scale is {scales[-1]:g} after two steps that overflowed, {scales[0]:g} before"
    assert scales[-1] < scales[0], fell
    words = update_difference(before.weights, last.weights, want.weights, FLOAT16)
    assert not words, f"after two steps that overflowed {words}"
    words = numerics.differences("the buffer", last.buffers, want.buffers, EXACT)
    assert not words, f"after two steps that overflowed {words}"


FULL, FEW = (((13,), 0),) * 5, (*(((13,), 11),) * 2, *(((13,), 13),) * 3)
"""Sixty labels in a batch, and two: each of the two weighs thirty times as much."""
ALONE: dict[str, tuple[Recipe]] = {
    "adamw": (DENSE_HALF,),
    "muon": (replace(DENSE_HALF, name="dense-half-muon", optim=replace(STEADY, rule="muon")),),
}


@contract(
    "PREC-05j", asks=("built", "train"), cases=ALONE,
    source=f"{SOURCE}; torch.amp: each optimizer decides for itself",
)  # fmt: skip
def one_tensor_that_overflows_leaves_the_whole_step_out(stack: Training, recipe: Recipe) -> None:
    """Under float16, if the gradient of one tensor is not finite but the loss and all other gradients are, the step
    changes no bit of weights and optimizer state, whichever optimizer's rule moves them, and the loss scale falls.

    Two optimizers that look each at their own gradients take half a step, and the decay of it. Here the hidden states
    in front of the output projection are large and its weights small; a stack that makes its gradient in float32 is not
    asked.
    """
    held = numerics.tensors(large_expert_weights(stack, recipe, "float32"))
    for row in stack.built(recipe, "nemo_native").parameters:
        if row.role == "head" or (row.role == "norm" and row.layer is None):
            held[row.name] *= 2**-5 if row.role == "head" else 2**3
    given = [_batch(recipe, f"alone {at}", rows=rows) for at, rows in enumerate((FULL, FEW, FEW))]
    before, *skipped = run(
        stack, recipe, tuple(given), "gradients", "weights", "optimizer", weights=numerics.arrays(held), declared=True
    ).steps
    for step in skipped:
        finite = [bool(each.isfinite().all()) for each in numerics.tensors(step.gradients).values()]
        if all(finite) or not any(finite):
            raise NotOffered("overflows in all of its gradients or in none", "case")
        for kind, what in (("weights", "the weight"), ("optimizer", "the optimizer state")):
            words = numerics.differences(what, getattr(step, kind), getattr(before, kind), EXACT)
            assert not words, (
                f"a step in which {finite.count(False)} of {len(finite)} gradients overflow moved: {words}"
            )
    scales = [scale_of(step) for step in (before, *skipped)]
    fell = f"the loss scale is {scales[-1]:g} after two steps where one gradient overflowed, {scales[0]:g} before"
    assert scales[-1] < scales[0], fell


STEEP = {"dense": (DENSE_HALF,)}
FALLS = 24  # steps: from 2^16, by half of them, to 2^4


@contract("PREC-05o", asks=("built", "train"), cases=STEEP, source=f"{SOURCE}; apex: min_loss_scale")
def the_loss_scale_falls_as_far_as_it_must(stack: Training, recipe: Recipe) -> None:
    """Under float16 the loss scale falls with each step that overflows until a step does not, and that step moves
    weights.

    A scale that keeps a floor which no recipe names, or falls once, overflows in every further step: the run counts
    steps, logs a loss and learns nothing. Here hidden states are 2^9 times as large as usual before the output
    projection, whose weights are that much smaller. A stack whose first step does not overflow is not asked.
    """
    held = numerics.tensors(large_expert_weights(stack, recipe, "float32"))
    for row in stack.built(recipe, "nemo_native").parameters:
        if row.role == "head" or (row.role == "norm" and row.layer is None):
            held[row.name] *= 2**-9 if row.role == "head" else 2**9
    given, weights = (_batch(recipe, "steep", rows=FEW),) * FALLS, numerics.arrays(held)
    steps = run(stack, recipe, given, "weights", weights=weights, declared=True).steps
    if math.isfinite(steps[0].grad_norm):
        raise NotOffered("its gradients do not overflow", "case")
    finite = [step for step in steps if math.isfinite(step.grad_norm)]
    assert finite, (
        f"each of {FALLS} steps overflows: the loss scale is {scale_of(steps[-1]):g}, {scale_of(steps[0]):g} "
        "after the first"
    )
    moved = numerics.differences("", finite[-1].weights, weights, EXACT)
    assert moved, f"step {finite[0].number} does not overflow, and no weight has moved after step {finite[-1].number}"


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
    are reduced takes the step, and what the others sent it is infinite. A scale may fall after the second such step.
    """
    weights = loud_weights(stack, recipe)
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
            words = numerics.differences(what, getattr(step, kind), getattr(before, kind), EXACT)
            assert not words, f"a step that overflowed on one rank moved something: {words}"
    scales = [scale_of(step) for step in (before, *skipped, last)]
    fell = f"the loss scale is {scales[2]:g} after two steps that overflowed on one rank, {scales[0]:g} before"
    assert scales[2] < scales[0], fell
    numbers = [each for step in (before, last) for each in step.weights.values()]
    assert all(bool(numerics.tensor(each).isfinite().all()) for each in numbers), (
        "after a step that overflowed on one rank weights are not finite"
    )
    want = stack.train(replace(asked, steps=2, batches=(given[0], given[3]))).steps[-1]
    words = update_difference(before.weights, last.weights, want.weights, FLOAT16)
    assert not words, f"after a step that overflowed on one rank {words}"


def scale_of(step: Step) -> float:
    assert "loss_scale" in step.seen, f"step {step.number} reports no loss_scale"
    return float(numerics.tensor(step.seen["loss_scale"]))


MOE = ROUTED.moe or Moe()
SMALL: dict[str, tuple[Recipe]] = {
    **SCALED,
    "balance-loss": (replace(ROUTED, name="letters-half-balanced", moe=replace(MOE, aux_loss=0.3)),),
    "z-loss": (replace(ROUTED, name="letters-half-z", moe=replace(MOE, z_loss=0.05)),),
    "prediction-heads": (replace(DENSE_HALF, name="dense-half-mtp", mtp=Mtp(depth=2, loss_weight=0.4)),),
}
LOSSES = {"balance-loss": ("balance-loss",), "z-loss": ("z-loss",), "prediction-heads": ("prediction-heads",)}


@contract("PREC-05b", asks=("built", "train"), cases=SMALL, needs=SCALES | LOSSES, sheds=("packed",),
          source=f"{SOURCE}; Megatron-Core: MoEAuxLossAutoScaler; tnt #354")  # fmt: skip
def small_gradients_survive_float16(stack: Training, recipe: Recipe) -> None:
    """Losses and gradients under float16 equal those in float32, to the accuracy of float16, even if the gradients are
    too small for float16: every loss is scaled before the backward pass, the gradients are divided by the scale exactly
    once, and reported losses are unscaled.

    Here the output projection is small, and so is every gradient that passes through it. Unscaled they are 0, and a
    norm that is taken before the division clips all of them away. A loss that enters after the scale, of a router or of
    a prediction head, weighs a 65536th. Each token goes to all experts: by rounded scores it might choose others than
    in float32. A balance loss says nothing of that, and is asked only of its routers.
    """
    if recipe.moe is not None and not recipe.moe.aux_loss:
        recipe = replace(recipe, moe=replace(recipe.moe, top_k=recipe.moe.experts))
    held = numerics.tensors(large_expert_weights(stack, recipe, "float32"))
    for row in stack.built(recipe, "nemo_native").parameters:
        if row.role == "head":
            held[row.name] *= 2**-14
    weights, given = numerics.arrays(held), (_batch(recipe, "small"),)
    (half,) = run(stack, recipe, given, "gradients", weights=weights, declared=True).steps
    (want,) = run(stack, replace(recipe, dtype="fp32"), given, "gradients", weights=weights, declared=True).steps
    for name, loss in want.losses.items():
        told = half.losses.get(name, math.nan)
        assert abs(told - loss) <= FLOAT16 * abs(loss), f"under float16 {name} is {told:.6g}, in float32 {loss:.6g}"
    assert want.grad_norm, "in float32 the norm of the gradient is 0"
    ratio = half.grad_norm / want.grad_norm
    assert 0.9 < ratio < 1.1, f"the norm of the gradient is {ratio:.3g} times that in float32"
    balanced = recipe.moe is not None and recipe.moe.aux_loss > 0
    roles, bound = (("router",), ROUTED_APART) if balanced else (("matrix", "embedding"), FLOAT16)
    for row in stack.built(recipe, "nemo_native").parameters:
        if row.role in roles:
            got, expected = (numerics.tensor(each.gradients[row.name]) for each in (half, want))
            off = numerics.distances(got, expected)["L2"].relative
            assert off <= bound, f"under float16 the gradient of {row.name} is off by {off:.1e}, over {bound:.0e}"


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
def a_resumed_run_has_the_lossscale_of(stack: Training, recipe: Recipe, names: tuple[str, ...]) -> None:
    """A run that resumes has the loss scale of the run that was saved, and its next step is bit-identical.

    A scale that begins anew overflows a dozen steps in a row, each of which is left out. So do the first steps of a
    run, by design: one that is saved among them has no moments yet, and its checkpoint is complete without.
    """
    weights = loud_weights(stack, recipe)
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
    assert scale_of(got) == scale_of(want), f"the loss scale is {scale_of(got):g} resumed, {scale_of(want):g} without"
    words = numerics.differences("the weight", got.weights, want.weights, EXACT)
    assert not words, f"resumed after a step that overflowed, {words}"


BEHIND = ("finite 1", "loud", "loud", "finite 2")
_RESUMED = (  # the layout that saves, the one that loads, the batches
    ("dp2", "dp2", BEHIND), ("fsdp2", "fsdp2", BEHIND), ("tp2", "tp2", BEHIND), ("fsdp2", "fsdp2", BEHIND[1:]),
    ("fsdp2", "tp2", BEHIND),
)  # fmt: skip
RESUMED: dict[str, tuple[Recipe, Execution, Execution, tuple[str, ...], int]] = {
    saves + ("" if saves == loads else f"-to-{loads}") + ("" if given is BEHIND else "-the-first-steps"):
        (*SPREAD_OUT[saves][:2], SPREAD_OUT[loads][1], given, 2)
    for saves, loads, given in _RESUMED
}  # fmt: skip


@contract("PREC-05i", asks=("built", "train"), cases=RESUMED, tier="dist", source=f"{SOURCE}; accelerate #4289")
def ranks_that_resume_have_the_lossscale_of(
    stack: Training, recipe: Recipe, execution: Execution, loads: Execution, names: tuple[str, ...], world: int
) -> None:
    """Under float16 ranks that resume have the loss scale of the run that was saved, every one of them and on every
    layout. On the layout that saved, their next step is bit-identical.

    A load that makes the state of an optimizer by a step of its own moves the scale that it has set. If one rank
    begins with another scale than the rest, their gradients are added up by different measures.
    """
    weights = loud_weights(stack, recipe)
    given = tuple(_batch(recipe, name, loud=name == "loud", rows=ROWS_OF_16) for name in names)
    last = len(given) - 1
    asked = Session(
        recipe=recipe, steps=len(given), execution=replace(in_a_layout_of(stack, execution), precision="declared"),
        batches=given, weights=weights, observe=frozenset({"weights"}), at=frozenset({len(given)}),
    )  # fmt: skip
    with shared_folder() as at:
        *before, want = stack.train(replace(asked, save=str(at), save_at=frozenset({last}))).steps
        there = replace(in_a_layout_of(stack, loads), precision="declared")
        resumed = replace(asked, steps=1, batches=given[last:], weights={}, execution=there, load=str(at))
        (got,) = stack.train(resumed).steps
    if all(math.isfinite(number) for step in before for number in (step.losses["lm"], step.grad_norm)):
        raise NotOffered("its residual stream is wider than float16, and nothing overflows", "case")
    assert scale_of(got) == scale_of(want), f"the loss scale is {scale_of(got):g} resumed, {scale_of(want):g} without"
    if loads == execution:
        words = numerics.differences("the weight", got.weights, want.weights, EXACT)
        assert not words, f"resumed after steps that overflowed, {words}"

"""The learning rate step by step, and gradient clipping."""

import math
from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.answers import refusal_of
from contracts.law._support.training_run import (
    DENSE,
    LETTERS,
    MUON,
    TIED,
    Rows,
    batch,
    batches,
    drawn_weights,
    run,
    table,
)
from contracts.spec import FLOAT64_SCAN, Batch, NotOffered, Optim, Recipe, Schedule, Training, chosen, within

LITTLE = replace(DENSE, name="little", depth=2, hidden=8, ffn_hidden=8, heads=2, kv_groups=1, vocab=17)
"""Two layers: a step takes milliseconds."""
WHOLE: Rows = tuple(((13,), masked) for masked in (11, 0, 6, 0, 10))
"""A document a row: rates have nothing to do with packing."""

# kind, warm-up, steps, lr, min_lr → the rates of steps 0, 1, 2, …, worked out by hand
RATES: dict[str, tuple[Schedule, int, int, float, float, tuple[float, ...]]] = {
    "cosine": ("cosine", 2, 6, 1.0, 0.2, (0.0, 0.5, 1.0, 0.8828427, 0.6, 0.3171573, 0.2, 0.2, 0.2)),
    "linear": ("linear", 2, 6, 1.0, 0.2, (0.0, 0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2)),
    "constant": ("constant", 4, 5, 0.8, 0.1, (0.0, 0.2, 0.4, 0.6, 0.8, 0.8, 0.8)),
    "WSD": ("WSD", 2, 10, 1.0, 0.2, (0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.6, 0.2, 0.2)),
    "no-warm-up": ("linear", 0, 4, 1.0, 0.0, (1.0, 0.75, 0.5, 0.25, 0.0, 0.0)),
    "warm-up-to-the-end": ("cosine", 4, 4, 1.0, 0.2, (0.0, 0.25, 0.5, 0.75, 1.0, 0.2)),
    "warm-up-longer-than-the-run": ("linear", 6, 3, 0.6, 0.1, (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.1)),
    "one-step": ("WSD", 0, 1, 1.0, 0.5, (1.0, 0.5, 0.5)),
    "warm-up-below-the-floor": ("linear", 4, 8, 0.8, 0.5, (0.0, 0.2, 0.4, 0.6, 0.8, 0.725, 0.65, 0.575, 0.5, 0.5)),
    "nothing-to-decay": ("cosine", 2, 6, 0.5, 0.5, (0.0, 0.25, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5)),
}
_COUNTING = ("first-rate", "last-rate", "warm-up-from", "warm-up-without-decay")


@contract("OPT-05b", asks="train", cases=RATES, source="F09", conventions=_COUNTING)
def the_rate_of_each_step_is_that_of_the_schedule(
    stack: Training, kind: Schedule, warmup: int, steps: int, lr: float, low: float, rates: tuple[float, ...]
) -> None:
    """The first step's rate is lr / warmup; the rate is lr at the last warm-up step and min_lr at the last step of the
    run.

    Steps are optimizer steps, counted from 1. A schedule that counts from 0 has a first step that moves nothing. A
    schedule that runs past its end rises again or falls below min_lr. A run without decay, or without warm-up, must not
    divide by zero.

    A stack that declares that it counts from step 0 has each of these rates a step later: its first step moves nothing
    under a warm-up, and the last step of the run is not yet at min_lr. One that declares that it refuses a warm-up as
    long as the run names the warm-up.
    """
    optim = Optim(lr=lr, min_lr=low, schedule=kind, warmup=warmup, steps=steps)
    recipe = replace(LITTLE, optim=optim)
    if warmup >= steps and chosen(stack, "warm-up-without-decay") == "refused":
        refused = refusal_of(lambda: run(stack, recipe, (batch("rate", 17, WHOLE[:2]),), declared=True))
        assert "warm" in str(refused), (
            f"the refusal of a warm-up of {warmup} in {steps} steps does not name it: {refused}"
        )
        return
    if kind == "WSD" and chosen(stack, "warm-up-from") == "min-lr":
        rates = (*(low + (lr - low) * step / warmup for step in range(warmup)), *rates[warmup:])
    from_zero = chosen(stack, "first-rate") == "step-0"
    # Behind the end of its run a stack that counts from 0 need not finish a warm-up.
    rates = rates[: -2 if warmup > steps else -1] if from_zero else rates[1:]
    if chosen(stack, "last-rate") == "step-before":
        rates = (*rates[:warmup], *([lr] if not warmup else []), *rates[max(warmup - 1, 0) : -1])[: len(rates)]
    given = (batch("rate", 17, WHOLE[:2]),) * len(rates)
    found = [step.lr for step in run(stack, recipe, given, declared=True).steps]
    for step, (rate, want) in enumerate(zip(found, rates, strict=True), start=1):
        assert abs(rate - want) < 1e-6, f"the rate of step {step} is {rate:.7g}, expected {want:.7g} ({kind})"


REALISED = {name: RATES[name][:5] for name in ("cosine", "linear", "WSD", "one-step")}
REALISED["down-to-0"] = ("linear", 2, 6, 1.0, 0.0)


@contract("OPT-05e", asks=("built", "train"), cases=REALISED, float32=False, source="F09; F18")
def the_rate_that_is_reported_is_applied(
    stack: Training, kind: Schedule, warmup: int, steps: int, lr: float, low: float
) -> None:
    """In every phase of the schedule a step applies the rate that it reports, to parameters that decay and to those
    that do not.

    A token that no batch has gets no gradient: its row of the embedding shrinks by the rate times the decay, to the
    digit. A logged rate comes from the scheduler; what moves the weights is in the groups of the optimizer, which may
    be others after a wrapper, or hold the value of an earlier phase, as where a rate of 0 is taken for none. Norms do
    not decay; under Adam their first steps are as long as the rate.
    """
    recipe = replace(LITTLE, optim=Optim(lr=lr / 8, min_lr=low / 8, schedule=kind, warmup=warmup, steps=steps,
                                         weight_decay=0.5))  # fmt: skip
    rows = table(stack, recipe)
    (embedding,) = (row for row in rows if row.role == "embedding")
    if not embedding.weight_decay:
        raise NotOffered("decays no embedding, which would show the rate", "case")
    weights = drawn_weights(rows)
    given = (replace(batch("rate", 5, WHOLE[:2]), documents=None),) * (steps + 2)  # five tokens of a vocabulary of 17
    found = run(stack, recipe, given, "weights", weights=weights).steps
    # Where norms decay, which is OPT-02a's to say, their first step is not the rate alone.
    norm = next((row.name for row in rows if row.role == "norm" and not row.weight_decay), None)
    before = numerics.tensors(weights)
    for step in found:
        after = numerics.tensors(step.weights)
        left = float((after[embedding.name][5:] / before[embedding.name][5:].double()).mean())
        applied = (1 - left) / embedding.weight_decay
        words = f"step {step.number} of {kind} reports a rate of {step.lr:.6g}"
        assert abs(applied - step.lr) < 1e-9, f"{words} and shrinks an unused row by that of {applied:.6g}"
        if norm is not None and step.number == 1:
            moved = float((after[norm] - before[norm].double()).abs().max())
            assert math.isclose(moved, step.lr, rel_tol=1e-3), f"{words} and moves {norm} by {moved:.6g}"
        before = after


WINDOWS = {"microbatches-3": (3, 5), "microbatches-4": (4, 5), "more-sequences": (1, 2)}


@contract("OPT-05c", asks="train", cases=WINDOWS, source="F09", conventions=("first-rate", "last-rate"))
def the_schedule_counts_optimizer_steps(stack: Training, microbatches: int, rows: int) -> None:
    """The rate depends on the number of optimizer steps, not on microbatches or sequences."""
    recipe = replace(LITTLE, optim=Optim(lr=1.0, min_lr=0.2, schedule="linear", warmup=2, steps=6),
                     batch=Batch(micro=1, total=rows))  # fmt: skip
    given = (batch("rate", 17, WHOLE[:rows]),) * 4
    steps = run(stack, recipe, given, "weights", microbatches=microbatches, declared=True).steps
    rates = (0.0, 0.5, 1.0, 0.8) if chosen(stack, "first-rate") == "step-0" else (0.5, 1.0, 0.8, 0.6)
    if chosen(stack, "last-rate") == "step-before":
        rates = (0.5, 1.0, 1.0, 0.8)
    for step, want in zip(steps, rates, strict=True):
        words = f"{step.lr:.6g} with {microbatches} microbatches of {rows} sequences, expected {want}"
        assert abs(step.lr - want) < 1e-6, f"the rate of step {step.number} is {words}"
    assert [step.number for step in steps] == [1, 2, 3, 4], f"steps are numbered {[step.number for step in steps]}"


CLIPS = {
    "clipped": (LETTERS, 0.5),
    "clipped-under-muon": (MUON, 0.01),
    "tied": (TIED, 0.5),
    "dense": (DENSE, 0.5),
    "below-the-limit": (LETTERS, 1e4),
    "no-limit": (LETTERS, 0.0),
}


@contract("OPT-05d", asks=("built", "train"), cases=CLIPS, needs=(), sheds=("packed",), source="F03 F09")
def clipping_scales_all_gradients_down_by_one_number(stack: Training, recipe: Recipe, limit: float) -> None:
    """Clipping multiplies every gradient by min(1, clip / (norm + 1e-6)); the norm is taken before clipping and counts
    every parameter's gradient once.

    Gradients below the limit stay as they are: a factor above 1 would scale them up. A limit of 0 means no clipping.
    The multiplied gradients show in the first moments of the first step, which are 1 - beta1 of it.
    """
    recipe = replace(recipe, optim=replace(recipe.optim, clip=limit))
    rows = table(stack, recipe)
    trained = run(
        stack, recipe, batches(2, recipe=recipe), "gradients", "weights", "optimizer", weights=drawn_weights(rows)
    )
    for step in trained.steps:
        lacking = sorted({row.name for row in rows} - set(step.gradients))
        assert not lacking, f"there is no gradient of {', '.join(lacking[:3])}"
        squares = [float(each.double().square().sum()) for each in numerics.tensors(step.gradients).values()]
        norm = math.sqrt(sum(squares))
        assert abs(step.grad_norm - norm) < within(1e-9) * norm, (
            f"the norm of step {step.number} is {step.grad_norm:.8g}, that of its gradients {norm:.8g}"
        )
        want = min(1.0, limit / (norm + 1e-6)) if limit else 1.0
        assert abs(step.clip_coef - want) < within(1e-9) * want, (
            f"gradients of norm {norm:.6g} were multiplied by {step.clip_coef:.8g} at a limit of {limit:g}, "
            f"expected {want:.8g}"
        )
    first = trained.steps[0]
    moments = {name.removesuffix("/exp_avg"): each for name, each in first.optimizer.items() if "/exp_avg" in name[-8:]}
    part = (1 - recipe.optim.beta1) * first.clip_coef
    clipped = {name: each * part for name, each in numerics.tensors(first.gradients).items() if name in moments}
    words = numerics.differences("in the first moment of", moments, clipped, FLOAT64_SCAN)
    assert not words, f"gradients were multiplied by another number than {first.clip_coef:.6g}: {words}"

"""The learning rate step by step, and gradient clipping."""

from __future__ import annotations

import math
from dataclasses import replace

from contracts import instruments
from contracts.checks._support.refusals import refusal_of
from contracts.checks._support.training_run import (
    DENSE,
    LETTERS,
    MUON,
    ROWS,
    TIED,
    batch,
    batches,
    drawn_weights,
    run,
    table,
)
from contracts.contract import contract
from contracts.spec.conventions import chosen
from contracts.spec.recipe import Batch, Optim, Recipe, Schedule
from contracts.spec.training import Training

LITTLE = replace(DENSE, name="little", depth=2, hidden=8, ffn_hidden=8, heads=2, kv_groups=1, vocab=17)
"""Two layers: a step takes milliseconds."""

# kind, warm-up, steps, lr, min_lr → the rates of steps 0, 1, 2, …, worked out by hand
RATES: dict[str, tuple[Schedule, int, int, float, float, tuple[float, ...]]] = {
    "cosine": ("cosine", 2, 6, 1.0, 0.2, (0.0, 0.5, 1.0, 0.8828427, 0.6, 0.3171573, 0.2, 0.2, 0.2)),
    "linear": ("linear", 2, 6, 1.0, 0.2, (0.0, 0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2)),
    "constant": ("constant", 4, 5, 0.8, 0.1, (0.0, 0.2, 0.4, 0.6, 0.8, 0.8, 0.8)),
    "WSD": ("WSD", 2, 10, 1.0, 0.2, (0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.6, 0.2, 0.2)),
    "no-warm-up": ("linear", 0, 4, 1.0, 0.0, (1.0, 0.75, 0.5, 0.25, 0.0, 0.0)),
    "warm-up-to-the-end": ("cosine", 4, 4, 1.0, 0.2, (0.0, 0.25, 0.5, 0.75, 1.0, 0.2)),
    "warm-up-longer-than-the-run": ("linear", 6, 3, 0.6, 0.1, (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)),
    "one-step": ("WSD", 0, 1, 1.0, 0.5, (1.0, 0.5, 0.5)),
}
_COUNTING = ("first-rate", "warm-up-from", "warm-up-without-decay")


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
    given = (batch("rate", 17, ROWS[:2]),) * (len(rates) - 1)
    if warmup >= steps and chosen(stack, "warm-up-without-decay") == "refused":
        refused = refusal_of(lambda: run(stack, recipe, given, declared=True))
        assert "warm" in str(refused), (
            f"the refusal of a warm-up of {warmup} in {steps} steps does not name it: {refused}"
        )
        return
    if kind == "WSD" and chosen(stack, "warm-up-from") == "min-lr":
        rates = (*(low + (lr - low) * step / warmup for step in range(warmup)), *rates[warmup:])
    rates = rates[:-1] if chosen(stack, "first-rate") == "step-0" else rates[1:]
    found = [step.lr for step in run(stack, recipe, given, declared=True).steps]
    for step, (rate, want) in enumerate(zip(found, rates, strict=True), start=1):
        assert abs(rate - want) < 1e-6, f"the rate of step {step} is {rate:.7g}, expected {want:.7g} ({kind})"


WINDOWS = {"microbatches-3": (3, 5), "microbatches-4": (4, 5), "more-sequences": (1, 2)}


@contract("OPT-05c", asks="train", cases=WINDOWS, source="F09", conventions=("first-rate",))
def the_schedule_counts_optimizer_steps(stack: Training, microbatches: int, rows: int) -> None:
    """The rate depends on the number of optimizer steps, not on microbatches or sequences."""
    recipe = replace(LITTLE, optim=Optim(lr=1.0, min_lr=0.2, schedule="linear", warmup=2, steps=6),
                     batch=Batch(micro=1, total=rows))  # fmt: skip
    given = (batch("rate", 17, ROWS[:rows]),) * 4
    steps = run(stack, recipe, given, microbatches=microbatches, declared=True).steps
    rates = (0.0, 0.5, 1.0, 0.8) if chosen(stack, "first-rate") == "step-0" else (0.5, 1.0, 0.8, 0.6)
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
    """
    recipe = replace(recipe, optim=replace(recipe.optim, clip=limit))
    rows = table(stack, recipe)
    trained = run(stack, recipe, batches(2, recipe=recipe), "gradients", weights=drawn_weights(rows))
    for step in trained.steps:
        lacking = sorted({row.name for row in rows} - set(step.gradients))
        assert not lacking, f"there is no gradient of {', '.join(lacking[:3])}"
        squares = [
            float(each.double().square().sum()) for each in instruments.numerics.tensors(step.gradients).values()
        ]
        norm = math.sqrt(sum(squares))
        assert abs(step.grad_norm - norm) < 1e-9 * norm, (
            f"the norm of step {step.number} is {step.grad_norm:.8g}, that of its gradients {norm:.8g}"
        )
        want = min(1.0, limit / (norm + 1e-6)) if limit else 1.0
        assert abs(step.clip_coef - want) < 1e-9 * want, (
            f"gradients of norm {norm:.6g} were multiplied by {step.clip_coef:.8g} at a limit of {limit:g}, "
            f"expected {want:.8g}"
        )

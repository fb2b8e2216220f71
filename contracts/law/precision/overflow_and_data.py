"""A step that overflows in float16 is a step for all but the weights: the data continues, and so does a resumed run."""

import math
from dataclasses import replace

from contracts import instruments
from contracts.contract import contract
from contracts.law._support.folders import folder
from contracts.law._support.training_run import large_expert_weights
from contracts.law.precision.loss_scale import DENSE_HALF, LOUD, SOURCE, scale_of
from contracts.spec import Arrays, Batch, Data, Execution, NotOffered, Recipe, Session, Step, Training

SEQUENCES, PER_STEP = 6, 2
EPOCH = SEQUENCES // PER_STEP
OWN = replace(DENSE_HALF, name="own-half", batch=Batch(micro=1, total=PER_STEP))


def _text(recipe: Recipe) -> bytes:
    """Tokens of six sequences, of which the third has the one that overflows."""
    drawn = instruments.fixtures.integers("own", (SEQUENCES * recipe.seq_length + 1,), LOUD).tolist()
    drawn[2 * recipe.seq_length + 3] = LOUD
    return bytes(20 if each == 10 else each for each in drawn)  # no blank line: all is one document


def _weights(stack: Training, recipe: Recipe) -> Arrays:
    held = instruments.numerics.tensors(large_expert_weights(stack, recipe, "float32"))
    for row in stack.built(recipe, "nemo_native").parameters:
        if row.role == "embedding":
            held[row.name][LOUD] = 1e5
    return instruments.numerics.arrays(held)


@contract("PREC-05n", asks=("built", "train"), cases={"dense": (OWN,)}, source=f"{SOURCE}; F05 F07")
def the_data_continues_after_a_step_that_overflows(stack: Training, recipe: Recipe) -> None:
    """After a step that overflows, the next step takes the next sequences, so that each occurs once an epoch. A run
    that is resumed after it continues where the uninterrupted run does, with its loss scale.

    A step that is repeated overflows again on the same data, and one that counts only in one place moves the data
    against the steps.
    """
    with folder() as at:
        path = at / "tokens"
        path.write_bytes(_text(recipe))
        asked = Session(
            recipe=replace(recipe, data=Data(path=str(path))), steps=2 * EPOCH, weights=_weights(stack, recipe),
            execution=Execution(precision="declared"),
        )  # fmt: skip
        whole = stack.train(asked).steps
        lost = [step.number for step in whole if not math.isfinite(step.grad_norm)]
        if not lost:
            raise NotOffered("its residual stream is wider than float16, and nothing overflows", "case")
        for first in range(0, 2 * EPOCH, EPOCH):
            _is_an_epoch(whole[first : first + EPOCH], lost)
        saves = replace(asked, steps=lost[0], save=str(at / "runs"), save_at=frozenset({lost[0]}))
        stack.train(saves)
        rest = replace(asked, steps=2 * EPOCH - lost[0], weights={}, load=saves.save)
        resumed = stack.train(rest).steps
    for got, want in zip(resumed, whole[lost[0] :], strict=True):
        for what, one, other in (("sequences", got.samples, want.samples), ("scale", scale_of(got), scale_of(want))):
            words = f"resumed after step {lost[0]}, which overflowed, step {got.number} has the {what} {one}"
            assert one == other, f"{words}, and {other} without"


def _is_an_epoch(steps: tuple[Step, ...], lost: list[int]) -> None:
    taken = sorted(id for step in steps for id in step.samples)
    words = f"steps {steps[0].number} to {steps[-1].number} take the sequences {taken}"
    assert taken == list(range(SEQUENCES)), f"{words}, each once is an epoch; steps {lost} overflowed"

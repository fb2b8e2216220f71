"""How a loss scale rises: after how many steps of which none overflows."""

import contextlib
import math
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from contracts import instruments
from contracts.contract import contract
from contracts.law._support.training_run import batch, large_expert_weights
from contracts.law.precision.loss_scale import DENSE_HALF, SOURCE, STEADY, scale_of
from contracts.spec import Execution, NotOffered, Recipe, Session, Training

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
    """The loss scale rises within 2000 steps without an overflow, and a resumed run raises it in the same step as the
    uninterrupted run.

    GradScaler waits 2000 steps, Megatron-Core 1000. A scale that only falls ends where small gradients are 0, and one
    whose count begins anew at each load never rises in a run that saves more often.
    """
    given = replace(batch("quiet", recipe.vocab, (((13,), 0),), recipe=recipe), documents=None)
    asked = Session(
        recipe=recipe, steps=STEPS, execution=Execution(precision="declared"), batches=(given,) * STEPS,
        observe=frozenset({"weights"}), at=frozenset({1, STEPS}),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, _one_thread():
        whole = stack.train(replace(asked, save=folder, save_at=frozenset({SAVED}))).steps
        left = replace(asked, steps=STEPS - SAVED, batches=asked.batches[SAVED:], load=folder)
        resumed = stack.train(left).steps
    scales = [scale_of(step) for step in whole]
    lost = next((step.number for step in whole if not math.isfinite(step.grad_norm)), None)
    if lost is not None:
        raise NotOffered(f"its step {lost} overflows where every number is small", "case")
    assert max(scales) > scales[0], f"the loss scale is {scales[-1]:g} after {STEPS} finite steps, and was in each"
    for got, want in zip(resumed, scales[SAVED:], strict=True):
        words = f"{scale_of(got):g} resumed after step {SAVED}, {want:g} without"
        assert scale_of(got) == want, f"the loss scale of step {got.number} is {words}"


UPSET = (1500, 1501)
"""Steps that overflow: a scale that counts 1000 steps, or 2000, has counted 500 of them or more."""


@contract("PREC-05k", asks=("built", "train"), cases=GROWN, slow=True, source=SOURCE)
def the_loss_scale_waits_anew_behind_an_overflow(stack: Training, recipe: Recipe) -> None:
    """After a step that overflows, the loss scale rises only after as many finite steps as the first rise took: finite
    steps from before the overflow do not count.

    A count that continues raises the scale where it has just been too large, so that each rise costs steps.
    """
    numerics = instruments.numerics
    held = numerics.tensors(large_expert_weights(stack, recipe, "float32"))
    for row in stack.built(recipe, "nemo_native").parameters:
        if row.role == "embedding":
            held[row.name][recipe.vocab - 1] = 1e5
    quiet = replace(batch("quiet", recipe.vocab - 1, (((13,), 0),), recipe=recipe), documents=None)
    tokens_BT = numerics.tensor(quiet.tokens)
    tokens_BT[0, 3] = recipe.vocab - 1
    loud = replace(quiet, tokens=numerics.array(tokens_BT))
    given = tuple(loud if step in UPSET else quiet for step in range(1, STEPS + 1))
    with _one_thread():
        steps = stack.train(
            Session(recipe=recipe, steps=STEPS, execution=Execution(precision="declared"), batches=given,
                    weights=numerics.arrays(held), observe=frozenset({"weights"}), at=frozenset({STEPS}))
        ).steps  # fmt: skip
    lost = [step.number for step in steps if not math.isfinite(step.grad_norm)]
    if lost != [*UPSET]:
        raise NotOffered(f"overflows in steps {lost[:4]}, and only {UPSET} are to", "case")
    scales = [scale_of(step) for step in steps]
    rises = [number for number, (before, scale) in enumerate(pairwise(scales), start=2) if scale > before]
    waits = next((number for number in rises if number < UPSET[0]), UPSET[0])
    early = [number for number in rises if UPSET[1] < number < UPSET[1] + waits]
    assert not early, (
        f"the loss scale rises in step {early[0]}, {early[0] - UPSET[1]} steps after one that overflowed, and had not "
        f"risen in {waits - 1}"
    )

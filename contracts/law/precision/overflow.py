"""After an overflow in float16 all ranks leave out the same step and the data continues; later the loss scale rises."""

import contextlib
import math
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from contracts.contract import contract
from contracts.instruments import fixtures, numerics
from contracts.instruments.ranks import gathered
from contracts.law._support.late import torch
from contracts.law._support.saved_states import folder
from contracts.law._support.small_models import DENSE, Cell, cell, session
from contracts.law._support.training_run import batch, large_expert_weights
from contracts.law.precision.loss_scale import DENSE_HALF, LOUD, SOURCE, STEADY, loud_weights, scale_of
from contracts.spec import EXACT, Batch, Data, Execution, NotOffered, Recipe, Session, Step, Tokens, Training

QUIET = replace(DENSE_HALF, name="quiet-half", pattern="E", depth=1, hidden=8, ffn_hidden=8, heads=2, kv_groups=1,
                vocab=17, optim=replace(STEADY, lr=1e-5, min_lr=1e-5, steps=4000))  # fmt: skip
"""One layer: a step takes milliseconds."""
GROWN = {"dense": (QUIET,)}
STEPS, SAVED = 2003, 1990


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Two thousand steps of some numbers each: a second thread only waits, for minutes on a busy machine."""
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


SEQUENCES, PER_STEP = 6, 2
EPOCH = SEQUENCES // PER_STEP
OWN = replace(
    DENSE_HALF, name="own-half", batch=Batch(micro=1, total=PER_STEP),
    optim=replace(DENSE_HALF.optim, schedule="linear", min_lr=0.0, steps=3 * EPOCH),
)  # fmt: skip


def _text(recipe: Recipe) -> bytes:
    """Tokens of six sequences, of which the third has the one that overflows."""
    drawn = fixtures.integers("own", (SEQUENCES * recipe.seq_length + 1,), LOUD).tolist()
    drawn[2 * recipe.seq_length + 3] = LOUD
    return bytes(20 if each == 10 else each for each in drawn)  # no blank line: all is one document


@contract("PREC-05n", asks=("built", "train"), cases={"dense": (OWN,)}, source=f"{SOURCE}; F05 F07")
def the_data_continues_after_a_step_that_overflows(stack: Training, recipe: Recipe) -> None:
    """After a step that overflows, the next step takes the next sequences, so that each occurs once an epoch. A run
    that is resumed after it continues where the uninterrupted run does, with its loss scale and its rate.

    A step that is repeated overflows again on the same data, and one that counts only in one place moves the data
    against the steps.
    """
    with folder() as at:
        path = at / "tokens"
        path.write_bytes(_text(recipe))
        asked = Session(
            recipe=replace(recipe, data=Data(path=str(path))), steps=2 * EPOCH, weights=loud_weights(stack, recipe),
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
        for what, one, other in (
            ("sequences", got.samples, want.samples),
            ("scale", scale_of(got), scale_of(want)),
            ("rate", got.lr, want.lr),
        ):
            words = f"resumed after step {lost[0]}, which overflowed, step {got.number} has the {what} {one}"
            assert one == other, f"{words}, and {other} without"


def _is_an_epoch(steps: tuple[Step, ...], lost: list[int]) -> None:
    taken = sorted(id for step in steps for id in step.samples)
    words = f"steps {steps[0].number} to {steps[-1].number} take the sequences {taken}"
    assert taken == list(range(SEQUENCES)), f"{words}, each once is an epoch; steps {lost} overflowed"


HALF = replace(DENSE, name="dense-fp16", dtype="fp16")
MUON = replace(HALF, name="dense-fp16-muon", optim=replace(HALF.optim, rule="muon"))
SHARDED: dict[str, Cell] = {
    "fsdp2": cell(HALF, 2, fsdp=True),
    "fsdp2-muon": cell(MUON, 2, fsdp=True),
    "tp2-sp": cell(HALF, 2, tp=2, sp=True),
    "tp2-sp-fsdp2": cell(HALF, 4, tp=2, sp=True, fsdp=True),
}


@contract("PREC-05l", asks=("built", "train"), cases=SHARDED, tier="dist", source=SOURCE)
def an_overflow_in_one_shard_is_everybody_s(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Under float16, if only one rank's part of a gradient is not finite, the step changes no bit of weights and
    optimizer state on any rank, and the loss scale falls on all ranks alike.

    A gradient that is reduced is finite or not on all ranks alike; one that is cut is not. A rank that looks at its own
    part takes the step, and has other weights and another scale from then on. Here every label is among the first rows
    of the output projection, whose gradient is large there; a stack that makes it in float32 is not asked.
    """
    asked = session(stack, recipe, execution, 3, "gradients", "weights", "optimizer")
    held = numerics.tensors(asked.weights)
    heads = [row.name for row in stack.built(recipe, execution.mode).parameters if row.role == "head"]
    for row in stack.built(recipe, execution.mode).parameters:
        if row.role == "head" or (row.role == "norm" and row.layer is None):
            held[row.name] *= 2**-5 if row.role == "head" else 2**3
    first, *later = asked.batches
    given = (first, *(_with_one_label(each) for each in later))
    before, *skipped = stack.train(replace(asked, batches=given, weights=numerics.arrays(held))).steps
    for step in skipped:
        grad_VD = numerics.tensor(step.gradients[heads[0]])
        if (
            not math.isfinite(before.grad_norm)
            or grad_VD.isfinite().all()
            or not grad_VD[len(grad_VD) // 2 :].isfinite().all()
        ):
            raise NotOffered("overflows elsewhere than in the first rows of its output projection", "case")
        for kind, what in (("weights", "the weight"), ("optimizer", "the optimizer state")):
            words = numerics.differences(what, getattr(step, kind), getattr(before, kind), EXACT)
            assert not words, f"a step that overflowed in one rank's part of a gradient moved: {words}"
    scales = gathered([scale_of(step) for step in (before, skipped[-1])])
    for rank, (was, now) in enumerate(scales):
        assert now < was, f"the loss scale of rank {rank} is {now:g} after two steps that overflowed, {was:g} before"
        assert [was, now] == scales[0], f"the loss scale of rank {rank} is {now:g}, that of rank 0 {scales[0][1]:g}"


def _with_one_label(given: Tokens) -> Tokens:
    """A batch in which two labels count, both 3."""
    labels_BT = numerics.tensor(given.labels)
    labels_BT[:, :-2] = -100
    labels_BT[:, -2] = 3
    labels_BT[:, -1] = -100
    labels_BT[2:] = -100
    return replace(given, labels=numerics.array(labels_BT))

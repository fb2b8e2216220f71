"""Checkpoints of a transformer with experts: resumed, and loaded by other layouts."""

from dataclasses import replace

from contracts.contract import contract
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_saves import first_finding, layout_name, state_difference
from contracts.law._support.saved_states import shared_folder
from contracts.law._support.small_models import GROUPED_EXPERTS, cell, session
from contracts.law._support.transformer_layouts import HALF, SAVED, STAGES, STEPPED, cells_named
from contracts.law.checkpoint.resume import unlike
from contracts.spec import Execution, Observed, Recipe, Training

STATE: tuple[Observed, ...] = ("weights", "optimizer", "buffers")


@contract("CKPT-01h", asks=("built", "train"), cases=STEPPED | HALF, source="F07", tier="dist")
def a_transformer_resumed_twice_is_uninterrupted(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """A run that saves and resumes twice has, at every save, bit-identical weights, optimizer moments and expert biases
    to those of the run that was not interrupted.
    """
    ends = (1, 2, 4)
    asked = replace(session(stack, recipe, execution, ends[-1], *STATE), at=frozenset(ends))
    whole = stack.train(asked)
    start = 0
    with shared_folder() as at:
        for end in ends:
            given = asked if start == 0 else replace(asked, weights={}, buffers={}, load=str(at))
            part = replace(given, steps=end - start, batches=asked.batches[start:end], save=str(at),
                           save_at=frozenset({end}))  # fmt: skip
            run = stack.train(part)
            words = "" if run.start == start else f"the run began after step {run.start}, expected {start}"
            for got, want in zip(run.steps, whole.steps[start:end], strict=True):
                unlike = state_difference(got, want)
                words = words or (f"step {want.number}: {unlike}" if unlike else "")
            words = first_finding(words)
            assert not words, f"begun after step {start}, {words}"
            start = end


@contract("CKPT-02h", asks=("built", "train"), cases=SAVED, source="F07", tier="dist")
def another_layout_loads_a_transformer_by_its_names(
    stack: Training, recipe: Recipe, execution: Execution, world: int, loads: tuple[Execution, ...]
) -> None:
    """If a checkpoint is loaded on another layout, every weight, optimizer moment and expert bias arrives under its
    name, whole and bit-identical.
    """
    asked = session(stack, recipe, execution, 2, *STATE)
    others = [in_a_layout_of(stack, each) for each in loads]
    with shared_folder() as at:
        saved = stack.train(replace(asked, save=str(at), save_at=frozenset({2}))).steps[-1]
        for layout in others:
            run = stack.train(
                replace(asked, steps=0, batches=(), weights={}, buffers={}, execution=layout, load=str(at),
                        at=frozenset({0}))
            )  # fmt: skip
            words = "" if run.start == 2 else f"the run resumed after step {run.start}, expected 2"
            words = words or ("no loaded state is reported" if run.loaded is None else "")
            words = first_finding(words or (state_difference(run.loaded, saved) if run.loaded else ""))
            assert not words, f"saved on {layout_name(asked.execution)}, loaded on {layout_name(layout)}, {words}"


BEHIND = cells_named("dp2", "fsdp2", "hsdp-2x2", "tp2-sp", "ep2", "borrowed-ep2-fsdp", "tp2-sp-fsdp2") | {
    "bf16-fsdp2": HALF["bf16-fsdp2"], "1f1b": STAGES["1f1b"], "cp2": cell(GROUPED_EXPERTS, 2, cp=2),
}  # fmt: skip


@contract("CKPT-01n", asks=("built", "train"), cases=BEHIND, needs={"": ("checkpoint", "experts")},
          source="F07; F13; GATE-22", tier="dist")  # fmt: skip
def a_save_of_several_ranks_does_not_touch_the_run(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """On several ranks a run that saves after every step is bit-identical to the run that never saves: losses, norms,
    weights, optimizer moments and expert biases of each step.

    A save gathers. Parameters that are not put back, gradients that are no longer synchronised and a collective in
    another order show in the step after it.
    """
    asked = session(stack, recipe, execution, 3, *STATE)
    plain = stack.train(asked).steps
    with shared_folder() as at:
        saving = stack.train(replace(asked, save=str(at), save_at=frozenset({1, 2, 3}))).steps
    words = (unlike(got, want) for got, want in zip(saving, plain, strict=True))
    found = first_finding(
        next((f"step {step.number}: {each}" for step, each in zip(plain, words, strict=True) if each), "")
    )
    assert not found, f"with a save after each step, {found}"

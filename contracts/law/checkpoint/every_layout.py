"""Each layout of four ranks resumes from every other one's checkpoint, and no rank loads numbers of another dtype.

The same of a transformer with experts.
"""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.instruments.ranks import gathered
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_saves import (
    EP2_BORROWED,
    EP4_BORROWED,
    EVEN,
    FSDP2,
    FSDP4,
    HSDP,
    INTERLEAVED_FSDP2,
    ONE,
    PP2,
    PP2_FSDP2,
    PP2_TP2,
    PP4,
    SPREAD,
    STATE,
    TP2_EP2,
    TP2_FSDP2,
    first_finding,
    layout_name,
    refusal,
    save_folder,
    state_difference,
)
from contracts.law._support.saved_states import FAMILIES, shared_folder
from contracts.law._support.small_models import GROUPED_EXPERTS, cell, session
from contracts.law._support.transformer_layouts import HALF, SAVED, STAGES, STEPPED, cells_named
from contracts.law.checkpoint.resume import unlike
from contracts.spec import FLOAT64_SCAN, Execution, Observed, Recipe, Session, Step, Training

LAYOUTS: dict[str, Execution] = {
    "one-rank": ONE,
    "fsdp4": FSDP4,
    "hsdp-2x2": HSDP,
    "tp2-sp-fsdp2": TP2_FSDP2,
    "tp2-sp-ep2": TP2_EP2,
    "borrowed-tp2-sp-ep4-fsdp": EP4_BORROWED,
    "pp4": PP4,
    "pp2-fsdp2": PP2_FSDP2,
    "pp2-interleaved-fsdp2": INTERLEAVED_FSDP2,
    "pp2-tp2-sp": PP2_TP2,
}
SAVES: dict[str, tuple[Execution, int]] = {name: (execution, 4) for name, execution in LAYOUTS.items()}


@contract("CKPT-02i", asks="train", cases=SAVES, source=FAMILIES, tier="dist", slow=True)
def every_layout_goes_on_from_this_one(stack: Training, saves: Execution, world: int) -> None:
    """A checkpoint loads on nine other layouts: weights, optimizer state and buffers arrive by name and bit-identical.
    The next step on each equals the next step on the first layout: sequences, learning rate, losses and every gradient.

    Equal weights after a load hide errors in what the next step uses. Three bugs are right on the layout that saved: a
    stage that finds its layers by their index on the rank, a shard of a shard that is reassembled in the wrong order,
    and experts in the order of ranks.
    """
    saves, *loads = (in_a_layout_of(stack, each) for each in (saves, *LAYOUTS.values()))
    with shared_folder() as at:
        folder = save_folder(at, saves).as_posix()
        whole = Session(recipe=EVEN, steps=3, execution=saves, observe=STATE | {"gradients"}, save=folder,
                        save_at=frozenset({2}))  # fmt: skip
        steps = stack.train(whole).steps
        (source, *_) = gathered(folder)
        for layout in (each for each in loads if each != saves):
            session = Session(
                recipe=EVEN, steps=1, execution=layout, observe=STATE | {"gradients"}, at=frozenset({0, 3}), load=source
            )
            run = stack.train(session)
            words = "no loaded state is reported" if run.loaded is None else state_difference(run.loaded, steps[1])
            words = first_finding(words or _apart(run.steps[0], steps[2]))
            assert not words, f"saved on {layout_name(saves)}, loaded on {layout_name(layout)}, {words}"


def _apart(got: Step, want: Step) -> str:
    """How the step after the load differs, beyond rounding from the order of sums."""
    for fact in ("number", "samples", "lr", "tokens"):
        if getattr(got, fact) != getattr(want, fact):
            return f"step 3: {fact} is {getattr(got, fact)}, expected {getattr(want, fact)}"
    for name, loss in want.losses.items():
        found = got.losses.get(name, float("nan"))
        if not abs(found - loss) <= 1e-11 * max(1.0, abs(loss)):
            return f"step 3: {name} is {found:.10g}, expected {loss:.10g}"
    words = numerics.gradient_differences("the gradient of", got.gradients, want.gradients, FLOAT64_SCAN)
    return f"step 3: {words}" if words else ""


OTHER_KINDS: dict[str, tuple[Execution, int]] = {
    "fsdp2": (FSDP2, 2),
    "borrowed-ep2-fsdp": (EP2_BORROWED, 2),
    "pp2": (PP2, 2),
    "tp2-sp-ep2": (TP2_EP2, 4),
}


@contract("CKPT-04h", asks="train", cases=OTHER_KINDS, source=FAMILIES, tier="dist")
def numbers_of_another_kind_are_refused_by_every_rank(stack: Training, execution: Execution, world: int) -> None:
    """When ranks hold their state in float32, every rank refuses a checkpoint that was saved in float64, and the
    refusal names both dtypes and a tensor. Afterwards the ranks load it as float64.

    DCP casts shard by shard without a word: optimizer moments lose precision, and the resume is not bit-identical.
    """
    execution = in_a_layout_of(stack, execution)
    with shared_folder() as at:
        folder = save_folder(at, execution).as_posix()
        session = Session(recipe=SPREAD, steps=1, execution=execution, save=folder, save_at=frozenset({1}))
        stack.train(session)
        again = replace(session, steps=0, save=None, load=folder)
        told = gathered(refusal(stack, replace(again, execution=replace(execution, precision="float32"))))
        start = stack.train(again).start
    for rank, words in enumerate(told):
        assert words, f"float64 was loaded into float32 on {layout_name(execution)} by rank {rank}"
        missing = [each for each in ("float64", "float32", "weight") if each not in words]
        assert not missing, f"the refusal of rank {rank} does not name {missing}: {words[:200]}"
    assert start == 1, f"after the refusal the ranks resumed after step {start}, expected 1"


OBSERVED: tuple[Observed, ...] = ("weights", "optimizer", "buffers")


@contract("CKPT-01h", asks=("built", "train"), cases=STEPPED | HALF, source="F07", tier="dist")
def a_transformer_resumed_twice_is_uninterrupted(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """A run that saves and resumes twice has, at every save, bit-identical weights, optimizer moments and expert biases
    to those of the run that was not interrupted.
    """
    ends = (1, 2, 4)
    asked = replace(session(stack, recipe, execution, ends[-1], *OBSERVED), at=frozenset(ends))
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
    asked = session(stack, recipe, execution, 2, *OBSERVED)
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
    asked = session(stack, recipe, execution, 3, *OBSERVED)
    plain = stack.train(asked).steps
    with shared_folder() as at:
        saving = stack.train(replace(asked, save=str(at), save_at=frozenset({1, 2, 3}))).steps
    words = (unlike(got, want) for got, want in zip(saving, plain, strict=True))
    found = first_finding(
        next((f"step {step.number}: {each}" for step, each in zip(plain, words, strict=True) if each), "")
    )
    assert not found, f"with a save after each step, {found}"

"""A load returns exactly what was saved, or a refusal that names what is wrong; it never loads half a state."""

from collections.abc import Mapping
from dataclasses import replace

from contracts.contract import contract
from contracts.law._support import saved_states
from contracts.law._support.saved_states import (
    BIAS,
    EXPERTS,
    FAMILIES,
    STEPS_TAKEN,
    folder,
    load_failure,
    state,
    target,
)
from contracts.spec import Array, Checkpointing, Element, Shape

ROUND: dict[str, tuple[Mapping[str, Shape], int, Mapping[str, int]]] = {
    "more-than-ten-files": (saved_states.SHAPES, saved_states.FILE_BYTES, {"sample": 5}),
    "one-file": (saved_states.SHAPES, saved_states.ONE_FILE, {"sample": 5}),
    "a-long-tensor-in-many-files": ({"w": Shape(dtype="float64", shape=(131, 2))}, 40, {}),
    "counters-past-32-bits": ({"w": Shape(dtype="bool", shape=(3,))}, 8, {"tokens": 2**40, "sample": 2**31 + 1}),
    "halves": ({"w": Shape(dtype="float16", shape=(11, 1)), "wo": Shape(dtype="bfloat16", shape=(1, 11))}, 8, {}),
}


@contract("CKPT-04a", asks=("write_checkpoint", "load_checkpoint"), cases=ROUND, source=FAMILIES)
def what_is_loaded_is_what_was_saved(
    stack: Checkpointing, shapes: Mapping[str, Shape], file_bytes: int, position: Mapping[str, int]
) -> None:
    """A checkpoint returns every tensor, bit for bit and in its dtype, and every counter, however it is split into
    files.

    Counters past 2³¹ came back negative from an int32. Shards came back in the order of their file names, in which 10
    stands before 2.
    """
    saved = replace(state(4, shapes), position=position)
    with folder() as at:
        saved_states.write(stack, at, saved, file_bytes)
        words = load_failure(stack, at, saved, 4)
    assert not words, f"step 4 was saved and loaded, and {words}"


NUMBERS: dict[str, tuple[Element, tuple[str, ...]]] = {
    "float32": ("float32", ("0000807f", "0000c07f", "00000080", "01000000")),  # inf, NaN, -0.0, 1.4e-45
    "bfloat16": ("bfloat16", ("807f", "c07f", "0080", "0100")),
    "float64": ("float64", ("0000000000000080", "0000000000000100", "010000000000f87f")),  # last: NaN with a payload
    "int64": ("int64", ("ffffffffffffff7f", "0000000000000080", "0100008000000000")),
}


@contract("CKPT-04b", asks=("write_checkpoint", "load_checkpoint"), cases=NUMBERS, source=FAMILIES)
def no_number_is_too_strange_to_keep(stack: Checkpointing, dtype: Element, bits: tuple[str, ...]) -> None:
    """Infinities, NaNs with their payload, -0.0, and the smallest and largest numbers come back bit-identical.

    With ordinary numbers, a state that went through float32 or through text still compares equal.
    """
    data = bytes.fromhex("".join(bits))
    saved = replace(state(4, {}), tensors={"w": Array(dtype=dtype, shape=(len(bits),), data=data)})
    with folder() as at:
        saved_states.write(stack, at, saved)
        got = stack.load_checkpoint(str(at), 4, target(saved))
    assert not got.refused, f"step 4 was refused: {got.refused}"
    kept = got.state.tensors["w"].data.hex()
    assert kept == "".join(bits), f"the bits of {dtype} came back as {kept}, expected {''.join(bits)}"


Expected = Mapping[str, Shape | None]
"""Which shapes the target of the load has instead; None for a tensor that it lacks."""
MISFITS: dict[str, tuple[Expected, tuple[str, ...]]] = {
    "narrower-dtype": ({EXPERTS: Shape(dtype="bfloat16", shape=(12, 4, 3))}, (EXPERTS, "float32", "bfloat16")),
    "wider-dtype": ({"weights/embedding.weight": Shape(dtype="float32", shape=(7, 3))}, ("weights/embedding.weight",)),
    "moment-in-bfloat16": (
        {"optimizer/head.weight/exp_avg": Shape(dtype="bfloat16", shape=(5, 3))}, ("optimizer/head.weight/exp_avg",),
    ),
    "as-many-elements": ({EXPERTS: Shape(dtype="float32", shape=(12, 3, 4))}, (EXPERTS,)),
    "fewer-experts": ({EXPERTS: Shape(dtype="float32", shape=(8, 4, 3))}, (EXPERTS, "12", "8")),
    "more-experts": ({BIAS: Shape(dtype="float32", shape=(16,))}, (BIAS, "12", "16")),
    "would-broadcast": ({STEPS_TAKEN: Shape(dtype="float32", shape=(3,))}, (STEPS_TAKEN,)),
    "one-for-none": ({STEPS_TAKEN: Shape(dtype="float32", shape=(1,))}, (STEPS_TAKEN,)),
    "missing": ({"weights/mtp.0.proj.weight": Shape(dtype="float32", shape=(2, 2))}, ("weights/mtp.0.proj.weight",)),
    "extra": ({BIAS: None}, (BIAS,)),
    "everything-at-once": (
        {
            BIAS: None,
            STEPS_TAKEN: Shape(dtype="float64", shape=()),
            EXPERTS: Shape(dtype="float32", shape=(11, 4, 3)),
            "weights/new.weight": Shape(dtype="float32", shape=(1,)),
        },
        (BIAS, STEPS_TAKEN, EXPERTS, "weights/new.weight"),
    ),
}  # fmt: skip


@contract("CKPT-04d", asks=("write_checkpoint", "load_checkpoint"), cases=MISFITS, source=FAMILIES)
def what_does_not_fit_is_refused_at_once(stack: Checkpointing, expected: Expected, named: tuple[str, ...]) -> None:
    """A load is refused when tensors are missing, are unexpected, or have another shape or dtype than the target. The
    refusal names all of them at once, and nothing is loaded.

    DCP casts float32 into bfloat16 without a word. `strict=False` leaves an expert's bias at zero. `copy_` broadcasts
    one number over a whole vector.
    """
    saved = state(4)
    changed = {name: each for name, each in expected.items() if each is not None}
    tensors = {name: each for name, each in target(saved).tensors.items() if name not in expected}
    before = replace(target(saved), tensors=tensors | dict(target(state(4, changed)).tensors))
    with folder() as at:
        saved_states.write(stack, at, saved)
        loaded = stack.load_checkpoint(str(at), 4, before)
    assert loaded.refused, f"{', '.join(expected)} does not fit what was saved, and was loaded"
    missed = [word for word in named if word not in loaded.refused]
    assert not missed, f"the refusal does not name {', '.join(missed)}: {loaded.refused}"
    words = saved_states.target_change(loaded.state, before)
    assert not words, f"the load was refused, but {words}"


OTHERS: dict[str, tuple[str, str]] = {
    "another-recipe": ("r1", "r2"),
    "no-recipe": ("r1", ""),
    "saved-without": ("", "r1"),
}


@contract("CKPT-04e", asks=("write_checkpoint", "load_checkpoint"), cases=OTHERS, source=FAMILIES)
def a_state_is_loaded_into_its_recipe_alone(stack: Checkpointing, saved_under: str, into: str) -> None:
    """A state saved under one recipe is refused by a target of another recipe, even when every tensor fits.

    Top-k, the rope base and the schedule are in no tensor's shape.
    """
    saved = replace(state(4), recipe=saved_under)
    before = replace(target(saved), recipe=into)
    with folder() as at:
        saved_states.write(stack, at, saved)
        loaded = stack.load_checkpoint(str(at), 4, before)
    assert loaded.refused, f"a state of recipe {saved_under!r} was loaded into recipe {into!r}"
    words = saved_states.target_change(loaded.state, before)
    assert not words, f"the load was refused, but {words}"


ABSENT: dict[str, tuple[tuple[int, ...], int | None]] = {"empty-folder": ((), None), "no-such-step": ((2, 4), 3)}


@contract("CKPT-04f", asks=("write_checkpoint", "load_checkpoint"), cases=ABSENT, source=FAMILIES)
def what_is_not_there_is_refused(stack: Checkpointing, there: tuple[int, ...], step: int | None) -> None:
    """A load is refused when there is no checkpoint, or none of the named step. It never falls back to a fresh start.

    A run that is told to resume from an unmounted volume and starts again overwrites a month of training.
    """
    with folder() as at:
        for each in there:
            saved_states.write(stack, at, state(each))
        before = target(state(4))
        loaded = stack.load_checkpoint(str(at), step, before)
    asked = "the latest" if step is None else f"step {step}"
    assert loaded.refused, f"{asked} of {list(there)} was loaded as step {loaded.state.step}"
    words = saved_states.target_change(loaded.state, before)
    assert not words, f"the load was refused, but {words}"

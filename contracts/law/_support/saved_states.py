"""States for the checks on checkpoints, and the folders they are written to: new ones, of one process or of all ranks,
in memory where possible.

States have more than ten experts, more than ten files, a scalar, an empty tensor, and every kind of number that
training keeps. A checkpoint is synced file by file, and a disk takes some milliseconds for each: on ranks that share a
machine, that is longer than the run.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from contracts.instruments import fixtures, numerics
from contracts.instruments.ranks import gathered, here
from contracts.law._support.late import torch
from contracts.spec import EXACT, Array, Arrays, Checkpointing, Element, Shape, Snapshot

MEMORY, ROOMY = "/dev/shm", 2**30  # bytes


def scratch() -> str | None:
    """A folder in memory; None, the usual place, where TMPDIR names another (ranks on several hosts need one that all
    of them see) or where memory is short.
    """
    roomy = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOMY
    return MEMORY if roomy and "TMPDIR" not in os.environ else None


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="checkpoints-", dir=scratch()) as path:
        yield Path(path)


BOTH_SIDES = "RANKPROOF_BOTH_SIDES"
"""The folder of what the base of a change leaves for its head."""


@contextmanager
def folder_of_both_sides(name: str) -> Iterator[Path]:
    """A folder in which the head of a change finds what its base has left under this name; a new one where there are
    no sides.
    """
    shared = os.environ.get(BOTH_SIDES)
    if shared is None:
        with folder() as at:
            yield at
        return
    at = Path(shared, name)
    at.mkdir(exist_ok=True)
    yield at


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A new folder that all ranks know. It is deleted when every rank is done, or with the process where one has
    failed.

    A rank that leaves early, for example because the stack declines the case, must not delete it for later ranks.
    """
    own = tempfile.mkdtemp(prefix="checkpoints-", dir=scratch()) if here().rank == 0 else ""
    (at, *_) = gathered(own)
    if own:
        atexit.register(shutil.rmtree, own, ignore_errors=True)
    yield Path(at)
    gathered("done")
    if own:
        shutil.rmtree(own, ignore_errors=True)


FAMILIES = "field: resume and checkpoint faults of Megatron-LM, torchtitan, NeMo and DCP"

FILE_BYTES = 96
"""Small enough to give more than ten files."""
ONE_FILE = 1 << 20

EXPERTS = "weights/layers.1.mixer.experts.w1"
BIAS = "buffers/layers.1.mixer.router.bias"
STEPS_TAKEN = "optimizer/head.weight/step"

SHAPES: Mapping[str, Shape] = {
    "weights/embedding.weight": Shape(dtype="bfloat16", shape=(7, 3)),
    EXPERTS: Shape(dtype="float32", shape=(12, 4, 3)),
    BIAS: Shape(dtype="float32", shape=(12,)),
    "optimizer/head.weight/exp_avg": Shape(dtype="float32", shape=(5, 3)),
    STEPS_TAKEN: Shape(dtype="float32", shape=()),
    "buffers/empty": Shape(dtype="float64", shape=(0, 4)),
    "buffers/seen": Shape(dtype="int64", shape=(3,)),
    "rng/0/torch": Shape(dtype="uint8", shape=(19,)),
}
LITTLE = {name: SHAPES[name] for name in (BIAS, STEPS_TAKEN)}
"""For what is written once for each boundary of a write."""


def state(step: int, shapes: Mapping[str, Shape] = SHAPES) -> Snapshot:
    """The state of a step: no two steps share a number."""
    tensors = {name: _drawn(name, each, step) for name, each in shapes.items()}
    return Snapshot(step=step, tensors=tensors, position={"sample": 64 * step + 3, "tokens": 10**9 * step}, recipe="r1")


def target(of: Snapshot) -> Snapshot:
    """A state of the same structure to load into, with numbers of no other state."""
    tensors = {name: _drawn(name, Shape(dtype=each.dtype, shape=each.shape), -1) for name, each in of.tensors.items()}
    return Snapshot(step=-1, tensors=tensors, position={"sample": -1, "tokens": -1}, recipe=of.recipe)


def _drawn(name: str, shape: Shape, step: int) -> Array:
    numbers = 40 * fixtures.normal(name, shape.shape, seed=step + 1)
    dtype: torch.dtype = getattr(torch, shape.dtype)
    return numerics.array((numbers.abs() if dtype == torch.uint8 else numbers).to(dtype))


def constant(shape: tuple[int, ...], value: float, dtype: Element = "float32") -> Array:
    return numerics.array(torch.full(shape, value, dtype=getattr(torch, dtype)))


def write(stack: Checkpointing, to: Path, state: Snapshot, file_bytes: int = FILE_BYTES) -> list[Path]:
    """Write a checkpoint, and the files that it put there, those of the lowest folder, in order."""
    before = files(to)
    written = stack.write_checkpoint(str(to), state, file_bytes, None)
    assert written.ending == "done", f"step {state.step} was not written: {written.ending} {written.words}".rstrip()
    return sorted(files(to) - before)


def files(below: Path) -> set[Path]:
    return {path for path in below.rglob("*") if path.is_file()}


def snapshot_difference(got: Snapshot, want: Snapshot) -> str:
    """How two states differ, in words; empty when they are bit-identical."""
    if got.step != want.step:
        return f"its step is {got.step}, expected {want.step}"
    if dict(got.position) != dict(want.position):
        return f"its position is {dict(got.position)}, expected {dict(want.position)}"
    return bit_difference(got.tensors, want.tensors)


def bit_difference(got: Arrays, want: Arrays) -> str:
    """How tensors differ bit for bit, so that NaN equals NaN and -0.0 does not equal 0.0."""
    for name in sorted(want.keys() & got.keys()):
        if got[name].dtype != want[name].dtype:
            return f"{name} is {got[name].dtype}, expected {want[name].dtype}"
    shared = [name for name in want if got.get(name) == want[name]]
    left, right = ({name: each for name, each in side.items() if name not in shared} for side in (got, want))
    words = numerics.differences("the state", left, right, EXACT)
    return words or (f"{', '.join(sorted(right))} has other bits" if right else "")


def load_failure(stack: Checkpointing, at: Path, want: Snapshot, step: int | None) -> str:
    """Why a load does not give a state, in words; empty when it does."""
    loaded = stack.load_checkpoint(str(at), step, target(want))
    if loaded.refused:
        return f"it was refused: {loaded.refused}"
    return snapshot_difference(loaded.state, want)


def target_change(after: Snapshot, before: Snapshot) -> str:
    """What a refused load changed in its target, in words."""
    words = snapshot_difference(replace(after, recipe=before.recipe), before)
    return f"the target is not what it was: {words}" if words else ""

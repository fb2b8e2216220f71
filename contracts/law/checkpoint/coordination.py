"""All ranks of a run load the same checkpoint, the same step of the same save, or none of them loads anything.

Ranks see a folder through their node's disk or a network file system's cache, and do not always see the same files.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

from contracts.contract import contract
from contracts.instruments.ranks import gathered, here
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_saves import EP2_BORROWED, FSDP2, SPREAD
from contracts.law._support.saved_states import FAMILIES, files, shared_folder
from contracts.spec import Execution, Refused, Session, Training

View = Literal["both", "first", "nothing", "another-save"]
"""What a rank sees: the saves of steps 1 and 2, only that of step 1, none, or those of a run that was restarted."""
VIEWS: dict[str, tuple[Execution, int, tuple[View, View], frozenset[int]]] = {  # the steps that may be loaded
    "rank-1-is-late": (FSDP2, 2, ("both", "first"), frozenset({1})),
    "rank-0-is-late": (EP2_BORROWED, 2, ("first", "both"), frozenset({1})),
    "rank-1-sees-nothing": (FSDP2, 2, ("both", "nothing"), frozenset()),
    "rank-0-sees-nothing": (FSDP2, 2, ("nothing", "both"), frozenset()),
    "each-has-its-own": (FSDP2, 2, ("both", "another-save"), frozenset()),
}


@contract("CKPT-02d", asks="train", cases=VIEWS, source=FAMILIES, tier="dist")
def ranks_load_one_checkpoint_or_none(
    stack: Training, execution: Execution, world: int, views: tuple[View, View], allowed: frozenset[int]
) -> None:
    """Ranks that see different checkpoints all load the same one, which every rank sees, or all refuse.

    A rank that looks for the latest checkpoint by itself finds its own latest. Shards of two steps have the same
    shapes, so the run continues with a mixture.
    """
    execution = in_a_layout_of(stack, execution)
    with shared_folder() as at:
        _prepared(stack, execution, at, *views)
        seen = views[here().rank]
        told = gathered(_resumed(stack, execution, at / seen))
    steps = [step for step, _ in told]
    assert len(set(steps)) == 1, f"ranks that see {list(views)} resumed after steps {steps} (None: refused)"
    expected = "a refusal" if not allowed else f"a refusal or {sorted(allowed)}"
    assert steps[0] is None or steps[0] in allowed, f"ranks that see {list(views)} loaded {steps[0]}, not {expected}"
    assert all(words for step, words in told if step is None), f"a rank refused without a reason: {told}"


@contract("CKPT-02e", asks="train", cases={"the-last-file": (FSDP2, 2)}, source=FAMILIES, tier="dist")
def what_one_rank_cannot_read_none_of_them_loads(stack: Training, execution: Execution, world: int) -> None:
    """Every rank refuses a checkpoint with a damaged shard, also a rank that needs no part of that shard. No rank waits
    for the rank that found the damage, and afterwards the ranks can load another checkpoint.

    When only the rank that reads the shard raises, the others stand in the next collective until the timeout.
    """
    with shared_folder() as at:
        _prepared(stack, execution, at)
        broken = at / "both"
        if here().rank == 0:
            _damage(_newest(at))
        gathered("damaged")
        told = gathered(_resumed(stack, execution, broken))
        again = gathered(_resumed(stack, execution, at / "first"))
    steps = [step for step, _ in told]
    assert steps == [None] * world, f"a file is damaged, and ranks resumed after steps {steps} (None: refused)"
    assert [step for step, _ in again] == [1] * world, f"after the refusal the ranks load {again}, expected step 1"


def _prepared(stack: Training, execution: Execution, at: Path, *others: View) -> None:
    """Write one folder for each view."""
    one = Session(recipe=SPREAD, steps=1, execution=execution, save=str(at / "both"), save_at=frozenset({1, 2}))
    for name in ("both", "another-save", "nothing"):
        (at / name).mkdir(exist_ok=True)
    stack.train(one)
    if gathered("saved") and here().rank == 0:
        shutil.copytree(at / "both", at / "first")
    gathered("copied")
    stack.train(replace(one, load=str(at / "both")))
    if "another-save" in others:
        stack.train(replace(one, steps=2, save=str(at / "another-save")))
    gathered("saved")


def _newest(at: Path) -> Path:
    """A file of the second save that holds numbers: the last one that is not text."""
    old = {path.relative_to(at / "first") for path in files(at / "first")}
    new = [path for path in files(at / "both") if path.relative_to(at / "both") not in old]
    return max(new, key=lambda path: (path.suffix != ".json", path))


def _resumed(stack: Training, execution: Execution, folder: Path) -> tuple[int | None, str]:
    """The step from which a run resumes, or None and the refusal."""
    try:
        return stack.train(Session(recipe=SPREAD, steps=0, execution=execution, load=str(folder))).start, ""
    except Refused as refused:
        return None, str(refused)


def _damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)

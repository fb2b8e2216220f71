"""Which checkpoints are left when the ranks of a running job remove old ones."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from contracts.contract import contract
from contracts.instruments.ranks import gathered, here
from contracts.law._support.folders import shared_folder
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_saves import EP2_BORROWED, FSDP2, PP2, SPREAD, TP2_EP2
from contracts.law._support.saved_states import FAMILIES, files
from contracts.spec import Execution, Session, Training

STATE = replace(SPREAD, name="short-state", pattern="AE", depth=2)
"""Other contracts check its content; here it only has to be in several files."""
Copied = Literal["in-place", "under-way", "arrived", "of-another-run"]
"""Where the durable copies are: where the ranks write, or in another folder. There the copy of step 2 lacks a file, is
whole, or is that of another run."""
LEFT: dict[str, tuple[Execution, int, Copied, tuple[int, ...]]] = {  # which of steps 1 to 4 are left with keep=1
    "fsdp2-in-place": (FSDP2, 2, "in-place", (4,)),
    "fsdp2-under-way": (FSDP2, 2, "under-way", (1, 2, 3, 4)),
    "borrowed-ep2-arrived": (EP2_BORROWED, 2, "arrived", (2, 3, 4)),
    "pp2-under-way": (PP2, 2, "under-way", (1, 2, 3, 4)),
    "pp2-of-another-run": (PP2, 2, "of-another-run", (1, 2, 3, 4)),
    "tp2-sp-ep2-arrived": (TP2_EP2, 4, "arrived", (2, 3, 4)),
}


@contract("CKPT-05e", asks="train", cases=LEFT, source=FAMILIES, tier="dist")
def ranks_keep_the_last_copy_that_arrived(
    stack: Training, execution: Execution, world: int, copied: Copied, left: tuple[int, ...]
) -> None:
    """If several ranks are to keep one checkpoint, they remove exactly those that have a newer durable copy, whole and
    of the same run. All ranks can load those that are left.

    A copy that is still being uploaded already has its name and most of its files. A stack that counts names removes
    the only copy that had arrived.
    """
    execution = in_a_layout_of(stack, execution)
    with shared_folder() as at:
        save, copy = at / "run", at / "copies"
        own = _first_two(stack, execution, save)
        _on_rank_0(lambda: shutil.copytree(save, copy))
        if copied == "of-another-run":
            _first_two(stack, execution, at / "another")
            _on_rank_0(lambda: _exchanged(copy, at / "another"))
        _on_rank_0(lambda: _take_from(copy, save, own[1 if copied != "arrived" else 2], copied))
        session = Session(
            recipe=STATE, steps=1, execution=execution, load=str(save), save=str(save), save_at=frozenset({3, 4}),
            keep=1, durable=None if copied == "in-place" else str(copy),
        )  # fmt: skip
        written = {1: own[1], 2: own[2]}
        for step in (3, 4):
            before = files(save)
            stack.train(session)
            gathered(step)
            written[step] = files(save) - before
        there = files(save)
        found = tuple(step for step, its in written.items() if its <= there)
        start = stack.train(Session(recipe=STATE, steps=0, execution=execution, load=str(save))).start
    assert found == left, f"with copies {copied} and one checkpoint to keep, steps {found} are left, expected {left}"
    assert start == 4, f"the ranks resumed after step {start}, expected 4"


def _first_two(stack: Training, execution: Execution, save: Path) -> dict[int, set[Path]]:
    """Train and save two steps; return which files belong to each."""
    found: dict[int, set[Path]] = {}
    for step in (1, 2):
        before = files(save)
        gathered(len(before))
        session = Session(
            recipe=STATE, steps=1, execution=execution, save=str(save), save_at=frozenset({1, 2}),
            load=str(save) if step == 2 else None,
        )  # fmt: skip
        stack.train(session)
        gathered(step)
        found[step] = files(save) - before
    return found


def _on_rank_0(change: Callable[[], object]) -> None:
    if here().rank == 0:
        change()
    gathered("changed")


def _exchanged(copy: Path, other: Path) -> None:
    shutil.rmtree(copy)
    shutil.copytree(other, copy)


def _take_from(copy: Path, save: Path, its: set[Path], copied: Copied) -> None:
    """Remove the largest file of the copy of step 2 where that copy is under way."""
    if copied == "under-way":
        newest = [path for path in files(copy) if save / path.relative_to(copy) not in its]
        max(newest, key=lambda path: path.stat().st_size).unlink()

"""Ranks of a running job write all of their files below the named folder, and keep the right old checkpoints."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from contracts.contract import contract
from contracts.instruments.ranks import gathered, here
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_saves import (
    EP2,
    EP2_BORROWED,
    FSDP2,
    PP2,
    SPREAD,
    STATE,
    TP2_EP2,
    first_finding,
    state_difference,
)
from contracts.law._support.saved_states import FAMILIES, files, shared_folder
from contracts.spec import Execution, Session, Training

SHORT = replace(SPREAD, name="short-state", pattern="AE", depth=2)
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
            recipe=SHORT, steps=1, execution=execution, load=str(save), save=str(save), save_at=frozenset({3, 4}),
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
        start = stack.train(Session(recipe=SHORT, steps=0, execution=execution, load=str(save))).start
    assert found == left, f"with copies {copied} and one checkpoint to keep, steps {found} are left, expected {left}"
    assert start == 4, f"the ranks resumed after step {start}, expected 4"


def _first_two(stack: Training, execution: Execution, save: Path) -> dict[int, set[Path]]:
    """Train and save two steps; return which files belong to each."""
    found: dict[int, set[Path]] = {}
    for step in (1, 2):
        before = files(save)
        gathered(len(before))
        session = Session(
            recipe=SHORT, steps=1, execution=execution, save=str(save), save_at=frozenset({1, 2}),
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


@contract("CKPT-07c", asks="train", cases={"fsdp2": (FSDP2, 2), "ep2": (EP2, 2)}, source="playbook: storage contract",
          tier="dist")  # fmt: skip
def every_shard_lies_on_the_durable_volume(stack: Training, execution: Execution, world: int) -> None:
    """The ranks of a running job write their checkpoints below the named folder on the durable volume, and write no
    file to a node's own disk. The folder holds the whole checkpoint, wherever the volume is mounted next.

    A shard on a node's own disk is found only as long as the job gets the same nodes.
    """
    with shared_folder() as at:
        durable, local = at / "durable", at / f"node-{here().rank}"
        durable.mkdir(exist_ok=True)
        local.mkdir()
        with _on_a_node(local):
            session = Session(recipe=SPREAD, steps=1, execution=execution, observe=STATE, save=str(durable),
                              save_at=frozenset({1}))  # fmt: skip
            saved = stack.train(session).steps[-1]
        left = sorted(str(path.relative_to(local)) for path in files(local))
        words = first_finding(f"{len(left)} files are on its own disk, such as {left[0]}" if left else "")
        assert not words, f"the run saves to the durable volume, but {words}"
        if gathered("saved") and here().rank == 0:
            durable.rename(at / "mounted-elsewhere")
        gathered("moved")
        again = Session(recipe=SPREAD, steps=0, execution=execution, observe=STATE, at=frozenset({0}),
                        load=str(at / "mounted-elsewhere"))  # fmt: skip
        loaded = stack.train(again).loaded
        assert loaded is not None, "no loaded state is reported"
        words = first_finding(state_difference(loaded, saved))
        assert not words, f"mounted elsewhere, the checkpoint gives another state: {words}"


@contextmanager
def _on_a_node(local: Path) -> Iterator[None]:
    """Put this rank's working directory and temporary files on a disk of its own."""
    before, temporary = Path.cwd(), tempfile.tempdir
    os.chdir(local)
    tempfile.tempdir = str(local)
    try:
        yield
    finally:
        os.chdir(before)
        tempfile.tempdir = temporary

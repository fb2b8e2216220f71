"""Which checkpoints may be removed, and what is left when a removal is cut short."""

import os
from pathlib import Path

from contracts.contract import contract
from contracts.law._support import saved_states
from contracts.law._support.saved_states import (
    FAMILIES,
    LITTLE,
    ONE_FILE,
    folder,
    load_failure,
    snapshot_difference,
    state,
    target,
)
from contracts.spec import Checkpointing, WriteFault

KEPT: dict[str, tuple[tuple[int, ...], int, frozenset[int], tuple[int, ...]]] = {  # saved, keep, durable → left
    "the-newest-two": ((2, 4, 6, 8), 2, frozenset({2, 4, 6, 8}), (6, 8)),
    "by-number-not-as-text": ((8, 9, 10, 11, 100), 2, frozenset({8, 9, 10, 11, 100}), (11, 100)),
    "more-than-there-are": ((2, 4), 5, frozenset({2, 4}), (2, 4)),
    "the-only-one": ((4,), 1, frozenset({4}), (4,)),
    "none-is-durable": ((2, 4, 6), 1, frozenset(), (2, 4, 6)),
    "only-the-oldest-is-durable": ((2, 4, 6), 1, frozenset({2}), (2, 4, 6)),
    "the-newest-is-under-way": ((2, 4, 6), 1, frozenset({2, 4}), (4, 6)),
    "what-is-durable-is-gone-here": ((4, 6), 1, frozenset({2, 8}), (4, 6)),
}


@contract("CKPT-05a", asks=("write_checkpoint", "retire_checkpoints", "latest_checkpoint", "load_checkpoint"),
          cases=KEPT, source=FAMILIES)  # fmt: skip
def the_last_durable_copy_stays(
    stack: Checkpointing, there: tuple[int, ...], keep: int, durable: frozenset[int], left: tuple[int, ...]
) -> None:
    """Retention removes exactly the checkpoints that are older than the `keep` newest and have a newer checkpoint with
    a durable copy. All others stay whole.

    The newest checkpoint may still be uploading. If the host is lost then, a stack that removed the older ones when the
    save began removed the last copy there was.
    """
    with folder() as at:
        for step in there:
            saved_states.write(stack, at, state(step, LITTLE), ONE_FILE)
        retired = stack.retire_checkpoints(str(at), keep, durable, None)
        assert retired.ending == "done", f"retention was {retired.ending}: {retired.words}"
        held = tuple(step for step in there if not load_failure(stack, at, state(step, LITTLE), step))
    said = f"of {there}, {sorted(durable)} durable, keep {keep}:"
    assert held == left, f"{said} {held} can still be loaded, expected {left}"


@contract("CKPT-05b", asks=("write_checkpoint", "retire_checkpoints", "load_checkpoint"),
          cases={"zero": (0,), "negative": (-1,)}, source=FAMILIES)  # fmt: skip
def to_keep_nothing_is_refused(stack: Checkpointing, keep: int) -> None:
    """A retention that would keep no checkpoint is refused, and removes nothing.

    `steps[:-keep]` is empty at 0, and so harmless. `steps[:len(steps) - keep]` is everything.
    """
    with folder() as at:
        for step in (2, 4):
            saved_states.write(stack, at, state(step, LITTLE), ONE_FILE)
        retired = stack.retire_checkpoints(str(at), keep, frozenset({2, 4}), None)
        words = [load_failure(stack, at, state(step, LITTLE), step) for step in (2, 4)]
    assert not any(words), f"keep {keep}: steps 2 and 4 are not both whole: {'; '.join(filter(None, words))}"
    assert retired.ending == "refused", f"keep {keep} was {retired.ending}, expected a refusal"


HUSKS = {  # where the writers died, the step that is saved behind them, and how many are kept
    "first-boundary": (1, 12, 2), "in-the-middle": (3, 12, 2), "late": (5, 12, 2), "saved-again": (3, 10, 2),
    "nothing-else-to-remove": (3, 12, 3),
}  # fmt: skip


@contract("CKPT-05c", asks=("write_checkpoint", "retire_checkpoints", "latest_checkpoint", "load_checkpoint"),
          cases=HUSKS, source=FAMILIES)  # fmt: skip
def what_is_incomplete_counts_for_nothing(stack: Checkpointing, dies_after: int, behind: int, keep: int) -> None:
    """An incomplete checkpoint, whose writer died, is not counted among those to keep and is never the latest, and
    retention removes its files, whether or not a checkpoint is to go.

    A stack that counts folders keeps three incomplete ones and removes the one that works. Incomplete folders that
    nobody removes fill the volume.
    """
    with folder() as at:
        for step in (2, 4):
            saved_states.write(stack, at, state(step, LITTLE), ONE_FILE)
        for step in (6, 8, 10):
            stack.write_checkpoint(str(at), state(step, LITTLE), ONE_FILE, WriteFault(dies_after=dies_after))
        stack.retire_checkpoints(str(at), 2, frozenset({2, 4, 6, 8, 10}), None)
        latest = stack.latest_checkpoint(str(at))
        assert latest == 4, f"the writers of 6, 8 and 10 died, and the latest is {latest}, expected 4"
        words = load_failure(stack, at, state(4, LITTLE), None)
        assert not words, f"the writers of 6, 8 and 10 died, and step 4 is not whole: {words}"
        whole = len(saved_states.write(stack, at, state(behind, LITTLE), ONE_FILE))
        stack.retire_checkpoints(str(at), keep, frozenset({2, 4, behind}), None)
        left = sorted(str(path.relative_to(at)) for path in saved_states.files(at))
    said = f"{keep} checkpoints of {whole} files are kept, and these files are left: {', '.join(left)}"
    assert len(left) == keep * whole, said


@contract("CKPT-05d", asks=("write_checkpoint", "retire_checkpoints", "latest_checkpoint", "load_checkpoint"),
          cases={"one-goes": (2, 4, 6), "two-go": (2, 4, 6, 8)}, source=FAMILIES)  # fmt: skip
def a_remover_may_die_at_any_boundary(stack: Checkpointing, *there: int) -> None:
    """If the process that removes checkpoints dies at any point, the newest checkpoint is whole and still the latest,
    every other checkpoint that still loads is whole, and the next removal finishes the work.

    `rmtree` of a folder that still has its name leaves remains that no later removal finds. A stack that moves aside
    the checkpoints that it keeps has none for a moment.
    """
    whole = 0
    for boundary in range(1, 40):
        with folder() as at:
            for step in there:
                whole = len(saved_states.write(stack, at, state(step, LITTLE), ONE_FILE))
                _an_hour_passes(at)
            retired = stack.retire_checkpoints(str(at), 2, frozenset(there), WriteFault(dies_after=boundary))
            said = f"the remover {retired.ending} at boundary {boundary}, and"
            latest = stack.latest_checkpoint(str(at))
            assert latest == there[-1], f"{said} the latest is {latest}, expected {there[-1]}"
            for step in there:
                loaded = stack.load_checkpoint(str(at), step, target(state(step, LITTLE)))
                words = loaded.refused if step in there[-2:] else ""
                words = words or ("" if loaded.refused else snapshot_difference(loaded.state, state(step, LITTLE)))
                assert not words, f"{said} step {step} is not whole: {words}"
            again = stack.retire_checkpoints(str(at), 2, frozenset(there), None)
            assert again.ending == "done", f"{said} retention cannot be done again: {again.words}"
            left = sorted(str(path.relative_to(at)) for path in saved_states.files(at))
            assert len(left) == 2 * whole, f"{said} done again it left {', '.join(left)}, expected {2 * whole} files"
        if retired.ending == "done":
            return
    raise AssertionError(f"the remover still {retired.ending} at boundary {boundary}: {retired.words}")


def _an_hour_passes(at: Path) -> None:
    """Make all that is there an hour older: saves of a real run are far apart, and some stacks sort them by time."""
    for path in at.rglob("*"):
        found = path.lstat()
        times = found.st_atime_ns - 3600 * 10**9, found.st_mtime_ns - 3600 * 10**9
        os.utime(path, ns=times, follow_symlinks=False)


FOREIGN = (
    "notes.txt",
    "best/weights.bin",
    "step-final/model.bin",
    "events.out.tfevents.17",
    ".cache/index",
    "12/README",
)


@contract("CKPT-05f", asks=("write_checkpoint", "retire_checkpoints", "latest_checkpoint", "load_checkpoint"),
          cases={"beside-two": (2, 4, 6), "beside-one": (4, 6)}, source="torchtitan #1465")  # fmt: skip
def what_is_no_checkpoint_is_left_alone(stack: Checkpointing, *there: int) -> None:
    """In a folder that also holds files and folders of other names, retention finishes, removes none of these, and
    keeps the checkpoints that it must keep.

    A name that the pattern does not match gives no match object: the purge crashes hours into a run. A purge that
    removes whatever it cannot read takes a user's notes and his best model.
    """
    with folder() as at:
        for step in there:
            saved_states.write(stack, at, state(step, LITTLE), ONE_FILE)
        for name in FOREIGN:
            path = at / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(name)
        retired = stack.retire_checkpoints(str(at), 2, frozenset(there), None)
        assert retired.ending == "done", f"among foreign names retention was {retired.ending}: {retired.words}"
        gone = [name for name in FOREIGN if not (at / name).is_file() or (at / name).read_text() != name]
        assert not gone, f"retention took {', '.join(gone)}, which no checkpoint wrote"
        held = tuple(step for step in there if not load_failure(stack, at, state(step, LITTLE), step))
        assert held == there[-2:], f"of {there}, keep 2, among foreign names: {held} can still be loaded"
        latest = stack.latest_checkpoint(str(at))
    assert latest == there[-1], f"among foreign names the latest is {latest}, expected {there[-1]}"


LINKED = {"to-a-folder": ("shared",), "to-a-file": ("shared/model.bin",)}


@contract("CKPT-05g", asks=("write_checkpoint", "retire_checkpoints", "load_checkpoint"), cases=LINKED, source=FAMILIES)
def a_link_in_a_checkpoint_is_removed_and_not_what_it_leads_to(stack: Checkpointing, leads_to: str) -> None:
    """If retention removes a checkpoint with a symbolic link in it, it removes the link and leaves the file or folder
    that the link points to.

    A tokenizer or a base model lies beside the runs, and each checkpoint has a link to it. A removal that walks into
    every folder takes it from all of them.
    """
    with folder() as at, folder() as outside:
        kept = outside / "shared" / "model.bin"
        kept.parent.mkdir()
        kept.write_text("shared")
        written = saved_states.write(stack, at, state(2, LITTLE), ONE_FILE)
        (written[0].parent / "base").symlink_to(outside / leads_to)
        for step in (4, 6):
            saved_states.write(stack, at, state(step, LITTLE), ONE_FILE)
        try:
            stack.retire_checkpoints(str(at), 2, frozenset({2, 4, 6}), None)
        finally:  # it may have failed behind that
            assert kept.is_file(), f"the checkpoint of step 2 has a link to {leads_to}, and retention took {kept.name}"
        assert not written[0].exists(), "the checkpoint of step 2 has a link in it, and retention left it"
        words = load_failure(stack, at, state(4, LITTLE), 4)
        assert not words, f"beside a checkpoint with a link in it, {words}"

"""Which checkpoint is the newest, and on which volume checkpoints lie."""

import os
import shutil
from pathlib import Path

from contracts.contract import contract
from contracts.law._support import saved_states
from contracts.law._support.answers import refusal_of
from contracts.law._support.disks import HOST, UNMOUNTED, WELL
from contracts.law._support.saved_states import FAMILIES, LITTLE, ONE_FILE, folder, load_failure, state, target
from contracts.spec import Checkpointing
from contracts.spec.installation import Disks

ORDERS: dict[str, tuple[tuple[int, ...], int]] = {  # in the order in which their files were last touched
    "nine-and-ten": ((10, 9), 10),
    "nine-ten-and-a-hundred": ((100, 9, 10), 100),
    "as-written": ((2, 4, 6), 6),
    "wider-than-the-names": ((99_999_999, 100_000_000, 99_999_998), 100_000_000),
}


@contract("CKPT-06a", asks=("write_checkpoint", "latest_checkpoint", "load_checkpoint"), cases=ORDERS, source=FAMILIES)
def the_latest_is_the_highest_number(stack: Checkpointing, touched: tuple[int, ...], latest: int) -> None:
    """The latest checkpoint is the one with the highest step number, not the last in text order and not the last
    modified.

    As text, 9 comes after 10. A copy back from the archive gives an old checkpoint the newest modification time.
    """
    with folder() as at:
        for step in sorted(touched):
            before = set(at.rglob("*"))
            saved_states.write(stack, at, state(step, LITTLE), ONE_FILE)
            for path in set(at.rglob("*")) - before:
                time = 1_700_000_000 + 1000 * touched.index(step)
                os.utime(path, (time, time))
        found = stack.latest_checkpoint(str(at))
        assert found == latest, f"of {sorted(touched)} the latest is {found}, expected {latest}"
        words = load_failure(stack, at, state(latest, LITTLE), None)
        assert not words, f"step {latest} is the latest, and {words}"


JUNK = {
    "copies-and-backups": ("copies",),
    "husks-of-later-steps": ("husks",),
    "whole-copies-of-another-name": ("renamed",),
    "later-steps-that-were-cut-off": ("cut",),
    "later-steps-that-grew": ("grown",),
}


@contract("CKPT-06b", asks=("write_checkpoint", "latest_checkpoint", "load_checkpoint"), cases=JUNK, source=FAMILIES)
def what_only_looks_like_a_checkpoint_is_none(stack: Checkpointing, junk: str) -> None:
    """Beside copies, backups, empty folders and folders with later names, the latest checkpoint is the newest complete
    one, and it loads.

    A file that was cut off makes a checkpoint incomplete. One that grew need not, but the latest checkpoint can be
    loaded. Calling `int()` on whatever digits a name holds crashes on one folder, and takes a copy of step 4 that is
    named 7 for the newest.
    """
    with folder() as at:
        later = junk in ("cut", "grown")
        for step in (2, 4, 7) if later else (2, 4):
            saved_states.write(stack, at, state(step, LITTLE), ONE_FILE)
        for path in list(at.iterdir()):
            if ("7" if later else "4") in path.name:
                _clutter(path, junk)
        made = ", ".join(sorted(path.name for path in at.iterdir()))
        found = stack.latest_checkpoint(str(at))
        want = 7 if junk == "grown" and found == 7 else 4
        assert found == want, f"the latest is {found}, expected {want}, among {made}"
        words = load_failure(stack, at, state(want, LITTLE), None)
        assert not words, f"step {want} is the latest among {made}, and {words}"


def _clutter(path: Path, junk: str) -> None:
    """Put beside one entry of the folder what people and broken programs leave there."""
    if junk == "copies":
        name = path.name.replace("4", "8")
        for other in (f"{name} (copy)", f"{name}.bak", f"old-{name}", f"{name}~", f"{name}.tmp"):
            _copied(path, path.with_name(other))
        path.with_name("notes 99.txt").write_text("best so far: 99\n")
        path.with_name(path.name.replace("4", "\N{ARABIC-INDIC DIGIT SEVEN}")).mkdir()
    elif junk == "renamed":
        _copied(path, path.with_name(path.name.replace("4", "7")))
    elif junk in ("cut", "grown"):
        files = [each for each in (path.rglob("*") if path.is_dir() else (path,)) if each.is_file()]
        largest = max(files, key=lambda each: (each.suffix != ".json", each.stat().st_size))  # numbers, not names
        os.truncate(largest, largest.stat().st_size * (1 if junk == "cut" else 4) // 2)
    else:
        path.with_name(path.name.replace("4", "9")).mkdir()
        half = path.with_name(path.name.replace("4", "8"))
        _copied(path, half)
        if half.is_dir():
            min(half.iterdir()).unlink()


def _copied(old: Path, new: Path) -> None:
    if old.is_dir():
        shutil.copytree(old, new)
    else:
        shutil.copy(old, new)


ASKED: dict[str, tuple[tuple[int, ...], int]] = {  # saved in this order, the step asked for
    "older-than-the-latest": ((2, 4, 6), 2),
    "in-the-middle": ((2, 4, 6), 4),
    "written-last-and-older": ((6, 4), 4),
    "latest": ((2, 4), 4),
}


@contract("CKPT-06e", asks=("write_checkpoint", "latest_checkpoint", "load_checkpoint"), cases=ASKED,
          source="Megatron-Bridge #5260, #5090")  # fmt: skip
def the_step_asked_for_is_the_step_loaded(stack: Checkpointing, saved: tuple[int, ...], step: int) -> None:
    """A load of a named step gives that step, even if newer ones exist. If the step does not exist, the load is refused
    by its number, and no other step is loaded in its place.

    A newer checkpoint for recovery wins over the step that the user gave, and an experiment resumes from elsewhere.
    """
    with folder() as at:
        for each in saved:
            saved_states.write(stack, at, state(each, LITTLE), ONE_FILE)
        words = load_failure(stack, at, state(step, LITTLE), step)
        assert not words, f"of {saved}, step {step} was asked for, and {words}"
        loaded = stack.load_checkpoint(str(at), 3, target(state(3, LITTLE)))
        assert loaded.refused, f"step 3 is not among {saved}, and step {loaded.state.step} was loaded"
        assert "3" in str(loaded.refused), f"the refusal of step 3 does not name it: {loaded.refused}"


PLACES: dict[str, tuple[str, Disks]] = {
    "below-the-durable-directory": ("/mnt/data/checkpoints/run-1", HOST),
    "through-a-link-that-stays": ("/mnt/data/caches/run-1", HOST),
}


@contract("CKPT-07a", asks="checkpoint_folder", cases=PLACES, source="playbook: storage contract")
def a_place_on_the_durable_volume_is_taken(stack: Checkpointing, save: str, disks: Disks) -> None:
    """A recipe's checkpoint folder below the durable directory is used as it is. If the recipe names none, the stack
    chooses one below the durable directory, a different one for each run.

    A check that compares paths as text refuses a link that leads back into the directory.
    """
    taken = stack.checkpoint_folder(save, "run-1", WELL, disks)
    assert taken == save, f"{save} became {taken}"
    own = [stack.checkpoint_folder(None, run, WELL, disks) for run in ("run-1", "run-2")]
    for each in own:
        assert each.startswith(f"{WELL.durable}/"), f"the stack's own choice is {each}, not below {WELL.durable}"
    assert own[0] != own[1], f"runs 1 and 2 share {own[0]}"


ASTRAY: dict[str, tuple[str | None, Disks, str]] = {
    "scratch": ("/mnt/scratch/run-1", HOST, "/mnt/scratch/run-1"),
    "the-home": ("/root/checkpoints", HOST, "/root/checkpoints"),
    "a-name-that-begins-alike": ("/mnt/data/checkpoints-old/run-1", HOST, "/mnt/data/checkpoints-old/run-1"),
    "up-and-out": ("/mnt/data/checkpoints/../receipts", HOST, "/mnt/data/receipts"),
    "a-link-that-leads-away": ("/mnt/data/home/run-1", HOST, "/var/data"),
    "the-whole-directory": ("/mnt/data/checkpoints", HOST, "/mnt/data/checkpoints"),
    "relative": ("checkpoints/run-1", HOST, "checkpoints/run-1"),
    "volume-not-mounted": ("/mnt/data/checkpoints/run-1", UNMOUNTED, "/mnt/data/checkpoints"),
    "own-choice-on-no-volume": (None, UNMOUNTED, "/mnt/data/checkpoints"),
}


@contract("CKPT-07b", asks="checkpoint_folder", cases=ASTRAY, source="playbook: storage contract")
def a_place_elsewhere_is_refused(stack: Checkpointing, save: str | None, disks: Disks, named: str) -> None:
    """A checkpoint folder is refused when its path, with links followed, is not below the durable directory or its
    volume is not mounted. The refusal names the path that it leads to.

    When the volume is gone, its mount point is a directory of the root volume: the run writes there until that is full.
    """
    refused = refusal_of(stack.checkpoint_folder, save, "run-1", WELL, disks)
    assert named in str(refused), f"the refusal does not name {named}: {refused}"

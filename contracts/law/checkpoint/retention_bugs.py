"""Retention that removes the copy that was needed, or removes nothing."""

from pathlib import Path

from contracts.law._bugs.broken import broken, derived
from contracts.spec import refuse
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints


@broken(
    Checkpoints,
    "removable",
    "CKPT-05a[only-the-oldest-is-durable]: (6,) can still be loaded, expected (2, 4, 6)",
    bugs=("RSM-30",),
)
def asks_nobody(removable, self, keep, durable):
    """Keeps the newest, whose upload has not ended, and removes the last copy that was durable."""
    return removable(self, keep, None)


@broken(
    Checkpoints, "removable", "CKPT-05a[only-the-oldest-is-durable]: (4, 6) can still be loaded, expected (2, 4, 6)"
)
def asks_the_wrong_one(removable, self, keep, durable):
    """Asks whether the checkpoint to remove is durable, not whether a newer one is."""
    return tuple(step for step in self.steps()[:-keep] if durable is None or step in durable)


@broken(Checkpoints, "removable", "CKPT-05a[what-is-durable-is-gone-here]: (6,) can still be loaded, expected (4, 6)")
def counts_what_is_elsewhere(removable, self, keep, durable):
    """Trusts a list of uploads that names a step of another run."""
    newest = max(durable or (), default=0)
    return tuple(step for step in self.steps()[:-keep] if step < newest)


@broken(Checkpoints, "steps", "CKPT-05a[by-number-not-as-text]: (8, 9, 100) can still be loaded, expected (11, 100)")
def sorts_as_text(steps, self):
    """Keeps the last names in text order."""
    return tuple(sorted(steps(self), key=str))


@broken(Checkpoints, "removable", "CKPT-05a[the-newest-two]: (2, 4, 6, 8) can still be loaded, expected (6, 8)")
def keeps_everything(removable, self, keep, durable):
    """Over-correction: removes nothing, until the volume is full."""
    found, steps = removable(self, keep, durable), self.steps()
    return found if durable is None or len(durable) > len(steps) else ()


@broken(Checkpoints, "removable", "CKPT-05b[zero]: keep 0: steps 2 and 4 are not both whole: it was refused")
def slices_from_the_front(removable, self, keep, durable):
    """Accepts a keep of 0 and removes every checkpoint."""
    steps = self.steps()
    return steps[: max(0, len(steps) - keep)]


@broken(
    Checkpoints,
    "removable",
    "CKPT-05b[negative]: keep -1: steps 2 and 4 are not both whole: it was refused",
    "CKPT-05b[zero]: keep 0 was done, expected a refusal",
)
def slices_from_the_end(removable, self, keep, durable):
    """Accepts -1, which means "keep all" in one tool and `steps[:1]` in another."""
    return self.steps()[:-keep]


@derived("CKPT-05c[first-boundary]: the latest is None, expected 4")
class CountsHusks(Checkpoints):
    """Writes in place and counts folders: three incomplete ones are the newest three."""

    def unfinished(self, final: Path) -> Path:
        return final

    def removable(self, keep: int, durable: frozenset[int] | None) -> tuple[int, ...]:
        return tuple(sorted(step for step, _ in self.named()))[:-keep]


@broken(Checkpoints, "clear", "CKPT-05c[late]: files are kept, and these files are left")
def leaves_husks(clear, self):
    """Removes old checkpoints but never incomplete ones."""


@broken(Checkpoints, "retire", "CKPT-05c[nothing-else-to-remove]: files are kept, and these files are left")
def ends_where_nothing_is_old(retire, self, keep, durable=None):
    """Returns early if no checkpoint is to go, and never comes to what dead writers left."""
    return retire(self, keep, durable) if self.removable(keep, durable) else ()


@derived("CKPT-05c[saved-again]: files are kept, and these files are left")
class LeavesTheNewestHusks(Checkpoints):
    """The remains of the newest step are taken for one that is being written, though it has been saved again."""

    def latest(self) -> int | None:
        newest = super().latest()
        return None if newest is None else newest - self.clearing

    def clear(self) -> None:
        self.clearing = 1
        super().clear()
        self.clearing = 0

    clearing = 0


@broken(Checkpoints, "remove", "CKPT-05d[one-goes]: done again it left")
def removes_in_place(remove, self, path):
    """Calls rmtree under the checkpoint's own name: the remains have no manifest, count as no checkpoint and stay
    forever.
    """
    self.disk.remove(path)


@broken(Checkpoints, "retire", "CKPT-05d[two-go]: and step 6 is not whole")
def puts_aside_what_it_keeps(retire, self, keep, durable=None):
    """Moves the checkpoints that it keeps aside, removes everything, and moves them back."""
    removed = self.removable(keep, durable)
    kept = [self.folder / self.name_of(step) for step in self.steps() if step not in removed]
    for path in kept:
        self.disk.rename(path, path.with_name(f".{path.name}"))
    for step in removed:
        self.remove(self.folder / self.name_of(step))
    for path in kept:
        self.disk.rename(path.with_name(f".{path.name}"), path)
    self.clear()
    return removed


@broken(Checkpoints, "removable", "CKPT-05f[beside-two]: among foreign names retention was refused", bugs=("RSM-12",))
def stops_at_a_foreign_name(removable, self, keep, durable):
    """Reads a step number out of every name in the folder, and stops at the first name without one."""
    for path in self.folder.iterdir():
        if not path.name.startswith("step-"):
            raise refuse("folder", path.name, "has no step number", "move it away")
    return removable(self, keep, durable)


@broken(Checkpoints, "clear", "CKPT-05f[beside-one]: retention took notes.txt")
def tidies_the_folder(clear, self):
    """Over-correction: what is not a complete checkpoint is taken for a leftover and removed."""
    clear(self)
    known = {self.name_of(step) for step in self.steps()}
    for path in list(self.folder.iterdir()):
        if path.is_file() and path.name not in known:
            path.unlink()


@broken(Checkpoints, "remove", "CKPT-05g[to-a-folder]: retention took model.bin")
def walks_into_what_is_linked(remove, self, path):
    """Takes a link to a folder for a folder, and empties it before it removes it."""
    for each in path.iterdir():
        for below in [each, *each.iterdir()] if each.is_symlink() and each.is_dir() else ():
            if below.is_file():
                below.unlink()
    remove(self, path)


@broken(Checkpoints, "remove", "CKPT-05g[to-a-file]: has a link in it, and retention left it")
def leaves_what_has_a_link(remove, self, path):
    """Over-correction: a checkpoint with a link in it is never removed, and the volume fills."""
    if not any(each.is_symlink() for each in path.iterdir()):
        remove(self, path)

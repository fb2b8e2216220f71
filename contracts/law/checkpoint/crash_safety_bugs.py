"""Writers that leave nothing loadable for a moment, and asynchronous saves that training overtakes."""

from dataclasses import replace
from pathlib import Path

from contracts.law._bugs.broken import broken, derived
from contracts.spec import Refused
from contracts.stacks.reference.checkpoint import manifest as manifests
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints, State
from contracts.stacks.reference.checkpoint.manifest import Manifest


@derived("CKPT-03a[over-another]: step 4 is the latest, but it was refused", bugs=("RSM-31",))
class NamesItFirst(Checkpoints):
    """Gives the folder its final name and only then writes the manifest that makes it complete."""

    def publish(self, unfinished: Path, final: Path, manifest: Manifest) -> None:
        self.disk.rename(unfinished, final)
        self.disk.write(final / manifests.NAME, [manifests.to_text(manifest)])

    def is_complete(self, step: int, path: Path) -> bool:
        return path.is_dir()


class _Pointed(Checkpoints):
    """Finds the latest checkpoint through a pointer file."""

    @property
    def pointer(self) -> Path:
        return self.folder / "latest.txt"

    def latest(self) -> int | None:
        text = self.pointer.read_text() if self.pointer.exists() else ""
        return int(text) if text else None


@broken(_Pointed, "save", "CKPT-03a[first]: step 4 is the latest, but it was refused", bugs=("RSM-31",))
def points_first(save, self, state):
    """Writes the pointer when the save begins, atomically by rename, and the data after it."""
    beside = self.pointer.with_name("latest.new")
    beside.unlink(missing_ok=True)
    self.disk.write(beside, [str(state.step).encode()])
    self.disk.rename(beside, self.pointer)
    save(self, state)


@derived("CKPT-03a[over-another]: and the latest is None, expected one of", bugs=("RSM-65",))
class PointsAnew(_Pointed):
    """Removes the pointer and writes it again: a resume between the two begins at step 0."""

    def save(self, state: State) -> None:
        final = self.folder / self.name_of(state.step)
        if final.exists():
            self.remove(final)  # the pointer leads to another one
        super().save(state)

    def publish(self, unfinished: Path, final: Path, manifest: Manifest) -> None:
        super().publish(unfinished, final, manifest)
        self.pointer.unlink(missing_ok=True)
        self.disk.passed()
        self.disk.write(self.pointer, [str(manifest.step).encode()])


@broken(Checkpoints, "unfinished", "CKPT-03a[first]: step 4 cannot be written again", bugs=("RSM-33",))
def writes_under_one_name(unfinished, self, final):
    """The folder of a save that died blocks the next save of that step."""
    return final.with_name(f"{final.name}.tmp")


@broken(Checkpoints, "save", "CKPT-03b[nothing-fits]: step 4 found no room, and the latest is None", bugs=("RSM-30",))
def makes_room_first(save, self, state):
    """Keeps one checkpoint, and removes it when the next save begins."""
    for step in self.steps():
        self.remove(self.folder / self.name_of(step))
    save(self, state)


@broken(Checkpoints, "save", "CKPT-03b[cut-in-a-file]: the save was done")
def swallows_the_error(save, self, state):
    """A failed save is only a warning in rank 0's log."""
    try:
        save(self, state)
    except Refused:
        return  # so that a failed checkpoint does not stop training


@broken(Checkpoints, "abandon", "CKPT-03b[cut-in-a-file]: step 4 found no room, and left")
def leaves_its_half(abandon, self, unfinished):
    """The files of a failed save stay, and so the disk stays full."""


@broken(
    Checkpoints,
    "snapshot",
    "CKPT-03c[the-next-save]: step 9 was saved in the background, and the state",
    bugs=("RSM-08",),
)
def keeps_references(snapshot, self, state):
    """Copies the dictionary but not its tensors."""
    return replace(state, tensors=dict(state.tensors), position=dict(state.position))


@derived("CKPT-03c[the-next-save]: step 9 was saved in the background, and the state", bugs=("RSM-06",))
class CopiesInTheBackground(Checkpoints):
    """The background writer makes the copy itself, when its turn comes."""

    def save_later(self, state: State) -> None:
        self.pending.append(self.writer.submit(self._copy_and_save, state, dict(state.position)))

    def _copy_and_save(self, state: State, position: dict[str, int]) -> None:
        self.disk.sync(self.folder)
        self.save(replace(self.snapshot(state), position=position))


@broken(Checkpoints, "snapshot", "CKPT-03c[several-saves]: step 98 was saved in the background, and its position")
def counts_on(snapshot, self, state):
    """Copies the tensors but not the counters: weights of one step, data position of a later one."""
    return replace(snapshot(self, state), position=state.position)


@derived("CKPT-03c[the-next-save]: complete in the order (10,), called as (9, 10)", bugs=("RSM-36",))
class ReadsTheStepLate(Checkpoints):
    """A callback reads the step number when the write has ended, and by then the trainer is one step further."""

    newest = 0

    def save_later(self, state: State) -> None:
        self.newest = state.step
        super().save_later(state)

    def publish(self, unfinished: Path, final: Path, manifest: Manifest) -> None:
        final = self.folder / self.name_of(self.newest)
        super().publish(unfinished, final, replace(manifest, step=self.newest))


@derived("CKPT-03c[several-saves]: complete in the order")
class WritesTheLastFirst(Checkpoints):
    """Takes waiting saves last in, first out: an older step is published after a newer one."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]  # what it is given, handed on
        self.waiting: list[State] = []

    def save_later(self, state: State) -> None:
        self.waiting.append(self.snapshot(state))
        self.pending.append(self.writer.submit(self._next))

    def _next(self) -> None:
        self.save(self.waiting.pop())


@broken(
    Checkpoints,
    "wait",
    "CKPT-03h[behind-another]: the second save of step 2 failed without a word",
    "CKPT-03h[the-next-save]: the second save of step 2 failed without a word",
)
def loses_what_failed(wait, self):
    """Waits for the thread, and does not ask how it ended."""
    pending, self.pending = self.pending, []
    for each in pending:
        each.exception()


@broken(Checkpoints, "wait", "CKPT-03h[before-another]: the second save of step 2 failed without a word")
def hears_of_the_last_alone(wait, self):
    """Waits for all saves, and asks only the last how it ended."""
    for each in self.pending[:-1]:
        each.exception()
    self.pending = self.pending[-1:]
    wait(self)


@broken(Checkpoints, "load", "CKPT-03c[several-saves]: a load right after the", bugs=("RSM-07",))
def does_not_wait(load, self, target, *, recipe="", step=None):
    """Loads what is on disk while the save that it should load is still being written."""
    under_way = self.pending
    self.pending = []
    try:
        return load(self, target, recipe=recipe, step=step)
    finally:
        self.pending = under_way

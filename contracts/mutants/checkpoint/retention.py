"""Retention that removes the copy that was needed, or removes nothing."""

from __future__ import annotations

from pathlib import Path

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.spec.errors import refuse
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints


class _AsksNobody(Checkpoints):
    def removable(self, keep: int, durable: frozenset[int] | None) -> tuple[int, ...]:
        return super().removable(keep, None)


@mutant(of="CKPT-05a", case="only-the-oldest-is-durable", says="(6,) can still be loaded, expected (2, 4, 6)",
        bugs=("RSM-30",))  # fmt: skip
class AsksNobody(Exchanged):
    """Keeps the newest, whose upload has not ended, and removes the last copy that was durable."""

    exchange = {"checkpoints": _AsksNobody}


class _AsksTheWrongOne(Checkpoints):
    def removable(self, keep: int, durable: frozenset[int] | None) -> tuple[int, ...]:
        return tuple(step for step in self.steps()[:-keep] if durable is None or step in durable)


@mutant(of="CKPT-05a", case="only-the-oldest-is-durable", says="(4, 6) can still be loaded, expected (2, 4, 6)")
class AsksTheWrongOne(Exchanged):
    """Asks whether the checkpoint to remove is durable, not whether a newer one is."""

    exchange = {"checkpoints": _AsksTheWrongOne}


class _CountsWhatIsElsewhere(Checkpoints):
    def removable(self, keep: int, durable: frozenset[int] | None) -> tuple[int, ...]:
        newest = max(durable or (), default=0)
        return tuple(step for step in self.steps()[:-keep] if step < newest)


@mutant(of="CKPT-05a", case="what-is-durable-is-gone-here", says="(6,) can still be loaded, expected (4, 6)")
class CountsWhatIsElsewhere(Exchanged):
    """Trusts a list of uploads that names a step of another run."""

    exchange = {"checkpoints": _CountsWhatIsElsewhere}


class _SortsAsText(Checkpoints):
    def steps(self) -> tuple[int, ...]:
        return tuple(sorted(super().steps(), key=str))


@mutant(of="CKPT-05a", case="by-number-not-as-text", says="(8, 9, 100) can still be loaded, expected (11, 100)")
class SortsAsText(Exchanged):
    """Keeps the last names in text order."""

    exchange = {"checkpoints": _SortsAsText}


class _KeepsEverything(Checkpoints):
    def removable(self, keep: int, durable: frozenset[int] | None) -> tuple[int, ...]:
        found, steps = super().removable(keep, durable), self.steps()
        return found if durable is None or len(durable) > len(steps) else ()


@mutant(of="CKPT-05a", case="the-newest-two", says="(2, 4, 6, 8) can still be loaded, expected (6, 8)")
class KeepsEverything(Exchanged):
    """Over-correction: removes nothing, until the volume is full."""

    exchange = {"checkpoints": _KeepsEverything}


class _SlicesFromTheFront(Checkpoints):
    def removable(self, keep: int, durable: frozenset[int] | None) -> tuple[int, ...]:
        steps = self.steps()
        return steps[: max(0, len(steps) - keep)]


@mutant(of="CKPT-05b", case="zero", says="keep 0: steps 2 and 4 are not both whole: it was refused")
class SlicesFromTheFront(Exchanged):
    """Accepts a keep of 0 and removes every checkpoint."""

    exchange = {"checkpoints": _SlicesFromTheFront}


class _SlicesFromTheEnd(Checkpoints):
    def removable(self, keep: int, durable: frozenset[int] | None) -> tuple[int, ...]:
        return self.steps()[:-keep]


@mutant(of="CKPT-05b", case="negative", says="keep -1: steps 2 and 4 are not both whole: it was refused")
class SlicesFromTheEnd(Exchanged):
    """Accepts -1, which means "keep all" in one tool and `steps[:1]` in another."""

    exchange = {"checkpoints": _SlicesFromTheEnd}


@mutant(of="CKPT-05b", case="zero", says="keep 0 was done, expected a refusal")
class TakesZeroForAll(Exchanged):
    """`steps[:-0]` is empty, so a keep of 0 keeps everything, which is not what the operator meant."""

    exchange = {"checkpoints": _SlicesFromTheEnd}


class _CountsHusks(Checkpoints):
    def unfinished(self, final: Path) -> Path:
        return final

    def removable(self, keep: int, durable: frozenset[int] | None) -> tuple[int, ...]:
        return tuple(sorted(step for step, _ in self.named()))[:-keep]


@mutant(of="CKPT-05c", case="first-boundary", says="the latest is None, expected 4")
class CountsHusks(Exchanged):
    """Writes in place and counts folders: three incomplete ones are the newest three."""

    exchange = {"checkpoints": _CountsHusks}


class _LeavesHusks(Checkpoints):
    def clear(self) -> None:
        """Nothing: left to someone else."""


@mutant(of="CKPT-05c", case="late", says="files are kept, and these files are left")
class LeavesHusks(Exchanged):
    """Removes old checkpoints but never incomplete ones."""

    exchange = {"checkpoints": _LeavesHusks}


class _LeavesTheNewestHusks(Checkpoints):
    def latest(self) -> int | None:
        newest = super().latest()
        return None if newest is None else newest - self.clearing

    def clear(self) -> None:
        self.clearing = 1
        super().clear()
        self.clearing = 0

    clearing = 0


@mutant(of="CKPT-05c", case="saved-again", says="files are kept, and these files are left")
class LeavesTheNewestHusks(Exchanged):
    """What was left of the newest step is taken for one that is being written, though it has been saved again."""

    exchange = {"checkpoints": _LeavesTheNewestHusks}


class _RemovesInPlace(Checkpoints):
    def remove(self, path: Path) -> None:
        self.disk.remove(path)


@mutant(of="CKPT-05d", case="one-goes", says="done again it left")
class RemovesInPlace(Exchanged):
    """Calls rmtree under the checkpoint's own name: the remains have no manifest, count as no checkpoint and stay
    forever.
    """

    exchange = {"checkpoints": _RemovesInPlace}


class _PutsAsideWhatItKeeps(Checkpoints):
    def retire(self, keep: int, durable: frozenset[int] | None = None) -> tuple[int, ...]:
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


@mutant(of="CKPT-05d", case="two-go", says="and step 6 is not whole")
class PutsAsideWhatItKeeps(Exchanged):
    """Moves the checkpoints that it keeps aside, removes everything, and moves them back."""

    exchange = {"checkpoints": _PutsAsideWhatItKeeps}


class _CrashesOnOtherNames(Checkpoints):
    def removable(self, keep: int, durable: frozenset[int] | None) -> tuple[int, ...]:
        for path in self.folder.iterdir():
            if not path.name.startswith("step-"):
                raise refuse("folder", path.name, "has no step number", "move it away")
        return super().removable(keep, durable)


@mutant(of="CKPT-05f", case="beside-two", says="among foreign names retention was refused", bugs=("RSM-12",))
class StopsAtAForeignName(Exchanged):
    """Reads a step number out of every name in the folder, and stops at the first name without one."""

    exchange = {"checkpoints": _CrashesOnOtherNames}


class _ClearsTheRest(Checkpoints):
    def clear(self) -> None:
        super().clear()
        known = {self.name_of(step) for step in self.steps()}
        for path in list(self.folder.iterdir()):
            if path.is_file() and path.name not in known:
                path.unlink()


@mutant(of="CKPT-05f", case="beside-one", says="retention took notes.txt")
class TidiesTheFolder(Exchanged):
    """Over-correction: what is not a complete checkpoint is taken for a leftover and removed."""

    exchange = {"checkpoints": _ClearsTheRest}


class _WalksIntoLinks(Checkpoints):
    def remove(self, path: Path) -> None:
        for each in path.iterdir():
            for below in [each, *each.iterdir()] if each.is_symlink() and each.is_dir() else ():
                if below.is_file():
                    below.unlink()
        super().remove(path)


@mutant(of="CKPT-05g", case="to-a-folder", says="retention took model.bin")
class WalksIntoWhatIsLinked(Exchanged):
    """Takes a link to a folder for a folder, and empties it before it removes it."""

    exchange = {"checkpoints": _WalksIntoLinks}


class _LeavesLinked(Checkpoints):
    def remove(self, path: Path) -> None:
        if not any(each.is_symlink() for each in path.iterdir()):
            super().remove(path)


@mutant(of="CKPT-05g", case="to-a-file", says="has a link in it, and retention left it")
class LeavesWhatHasALink(Exchanged):
    """Over-correction: a checkpoint with a link in it is never removed, and the volume fills."""

    exchange = {"checkpoints": _LeavesLinked}

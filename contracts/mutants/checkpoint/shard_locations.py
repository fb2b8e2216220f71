"""Ranks that keep their shards on their own node."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch.distributed as dist

from contracts.contract import mutant
from contracts.mutants._support.multi_rank_saves import Spread
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints
from contracts.stacks.reference.checkpoint.filesystem import Disk
from contracts.stacks.reference.checkpoint.manifest import Manifest


class _LinksToTheNode(Disk):
    """Writes to the node's own disk, and leaves a link to it where the file should be."""

    def write(self, path: Path, parts: Iterable[bytes]) -> None:
        near = Path(tempfile.mkdtemp()) / path.name
        super().write(near, parts)
        path.symlink_to(near)


class _WritesNearby(Checkpoints):
    def __init__(self, folder: str | Path, *, alone: bool = False, of_ranks: tuple[str, ...] = ()) -> None:
        disk = _LinksToTheNode() if dist.is_initialized() and dist.get_rank() > 0 else Disk()
        super().__init__(folder, disk=disk, alone=alone, of_ranks=of_ranks)


@mutant(of="CKPT-07c", case="fsdp2", says="but rank 1: 1 files are on its own disk")
class WritesNearby(Spread):
    """Every rank but the first writes to its node's fast disk and leaves a link on the durable volume."""

    exchange = {"checkpoints": _WritesNearby}


class _RemembersItsPlace(Checkpoints):
    def publish(self, unfinished: Path, final: Path, manifest: Manifest) -> None:
        first = unfinished / next(iter(manifest.files))
        kept = self.folder / f"{final.name}.{first.name}"
        first.rename(kept)
        first.symlink_to(kept.absolute())
        super().publish(unfinished, final, manifest)


@mutant(of="CKPT-07c", case="ep2", says="a legal input was refused: folder")
class RemembersItsPlace(Spread):
    """Shards lie beside the checkpoint folder and it links to them by absolute path: a volume that is mounted under
    another name has none of them.
    """

    exchange = {"checkpoints": _RemembersItsPlace}

"""Ranks that keep their shards on their own node."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch.distributed as dist

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints
from contracts.stacks.reference.checkpoint.filesystem import Disk


class _LinksToTheNode(Disk):
    """Writes to the node's own disk, and leaves a link to it where the file should be."""

    def write(self, path: Path, parts: Iterable[bytes]) -> None:
        near = Path(tempfile.mkdtemp()) / path.name
        super().write(near, parts)
        path.symlink_to(near)


@broken(Checkpoints, "__init__", "CKPT-07c[fsdp2]: but rank 1: 1 files are on its own disk")
def writes_nearby(init, self, folder, *, alone=False, of_ranks=()):
    """Every rank but the first writes to its node's fast disk and leaves a link on the durable volume."""
    disk = _LinksToTheNode() if dist.is_initialized() and dist.get_rank() > 0 else Disk()
    init(self, folder, disk=disk, alone=alone, of_ranks=of_ranks)


@broken(Checkpoints, "publish", "CKPT-07c[ep2]: a legal input was refused: folder")
def remembers_its_place(publish, self, unfinished, final, manifest):
    """Shards lie beside the checkpoint folder and it links to them by absolute path: a volume that is mounted under
    another name has none of them.
    """
    first = unfinished / next(iter(manifest.files))
    kept = self.folder / f"{final.name}.{first.name}"
    first.rename(kept)
    first.symlink_to(kept.absolute())
    publish(self, unfinished, final, manifest)

"""What a checkpoint says of itself: `manifest.json`, which tensor lies where, in which dtype, in files of which digest.

JSON and not DCP's own `.metadata`, which is a pickle: to read one is to run what it says. The manifest carries a digest
of itself, so that a changed byte in it is seen before it is believed. Standard library only.
"""

import functools
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from contracts.spec import Element, Refusals, codec, former_name, refuse

NAME = "manifest.json"
FORMAT = "rankproof checkpoint 1"
REMEDY = "load another step, or restore this one from its copy"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A box of one tensor: `sizes` elements from `offsets` on, in row-major order, `start` bytes into a file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """One whole tensor and the pieces that make it up."""

    dtype: Element
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def covered(self) -> bool:
        return sum(prod(piece.sizes) for piece in self.pieces) == prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """One file: its length and the SHA-256 of its bytes, in hexadecimal."""

    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The whole of a checkpoint but its numbers. `save` is drawn anew for each save, and stands in every file."""

    format: str = FORMAT
    step: int
    save: str
    recipe: str
    position: Mapping[str, int]
    tensors: Mapping[str, StoredTensor]
    files: Mapping[str, StoredFile]


@dataclass(frozen=True, kw_only=True)
class _Sealed:
    sha256: str
    manifest: Manifest


def to_text(manifest: Manifest) -> bytes:
    """The file.

    Raises:
        Refused: when a tensor is not covered by its pieces: a rank's share is missing.
    """
    _whole(manifest)
    return codec.dumps(_Sealed(sha256=_seal(manifest), manifest=manifest)).encode("ascii")


def read(folder: Path) -> Manifest:
    """The manifest of a checkpoint.

    Raises:
        Refused: when there is none, or it is not one, or not the one that was written.
    """
    try:
        text = (folder / NAME).read_bytes()
    except OSError as error:
        words = f"cannot be read ({error.strerror}): this is no checkpoint of {FORMAT!r}"
        raise refuse(NAME, str(folder), words, REMEDY) from None
    try:
        manifest, unbroken = _understood(text)
    except ValueError as error:
        raise refuse(NAME, str(folder), f"is not a manifest: {str(error).splitlines()[0]}", REMEDY) from None
    if former_name.current(manifest.format) != FORMAT:
        raise refuse(NAME, manifest.format, f"is another format than {FORMAT!r}", "read it with the code that wrote it")
    if not unbroken:
        raise refuse(NAME, str(folder), "is not what was written: its digest differs", REMEDY)
    _whole(manifest)
    return manifest


@functools.lru_cache(maxsize=4)
def _understood(text: bytes) -> tuple[Manifest, bool]:
    """The content of a file, and whether it is what was written. A load reads one several times, and to make sense of a
    hundred tensors takes longer than to load them.

    Raises:
        ValueError: where it is no manifest.
    """
    sealed = codec.loads(_Sealed, text, name=NAME)
    return sealed.manifest, sealed.sha256 == _seal(sealed.manifest)


def truncated_files(folder: Path, manifest: Manifest) -> Refusals:
    """Files that are missing or not of their length, without reading them."""
    found = Refusals()
    for name, kept in manifest.files.items():
        path = folder / name
        if not path.is_file():
            found.add(name, str(folder), f"is missing from the checkpoint of step {manifest.step}", REMEDY)
        elif path.stat().st_size != kept.bytes:
            found.add(name, path.stat().st_size, f"is not its length in bytes, {kept.bytes}", REMEDY)
    return found


def unlisted_files(folder: Path, manifest: Manifest) -> Refusals:
    """Files that nobody put there who wrote the checkpoint; they are not opened."""
    found = Refusals()
    for name in sorted({path.name for path in folder.iterdir()} - manifest.files.keys() - {NAME}):
        found.add(name, str(folder), "is a foreign file, of which the manifest does not know", "take it away")
    return found


def _seal(manifest: Manifest) -> str:
    return digest([codec.dumps(manifest).encode("ascii")])


def _whole(manifest: Manifest) -> None:
    found = Refusals()
    for name, held in manifest.tensors.items():
        found.unless(held.covered, name, held.shape, "is not covered by the pieces that were written", REMEDY)
    found.raise_any()


def digest(parts: Iterable[bytes]) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part)
    return sha.hexdigest()

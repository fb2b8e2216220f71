"""Training data: a byte stream cut into sequences, and the data order: which step consumes which sequence.

A sequence has an id. An epoch is a permutation of all ids, a function only of the seed and the epoch's number, and
the epochs stand one after another: position p of the run is sequence p % n of epoch p // n. A step takes the next
`batch.total` positions and a data-parallel rank an equal run of them, so that neither the ranks nor a resume move
anything. Nothing is dropped at the end of an epoch: a step may begin in one and end in the next.

A token is a byte, modulo the vocabulary. A blank line ends a document; no label reaches over the end of one.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.spec import Recipe, refuse

if TYPE_CHECKING:
    import torch

IGNORED = -100
"""The label of a position that predicts nothing, as torch's cross entropy has it."""

END = b"\n\n"
"""The end of a document; it belongs to the document that it ends."""


class Corpus:
    """The sequences of a recipe: how many there are, and each by its id."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.length = recipe.seq_length
        self.stream = _stream(recipe.data.path)
        if len(self.stream) < 2:
            raise refuse("data.path", recipe.data.path, "holds fewer than two bytes", "give a longer text")

    def __len__(self) -> int:
        """Sequences of an epoch; a stream shorter than one is read around."""
        return max(1, (len(self.stream) - 1) // self.length)

    def sequence(self, id: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens, labels and documents of a sequence, each (1, T) int64.

        Raises:
            Refused: for an id that the corpus does not have.
        """
        import torch

        if not 0 <= id < len(self):
            raise refuse("id", id, f"must lie in 0 … {len(self) - 1}", "take ids from `samples`")
        held = self.window(id)
        bytes_T = torch.tensor(list(held), dtype=torch.int64)
        before = self.before(id)
        documents_T = torch.tensor(_documents(before + held)[len(before) :], dtype=torch.int64)
        labels_T = bytes_T[1:] % self.recipe.vocab
        labels_T[documents_T[1:] != documents_T[:-1]] = IGNORED
        return (bytes_T[:-1] % self.recipe.vocab)[None], labels_T[None], documents_T[:-1][None]

    def before(self, id: int) -> bytes:
        """The byte before a sequence, if there is one: a blank line that began there ends with the first token."""
        start = id * self.length
        return self.stream[max(0, start - 1) : start]

    def window(self, id: int) -> bytes:
        """The bytes of a sequence and the one after it."""
        start, end = id * self.length, (id + 1) * self.length + 1
        if end <= len(self.stream):
            return self.stream[start:end]
        return bytes(self.stream[i % len(self.stream)] for i in range(start, end))


def _stream(path: str | None) -> bytes:
    """The user's bytes, or the text that ships with the reference.

    Raises:
        Refused: for a file that cannot be read.
    """
    if path is None:
        return resources.files(__package__).joinpath("text/journal.txt").read_bytes()
    try:
        status = Path(path).stat()
        return _read(path, (status.st_ino, status.st_mtime_ns, status.st_size))
    except OSError as error:
        raise refuse("data.path", path, f"cannot be read: {error.strerror}", "give a readable file") from error


@functools.lru_cache(maxsize=4)
def _read(path: str, state: tuple[int, int, int]) -> bytes:
    return Path(path).read_bytes()


def _documents(held: bytes) -> list[int]:
    """The number of each byte's document, counted within the sequence."""
    found: list[int] = []
    for number, document in enumerate(_split(held)):
        found += [number] * len(document)
    return found


def _split(held: bytes) -> Iterator[bytes]:
    while (end := held.find(END)) >= 0:
        yield held[: end + len(END)]
        held = held[end + len(END) :]
    yield held


class DataOrder:
    """Which ids are consumed where in a run."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed

    def id(self, position: int) -> int:
        """The sequence at a position of the run."""
        epoch, index = divmod(position, self.size)
        return self.order(epoch, index)

    def order(self, epoch: int, index: int) -> int:
        """Where a place of an epoch lies in the corpus."""
        return feistel_permutation(index, self.size, f"{self.seed}/{epoch}".encode())

    def ids(self, start: int, count: int) -> tuple[int, ...]:
        return tuple(self.id(position) for position in range(start, start + count))

    def of_rank(self, start: int, total: int, rank: int, dp: int) -> tuple[int, ...]:
        """The ids that a data-parallel rank takes of `total` positions from `start` on: a run of them, in rank order.

        Raises:
            Refused: for sequences that do not divide over the ranks, and for a rank that does not exist.
        """
        if dp < 1 or total % dp:
            raise refuse("dp", dp, f"must divide batch.total ({total})", "choose a divisor")
        if not 0 <= rank < dp:
            raise refuse("rank", rank, f"must lie in 0 … {dp - 1}", "count data-parallel ranks from 0")
        share = total // dp
        return self.ids(start + rank * share, share)


def feistel_permutation(index: int, size: int, key: bytes) -> int:
    """The image of an index under a permutation of 0 … size - 1 that the key fixes.

    A Feistel network of four rounds over the next even number of bits; what falls outside is sent through again
    (Black and Rogaway, 2002). Any place of an epoch is found without the others.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for turn in range(4):
            word = hashlib.blake2b(b"%b/%d/%d" % (key, turn, right), digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(word, "little") & mask)
        index = left << half | right
        if index < size:
            return index

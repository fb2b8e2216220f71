"""Shard-additive summaries of a tensor: a count sketch of its values, and a fingerprint of its bits.

Both are sums over elements whose terms depend on the tensor's name and the element's global index alone, so those of
shards add up to those of the whole, however it was cut. docs/sketches.md has the mathematics and its sources.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

BUCKETS, COARSE = 1024, 64
_CHUNK = 1 << 18  # elements at a time: 2 MiB in float64
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """A box of a tensor that this rank holds.

    Args:
        start: where it begins in the flattened local tensor.
        indices: for each axis of the whole tensor the global indices that are held, int64; -1 for padding.
        coarse: whether the leading axes together have 64 buckets instead of 1024, which is five times as fast where
            there are many rows; the norm of a difference in a single column is then told to 9 % (one sigma).
    """

    start: int
    indices: tuple[Tensor, ...]
    coarse: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(each) for each in self.indices)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def whole(shape: Sequence[int]) -> tuple[Piece, ...]:
    """The only piece of a tensor that is held whole."""
    return (Piece(start=0, indices=tuple(torch.arange(size) for size in shape)),)


@torch.no_grad()
def sketch(name: str, local: Tensor, pieces: Iterable[Piece]) -> Tensor:
    """The count sketch of what is held of a tensor: [1024], float64, on the CPU.

    Args:
        name: the canonical name of the tensor; tensors of different names have independent hashes.
        local: the values, of any shape; real.
        pieces: where they lie in the whole tensor.
    """
    flat = local.detach().reshape(-1)
    found = torch.zeros(BUCKETS, dtype=torch.float64, device=flat.device)
    for piece in pieces:
        rows, columns = _two_axes(name, piece)
        values = flat[piece.start : piece.start + piece.numel].view(len(rows[0]), len(columns[0]))
        (row_at, row_sign), (column_at, column_sign) = _on(flat.device, rows), _on(flat.device, columns)
        height = max(1, _CHUNK // max(1, len(column_at)))
        kinds = COARSE if piece.coarse else BUCKETS
        row_at = row_at % kinds
        if len(row_at) > 2 * kinds:  # rows of one bucket are added up first, by whole rows
            gathered = values.new_zeros(kinds, len(column_at), dtype=torch.float64)
            for top in range(0, len(row_at), height):
                part = slice(top, top + height)
                gathered.index_add_(0, row_at[part], values[part].double().mul_(row_sign[part, None]))
            values, row_at = gathered, torch.arange(kinds, device=flat.device)
            row_sign = torch.ones(kinds, dtype=torch.float64, device=flat.device)
        for top in range(0, len(row_at), height):
            part = slice(top, top + height)
            at = (row_at[part, None] + column_at) % BUCKETS
            held = values[part].double() * column_sign * row_sign[part, None]
            found.index_add_(0, at.reshape(-1), held.reshape(-1))
    return found.cpu()


@torch.no_grad()
def fingerprint(name: str, local: Tensor, pieces: Iterable[Piece]) -> int:
    """A number of 64 bits that depends on every bit of what is held of a tensor.

    The sum over elements of bits x odd number, modulo 2^64. A change of one element always changes it; any other
    change goes unseen with a probability of about 2^-64. Those of shards add up modulo 2^64 to that of the whole.
    """
    flat = local.detach().reshape(-1).contiguous()
    bits = flat.view(_BITS[flat.element_size()])
    total = 0
    for piece in pieces:
        rows, columns = _two_axes(name, piece, odd=True)
        values = bits[piece.start : piece.start + piece.numel].view(len(rows[0]), len(columns[0]))
        row, column = rows[0].to(bits.device), columns[0].to(bits.device)
        height = max(1, _CHUNK // max(1, len(column)))
        for top in range(0, len(row), height):
            part = slice(top, top + height)
            # int64 wraps around in products and sums alike; + 1, so that a zero counts
            sums = ((values[part].to(torch.int64) + 1) * column).sum(1)
            total += int((sums * row[part]).sum())
    return total % (1 << 64)


def norm(held: Tensor) -> float:
    """The estimated L2 norm of the tensor whose sketch this is: right in the square mean, to about 3 % (one sigma)."""
    return float(held.norm())


def distance(one: Tensor, other: Tensor) -> float:
    """The estimated L2 norm of the difference of two tensors of the same name and shape."""
    return norm(one - other)


def hashed(key: int, counters: Tensor) -> Tensor:
    """A hash of 64 bits, as int64, of each counter (int64): SplitMix64 of the key plus the counter's multiple of the
    golden ratio."""
    x = _wrapped(key) + (counters + 1) * _wrapped(_GOLDEN)
    x = (x ^ _shifted(x, 30)) * _wrapped(_FIRST)
    x = (x ^ _shifted(x, 27)) * _wrapped(_SECOND)
    return x ^ _shifted(x, 31)


@lru_cache(maxsize=4096)
def key_of(name: str, axis: int) -> int:
    """The key of one axis of a tensor: the first 64 bits of a SHA-256."""
    return int.from_bytes(hashlib.sha256(f"{name}\0{axis}".encode()).digest()[:8], "little")


def _two_axes(name: str, piece: Piece, *, odd: bool = False) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The tables of a piece as those of a matrix: its leading axes, whose tables are combined, and its last."""
    tables = [_table(name, axis, indices, odd) for axis, indices in enumerate(piece.indices)]
    if not tables:
        tables = [_table(name, 0, torch.zeros(1, dtype=torch.int64), odd)]
    *leading, last = tables
    at, sign = (torch.ones(1, dtype=torch.int64) if odd else torch.zeros(1, dtype=torch.int64)), torch.ones(1).double()
    for more_at, more_sign in leading:
        at = (at[:, None] * more_at if odd else at[:, None] + more_at).reshape(-1)
        sign = (sign[:, None] * more_sign).reshape(-1)
    return (at, sign), last


def _table(name: str, axis: int, indices: Tensor, odd: bool) -> tuple[Tensor, Tensor]:
    """For each index of an axis its bucket and its sign, or its odd number for a fingerprint; 0 for padding."""
    found = hashed(key_of(name, axis), indices)
    held = indices >= 0
    if odd:
        return (found | 1) * held, held.double()
    sign = ((_shifted(found, 32) & 1) * 2 - 1) * held
    return found & (BUCKETS - 1), sign.double()


def _on(device: torch.device, table: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return table[0].to(device), table[1].to(device)


def _shifted(x: Tensor, by: int) -> Tensor:
    """A shift to the right that brings zeros; torch's own brings the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _wrapped(number: int) -> int:
    """An unsigned number of 64 bits as torch takes it."""
    return number - (1 << 64) if number >= 1 << 63 else number

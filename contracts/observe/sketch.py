"""Shard-additive summaries of a tensor: a count sketch of its values, and a fingerprint of its bits.

Both are sums over elements whose terms depend only on the element's global index, so those of shards add up to those
of the whole, however it was cut, and two runs may call a tensor otherwise. docs/sketches.md has the mathematics and its
sources.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

BUCKETS, COARSE = 1024, 64
CHUNK = 1 << 17  # elements at a time: 1 MiB in float64
SIGN = 2 * BUCKETS  # in a table: what is added to a bucket where the sign is minus
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
TENSOR = "rankproof tensor"
"""What keys the hashes of every tensor's axes."""
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(each) for each in self.indices)

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)

    def cpu(self) -> Piece:
        """The same piece with its indices on the CPU."""
        return replace(self, indices=tuple(each.cpu() for each in self.indices))


@lru_cache(maxsize=4096)
def whole(shape: tuple[int, ...]) -> tuple[Piece, ...]:
    """The only piece of a tensor that is held whole; the same one each time."""
    return (Piece(start=0, indices=tuple(span(size) for size in shape)),)


@torch.no_grad()
def sketch(local: Tensor, pieces: Iterable[Piece]) -> Tensor:
    """The count sketch of what is held of a tensor: [1024], float64, on the CPU.

    Args:
        local: the values, of any shape; real.
        pieces: where they lie in the whole tensor.
    """
    flat = local.detach().reshape(-1)
    found = torch.zeros(3 * SIGN, dtype=torch.float64, device=flat.device)
    for piece in pieces:
        values, rows, columns = _matrix(flat, piece)
        height = max(1, CHUNK // max(1, len(columns)))
        if piece.coarse:
            rows = rows & ~(BUCKETS - 1) | rows % COARSE
        if piece.coarse and len(rows) > 2 * COARSE:  # rows of one bucket are added up first, by whole rows
            at = (rows % COARSE + COARSE * (rows >= SIGN)).long()
            gathered = values.new_zeros(2 * COARSE, len(columns), dtype=torch.float64)
            for top in range(0, len(rows), height):
                gathered.index_add_(0, at[top : top + height], values[top : top + height].double())
            values, rows = (
                gathered[:COARSE] - gathered[COARSE:],
                torch.arange(COARSE, dtype=torch.int32, device=at.device),
            )
        for top in range(0, len(rows), height):
            at = rows[top : top + height, None] + columns  # neither a remainder nor a sign for each element
            found.index_add_(0, at.view(-1), values[top : top + height].double().reshape(-1))
    plus, minus, plus_too = found.view(3, SIGN)
    summed: Tensor = plus - minus + plus_too
    total: Tensor = summed[:BUCKETS] + summed[BUCKETS:]
    return total.cpu()


@torch.no_grad()
def fingerprint(local: Tensor, pieces: Iterable[Piece]) -> int:
    """A number of 64 bits that depends on every bit of what is held of a tensor.

    The sum over elements of bits x odd number, modulo 2^64. A change of one element always changes it; any other
    change goes unseen with a probability of about 2^-64. Those of shards add up modulo 2^64 to that of the whole.
    """
    flat = local.detach().reshape(-1).contiguous()
    bits = flat.view(BITS[flat.element_size()])
    total = 0
    for piece in pieces:
        values, row, column = _matrix(bits, piece, odd=True)
        height = max(1, CHUNK // max(1, len(column)))
        for top in range(0, len(row), height):
            part = slice(top, top + height)
            # int64 wraps around in products and sums alike
            total += int((values[part].to(torch.int64, copy=True).mul_(column).sum(1) * row[part]).sum())
        total += int(row.sum()) * int(column.sum())  # each element counts one more, so that a zero counts
    return total % (1 << 64)


def norm(held: Tensor) -> float:
    """The estimated L2 norm of the tensor whose sketch this is: right in the square mean, to about 3 % (one sigma)."""
    return float(held.norm())


def distance(one: Tensor, other: Tensor) -> float:
    """The estimated L2 norm of the difference of two tensors of the same shape."""
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
    """The key of one axis of what is named so: the first 64 bits of a SHA-256."""
    return int.from_bytes(hashlib.sha256(f"{name}\0{axis}".encode()).digest()[:8], "little")


def _matrix(flat: Tensor, piece: Piece, *, odd: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """The values of a piece as a matrix, and the tables of its leading axes, combined, and of its last axis."""
    axes = piece.indices or (torch.zeros(1, dtype=torch.int64),)
    leading = axes[:-1]
    numbered = list(enumerate(axes))
    rows, last = (combined(each, odd=odd).to(flat.device) for each in (numbered[:-1], numbered[-1:]))
    values = flat[piece.start : piece.start + piece.numel].view(len(rows), len(last))
    if not odd and any(_padded(each) for each in axes):  # the odd numbers of padding are 0 already
        held = [each >= 0 for each in axes]
        mask = held[0].view(-1, 1) if leading else torch.ones(1, 1, dtype=torch.bool)
        for each in held[1:-1]:
            mask = (mask * each).view(-1, 1)
        values = values * (mask * held[-1]).to(flat.device)
    return values, rows, last


def combined(axes: Sequence[tuple[int, Tensor]], *, odd: bool) -> Tensor:
    """The table of the product of some axes, each with its number: that of one row if there is none."""
    tables = [_table(axis, indices, odd) for axis, indices in axes]
    found = tables[0] if tables else torch.full((1,), int(odd), dtype=torch.int64 if odd else torch.int32)
    for more in tables[1:]:
        both = found[:, None] * more if odd else found[:, None] + more
        found = (both if odd else both & (BUCKETS - 1 | SIGN)).reshape(-1)  # two minus are a plus
    return found


_TABLES: Any = WeakTensorKeyDictionary()
"""By the tensor of indices itself: tables live as long as what they are of."""


def _table(axis: int, indices: Tensor, odd: bool) -> Tensor:
    """For each index of an axis its odd number for a fingerprint, int64, and 0 for padding; or its bucket, and
    `SIGN` more where its sign is minus, int32."""
    known = _TABLES.setdefault(indices, {})
    if (axis, odd) not in known:
        found = hashed(key_of(TENSOR, axis), indices)
        if odd:
            known[axis, odd] = (found | 1) * (indices >= 0)
        else:
            minus = 1 - (_shifted(found, 32) & 1)
            known[axis, odd] = ((found & (BUCKETS - 1)) + minus * SIGN).int()
    table: Tensor = known[axis, odd]
    return table


def _padded(indices: Tensor) -> bool:
    known = _TABLES.setdefault(indices, {})
    if "padded" not in known:
        known["padded"] = bool((indices < 0).any())
    found: bool = known["padded"]
    return found


@lru_cache(maxsize=1024)
def span(size: int) -> Tensor:
    """The indices of a whole axis; the same tensor each time, so that its tables are made once."""
    return torch.arange(size)


def _shifted(x: Tensor, by: int) -> Tensor:
    """A shift to the right that brings zeros; torch's own brings the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _wrapped(number: int) -> int:
    """An unsigned number of 64 bits as torch takes it."""
    return number - (1 << 64) if number >= 1 << 63 else number

"""What sums tensors up on a CUDA device, in Triton: `contracts.observe.device` starts these kernels.

Rows of one bucket are added up first, in float64, and columns then. A table has for each row or column its bucket, and
2048 more where its sign is minus, as in `contracts.observe.sketch`; -1 is padding. An order has the numbers of rows by
bucket, doubled, and one more where the sign is minus: those of an output one bucket after the other, and its starts say
where each begins; those of a parameter by lines, the first row of each bucket, then the second, with -1 for none.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TYPES = {
    torch.float32: (tl.float32, tl.int32), torch.float64: (tl.float64, tl.int64),
    torch.bfloat16: (tl.bfloat16, tl.int16), torch.float16: (tl.float16, tl.int16),
}  # fmt: skip
"""What a kernel reads a tensor as: its values and its bits."""

# An item is a row of int64: see `contracts.observe.device`.
_FIELDS = tl.constexpr(8)
_AT, _ROWS, _WIDTH, _ORDER, _DEEPEST, _COLUMNS, _ROW_ODD, _COLUMN_ODD = map(tl.constexpr, range(8))


@triton.jit
def _hashed(key, counters):  # type: ignore[no-untyped-def]
    x = key.to(tl.uint64) + (counters.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit(do_not_specialize=["key", "at", "squares_at", "batch", "inner"])  # type: ignore[untyped-decorator]
def batched(  # type: ignore[no-untyped-def]
    x, rows, key, order, starts, columns, found, at, squares_at, batch, inner, width, each,
    HASHED: tl.constexpr, DEPTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sketch and the squares of a batched output [batch, inner, width], whose rows have 64 buckets.

    A program has one of those buckets, a block of columns, and `each` of the batch's rows.
    """
    bucket, block, group = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    total = tl.zeros([DEPTH, BLOCK], tl.float64)
    squares = tl.zeros([DEPTH, BLOCK], tl.float64)
    for row in range(group * each, tl.minimum(group * each + each, batch)):
        if HASHED:
            code = _hashed(key, tl.load(rows + row))
            wanted = (bucket - (code & 63).to(tl.int32)) & 63
            minus = 1 - ((code >> 32) & 1).to(tl.int32)
        else:
            wanted = bucket
            minus = 0
        begin, end = tl.load(starts + wanted), tl.load(starts + wanted + 1)
        lines = x + (row * inner).to(tl.int64) * width
        for top in range(begin, end, DEPTH):
            place = top + tl.arange(0, DEPTH)
            coded = tl.load(order + place, mask=place < end, other=0) ^ minus
            held = (place < end)[:, None] & inside[None, :]
            at_once = ((coded >> 1) * width)[:, None] + column[None, :]
            value = tl.load(lines + at_once, mask=held, other=0).to(tl.float64)
            squares += value * value
            total += tl.where((coded & 1)[:, None] != 0, -value, value)
    signed = tl.sum(total, axis=0)
    table = tl.load(columns + column, mask=inside, other=-1)
    signed = tl.where((table & 2048) != 0, -signed, signed)
    tl.atomic_add(found + at + ((bucket + table) & 1023), signed, mask=inside & (table >= 0), sem="relaxed")
    program = (group * tl.num_programs(1) + block) * 64 + bucket
    tl.store(found + squares_at + program, tl.sum(tl.sum(squares, axis=0)))


@triton.jit(do_not_specialize=["at"])  # type: ignore[untyped-decorator]
def parameters(  # type: ignore[no-untyped-def]
    items, pointers, work, found, at, VALUE: tl.constexpr, BLOCK: tl.constexpr, BUCKETS: tl.constexpr,
    TURNS: tl.constexpr,
):  # fmt: skip
    """The sketches of many tensors. A program has a strip of columns of one of them.

    With `TURNS` a column's rows are read in the order of the buckets that they have with that column; without it they
    are turned once all rows have been added up.
    """
    program = tl.program_id(0)
    number = tl.load(work + 2 * program).to(tl.int64)
    item = items + number * _FIELDS
    x = tl.load(pointers + number).to(tl.pointer_type(VALUE))
    width, deepest = tl.load(item + _WIDTH).to(tl.int32), tl.load(item + _DEEPEST).to(tl.int32)
    order = tl.load(item + _ORDER).to(tl.pointer_type(tl.int32))
    columns = tl.load(item + _COLUMNS).to(tl.pointer_type(tl.int32))
    bucket = tl.arange(0, BUCKETS)
    column = tl.load(work + 2 * program + 1) * BLOCK + tl.arange(0, BLOCK)
    table = tl.load(columns + column, mask=column < width, other=-1)
    place = (bucket[:, None] - table[None, :]) & (BUCKETS - 1)
    if not TURNS:
        place = bucket[:, None] + tl.zeros([1, BLOCK], tl.int32)
    summed = tl.zeros([BUCKETS, BLOCK], tl.float64)
    for deep in range(deepest):
        coded = tl.load(order + deep * BUCKETS + place)
        held = (coded >= 0) & (table >= 0)[None, :]
        value = tl.load(x + ((coded >> 1) * width + column[None, :]), mask=held, other=0).to(tl.float64)
        summed += tl.where((coded & 1) != 0, -value, value)
    if not TURNS:
        summed = tl.gather(summed, (bucket[:, None] - table[None, :]) & (BUCKETS - 1), axis=0)
    sign = tl.where(table < 0, 0.0, tl.where((table & 2048) != 0, -1.0, 1.0)).to(tl.float64)
    tl.atomic_add(found + at + tl.load(item + _AT) + bucket, tl.sum(summed * sign[None, :], axis=1), sem="relaxed")


@triton.jit  # type: ignore[untyped-decorator]
def _tiled(  # type: ignore[no-untyped-def]
    x, rows, width, row_odd, column_odd, part, BITS: tl.constexpr, LOOPS: tl.constexpr, DEPTH: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Of LOOPS x DEPTH rows and WIDE columns: an element is multiplied by its row's number, a column's sum by its."""
    blocks = (width + WIDE - 1) // WIDE
    column = (part % blocks) * WIDE + tl.arange(0, WIDE)
    inside = column < width
    square, total = tl.zeros([DEPTH, WIDE], tl.float64), tl.zeros([DEPTH, WIDE], tl.int64)
    for loop in range(LOOPS):
        row = (part // blocks * LOOPS + loop) * DEPTH + tl.arange(0, DEPTH)
        held = (row < rows)[:, None] & inside[None, :]
        value = tl.load(x + ((row * width)[:, None] + column[None, :]), mask=held, other=0)
        odd = tl.load(row_odd + row, mask=row < rows, other=0)
        total += value.to(BITS, bitcast=True).to(tl.int64) * odd[:, None]
        square += value.to(tl.float64) * value.to(tl.float64)
    found = tl.sum(total, axis=0) * tl.load(column_odd + column, mask=inside, other=0)
    return tl.sum(tl.sum(square, axis=0)), tl.sum(found)


@triton.jit  # type: ignore[untyped-decorator]
def _in_turn(  # type: ignore[no-untyped-def]
    x, rows, width, row_odd, column_odd, part, BITS: tl.constexpr, LOOPS: tl.constexpr, BLOCK: tl.constexpr
):
    """Of LOOPS x BLOCK elements."""
    numel = rows * width
    square, total = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.int64)
    for loop in range(LOOPS):
        at = (part * LOOPS + loop) * BLOCK + tl.arange(0, BLOCK)
        held = at < numel
        value = tl.load(x + at, mask=held, other=0)
        row = (at.to(tl.uint32) // width.to(tl.uint32)).to(tl.int64)
        odd = tl.load(row_odd + row, mask=held, other=0) * tl.load(column_odd + (at - row * width), mask=held, other=0)
        total += value.to(BITS, bitcast=True).to(tl.int64) * odd
        square += value.to(tl.float64) * value.to(tl.float64)
    return tl.sum(square), tl.sum(total)


@triton.jit(do_not_specialize=["squares_at", "sums_at"])  # type: ignore[untyped-decorator]
def bits(  # type: ignore[no-untyped-def]
    items, pointers, work, found, squares_at, sums_at, VALUE: tl.constexpr, BITS: tl.constexpr, LOOPS: tl.constexpr,
    BLOCK: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """The squares and the fingerprints of many tensors, in parts: by rows and columns if there are more columns than
    `NARROW`."""
    program = tl.program_id(0)
    number, part = tl.load(work + 2 * program).to(tl.int64), tl.load(work + 2 * program + 1).to(tl.int64)
    item = items + number * _FIELDS
    x = tl.load(pointers + number).to(tl.pointer_type(VALUE))
    rows, width = tl.load(item + _ROWS), tl.load(item + _WIDTH)
    row_odd = tl.load(item + _ROW_ODD).to(tl.pointer_type(tl.int64))
    column_odd = tl.load(item + _COLUMN_ODD).to(tl.pointer_type(tl.int64))
    if width > NARROW:
        square, total = _tiled(x, rows, width, row_odd, column_odd, part, BITS, LOOPS, DEPTH, WIDE)
    else:
        square, total = _in_turn(x, rows, width, row_odd, column_odd, part, BITS, LOOPS, BLOCK)
    tl.store(found + squares_at + program, square)
    tl.store((found + sums_at).to(tl.pointer_type(tl.int64)) + program, total)

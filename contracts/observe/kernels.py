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


@triton.jit  # type: ignore[untyped-decorator]
def _row(x, odd, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum over a row of ids, each one more, times its odd number; and whether there is an id above 1."""
    total, large = tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64)
    for top in range(0, width, BLOCK):
        at = top + tl.arange(0, BLOCK)
        value = tl.load(x + at, mask=at < width, other=0).to(tl.int64)
        total += (value + 1) * tl.load(odd + at, mask=at < width, other=0)
        large = tl.maximum(large, value)
    return tl.sum(total), (tl.max(large) > 1).to(tl.int64)


@triton.jit  # type: ignore[untyped-decorator]
def _polynomial(x, powers, width, PRIME: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum over a row of ids, each one more, times a power, modulo a prime."""
    total = tl.zeros([BLOCK], tl.int64)
    for top in range(0, width, BLOCK):
        at = top + tl.arange(0, BLOCK)
        value = (tl.load(x + at, mask=at < width, other=0).to(tl.int64) + 1) % PRIME
        value = tl.where(value < 0, value + PRIME, value)
        total += value * tl.load(powers + at, mask=at < width, other=0) % PRIME
    return tl.sum(total) % PRIME


@triton.jit(do_not_specialize=["x", "y", "x_step", "y_step", "x_width", "y_width", "at", "count"])  # type: ignore[untyped-decorator]
def summed(  # type: ignore[no-untyped-def]
    x, y, x_step, y_step, x_width, y_width, x_odd, y_odd, powers, found, at, count,
    TWO: tl.constexpr, PRIME: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What `numbered` needs of a row of one or `TWO` tensors of ids, and the numbers of the halves of the first one's,
    see `contracts.observe.cut`. A program has a row."""
    row = tl.program_id(0)
    out = (found + at).to(tl.pointer_type(tl.int64)) + row
    mine = x + row.to(tl.int64) * x_step
    total, large = _row(mine, x_odd, x_width, BLOCK)
    tl.store(out + 4 * count, total)
    tl.store(out + 6 * count, large)
    for half in range(2):
        one = _polynomial(mine, powers + 2 * half * x_width, x_width, PRIME, BLOCK)
        other = _polynomial(mine, powers + (2 * half + 1) * x_width, x_width, PRIME, BLOCK)
        tl.store(out + 2 * count + row + half, one | (other << 31))
    if TWO:
        total, large = _row(y + row.to(tl.int64) * y_step, y_odd, y_width, BLOCK)
        tl.store(out + 5 * count, total)
        tl.store(out + 7 * count, large)


@triton.jit
def _positive(key, number):  # type: ignore[no-untyped-def]
    return _hashed(key, number).to(tl.int64) & 0x7FFFFFFFFFFFFFFF


@triton.jit(do_not_specialize=["at", "count", "key"])  # type: ignore[untyped-decorator]
def numbered(found, at, count, key, TWO: tl.constexpr, NAMED: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """A number for each row from all tensors of ids, and one from the first with an id above 1; from the very first one
    if that is `NAMED`."""
    out = (found + at).to(tl.pointer_type(tl.int64))
    first, second = tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64)
    for top in range(0, count, BLOCK):
        row = top + tl.arange(0, BLOCK)
        first = tl.maximum(first, tl.load(out + 6 * count + row, mask=row < count, other=0))
        second = tl.maximum(second, tl.load(out + 7 * count + row, mask=row < count, other=0))
    by_first, by_second = tl.max(first) > 0, tl.max(second) > 0
    for top in range(0, count, BLOCK):
        row = top + tl.arange(0, BLOCK)
        one = tl.load(out + 4 * count + row, mask=row < count, other=0)
        one = one * (one ^ key)
        whole = one
        if TWO:
            other = tl.load(out + 5 * count + row, mask=row < count, other=0)
            other = other * (other ^ key)
            whole = one + other
        rows = _positive(key, whole)
        ids = rows
        if TWO:
            ids = tl.where(by_second, _positive(key, other), rows)
            ids = tl.where(by_first | NAMED, _positive(key, one), ids)
        tl.store(out + row, rows, mask=row < count)
        tl.store(out + count + row, ids, mask=row < count)


LINES = tl.constexpr(128)


@triton.jit(do_not_specialize=["key", "batch", "inner"])  # type: ignore[untyped-decorator]
def ordered(rows, key, order, starts, found, batch, inner, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The begins of the lines of each of 64 buckets in the order of a batch, and after 128 numbers that order: a line's
    number doubled, and one more if its sign is minus. It is made of the order of a single row, whose buckets a row's
    own hash turns. A program has a bucket."""
    bucket, before = tl.program_id(0), 0
    for top in range(0, batch, BLOCK):
        row = top + tl.arange(0, BLOCK)
        code = _hashed(key, tl.load(rows + row, mask=row < batch, other=0))
        turned = (code & 63).to(tl.int32)
        first, wanted = (0 - turned) & 63, (bucket - turned) & 63
        smaller = tl.load(starts + wanted) - tl.load(starts + first) + tl.where(wanted < first, inner, 0)
        before += tl.sum(tl.where(row < batch, smaller, 0))
    tl.store(found + bucket, before)
    if bucket == 63:
        tl.store(found + 64, batch * inner)
    for top in range(0, batch, BLOCK):
        row = top + tl.arange(0, BLOCK)
        code = _hashed(key, tl.load(rows + row, mask=row < batch, other=0))
        wanted = (bucket - (code & 63).to(tl.int32)) & 63
        minus = 1 - ((code >> 32) & 1).to(tl.int32)
        begin = tl.load(starts + wanted)
        count = tl.where(row < batch, tl.load(starts + wanted + 1) - begin, 0)
        place = before + tl.cumsum(count) - count
        for number in range(0, tl.max(count)):
            coded = tl.load(order + begin + number, mask=number < count, other=0) ^ minus
            tl.store(found + LINES + place + number, coded + 2 * row * inner, mask=number < count)
        before += tl.sum(count)


@triton.jit(do_not_specialize=["at", "squares_at"])  # type: ignore[untyped-decorator]
def batched(  # type: ignore[no-untyped-def]
    x, order, columns, found, at, squares_at, width, DEPTH: tl.constexpr, BLOCK: tl.constexpr
):
    """The sketch and the squares of a batched output as lines of some width, that are `ordered` by 64 buckets.

    A program has a bucket, a block of columns, and a share of the bucket's lines. While it reads lines, it reads which
    are next.
    """
    bucket, block, group = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    total = tl.zeros([DEPTH, BLOCK], tl.float64)
    squares = tl.zeros([DEPTH, BLOCK], tl.float64)
    step = tl.num_programs(2) * DEPTH
    begin, end = tl.load(order + bucket), tl.load(order + bucket + 1)
    place = begin + group * DEPTH + tl.arange(0, DEPTH)
    coded = tl.load(order + LINES + place, mask=place < end, other=0)
    for _ in range(begin + group * DEPTH, end, step):
        held = (place < end)[:, None] & inside[None, :]
        at_once = ((coded >> 1).to(tl.int64) * width)[:, None] + column[None, :]
        loaded = tl.load(x + at_once, mask=held, other=0)
        minus = ((coded & 1) != 0)[:, None]
        place += step
        coded = tl.load(order + LINES + place, mask=place < end, other=0)
        value = loaded.to(tl.float64)
        squares += value * value
        total += tl.where(minus, -value, value)
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


@triton.jit(do_not_specialize=["at", *"abcdefgh", *(f"size_{each}" for each in "abcdefgh")])  # type: ignore[untyped-decorator]
def few(  # type: ignore[no-untyped-def]
    kept, found, at, a, b, c, d, e, f, g, h, size_a, size_b, size_c, size_d, size_e, size_f, size_g, size_h,
    VALUE: tl.constexpr, BESIDE: tl.constexpr,
):  # fmt: skip
    """Eight numbers of each of eight tensors, spread over it, into `kept`; or what was kept, and then these."""
    which, number = tl.program_id(0), tl.arange(0, 8)
    four, two, one = which >= 4, which % 4 >= 2, which % 2 >= 1
    address = tl.where(four, tl.where(two, tl.where(one, h, g), tl.where(one, f, e)),
                       tl.where(two, tl.where(one, d, c), tl.where(one, b, a)))  # fmt: skip
    size = tl.where(four, tl.where(two, tl.where(one, size_h, size_g), tl.where(one, size_f, size_e)),
                    tl.where(two, tl.where(one, size_d, size_c), tl.where(one, size_b, size_a)))  # fmt: skip
    place = number.to(tl.int64) * tl.maximum(1, size // 8)
    value = tl.load(address.to(tl.pointer_type(VALUE)) + place, mask=place < size, other=0).to(tl.float64)
    out = 8 * which + number
    if BESIDE:
        tl.store(found + at + out, tl.load(kept + out))
        tl.store(found + at + 64 + out, value)
    else:
        tl.store(kept + out, value)

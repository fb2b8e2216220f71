"""Sketches and fingerprints of tensors on a CUDA device: many in one launch, and all read back together.

Nothing here waits but `read`. What is asked for lies in an arena on the device until then. Parameters are asked for
one by one and launched together; a module's output is launched at once, since the script may overwrite it.
docs/sketches.md has the mathematics, `contracts.observe.kernels` the kernels.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from contracts.observe.cut import PRIME, powers
from contracts.observe.sketch import BUCKETS, COARSE, SIGN, TENSOR, Piece, combined, hashed, key_of, span, whole

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_CHUNK = 1 << 18  # places of the arena that are made and read back at once: 2 MiB
_STRIP, _TURNS, _WARPS = 8, True, 16  # columns that a program adds up, and how
_LOOPS, _BLOCK = 16, 1024
_DEEP, _ACROSS, _NARROW = 4, 256, 63  # rows and columns at once, of tensors with more columns than these
_DEPTH, _WIDE, _PROGRAMS = 4, 256, 1024
_ROWS, _LINES = 128, 128  # of a batch at once; before its lines


def here(tensor: Tensor) -> bool:
    """Whether a tensor is on a device with kernels: torch's CUDA builds bring Triton with them."""
    return tensor.is_cuda and _has_triton


def sums_up(tensor: Tensor, pieces: Sequence[Piece], *, batched: bool) -> bool:
    """Whether the kernels sum a tensor up that is held in these pieces."""
    if tensor.dtype not in FLOATS:
        return False
    if batched:
        one = len(pieces) == 1 and pieces[0].coarse and len(pieces[0].indices) > 1
        return one and 0 < tensor.numel() < tensor.shape[-1] << 29  # lines, which an order numbers with 30 bits
    return tensor.numel() == _summable(tuple(pieces))


@functools.lru_cache(maxsize=4096)
def _summable(pieces: tuple[Piece, ...]) -> int:
    """How many elements pieces have; -1 if one of them has too many, or few buckets."""
    sizes = [each.numel for each in pieces]
    return -1 if any(each.coarse or size >> 31 for each, size in zip(pieces, sizes, strict=True)) else sum(sizes)


_has_triton = importlib.util.find_spec("triton") is not None


def _kernels() -> Any:
    from contracts.observe import kernels  # Triton, which only a device needs

    return kernels


def of(place: torch.device) -> Device | None:
    """A device; None if Triton cannot run there, as without a C compiler. Without it the CPU does the work, slowly."""
    try:
        found = Device(place)
        found.ask(torch.zeros(2, device=place), whole((2,)), sketch=True)
        found.read()
    except Exception as error:  # whatever a compiler may raise
        print(f"rankproof: Triton does not run on {place}, so observing is slow: {error}"[:500], file=sys.stderr)  # noqa: T201
        return None
    return found


class Place(NamedTuple):
    """A place in the arena: the number of a chunk, the first place and how many."""

    chunk: int
    at: int
    size: int


class Sums:
    """What one launch finds of some tensors, number by number. It can be read when the device was.

    Args:
        bounds: where the parts of each tensor's squares begin; those of its fingerprint are as many.
        sketched: where the sketches are, of those that have one.
    """

    def __init__(self, device: Device, squares: Place, bounds: Sequence[int], sketched: Place | None = None) -> None:
        self.device, self.places, self.bounds, self.sketched = device, [squares], bounds, sketched
        self.bases: Any = 0

    @functools.cached_property
    def squares(self) -> list[float]:
        parts = self.device.found(self.places[0]).numpy()
        found: list[float] = numpy.add.reduceat(parts, self.bounds).tolist()
        return found

    @functools.cached_property
    def bits(self) -> list[str]:
        parts = self.device.found(self.places[1], torch.int64).numpy().view(numpy.uint64)
        found = numpy.add.reduceat(parts, self.bounds) + self.bases  # modulo 2^64
        return [f"{each:016x}" for each in found.tolist()]

    @functools.cached_property
    def sketches(self) -> Tensor:
        assert self.sketched is not None
        return self.device.found(self.sketched).view(-1, BUCKETS)


@dataclass(kw_only=True)
class Asked:
    """What is asked for of a tensor: what a launch finds under its number; its sketch may have another."""

    pieces: tuple[Piece, ...]
    wants_sketch: bool
    local: Tensor | None = None
    sums: Sums | None = None
    number: int = 0
    sketch_number: int = 0

    @property
    def squares(self) -> float:
        assert self.sums is not None
        return self.sums.squares[self.number]

    @property
    def bits(self) -> str:
        assert self.sums is not None
        return self.sums.bits[self.number]

    @property
    def sketch(self) -> Tensor:
        assert self.sums is not None
        return self.sums.sketches[self.sketch_number]


class Device:
    """What one recorder asks of one device."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.kernels = device, _kernels()
        self.chunks: list[Tensor] = []
        self.room = 0  # of the last of them
        self.used: list[int] = []
        self.waiting: list[Asked] = []
        self.hosts: list[Tensor] = []
        self.plans: dict[Any, Plan] = {}
        self.tables: dict[Any, _Tables] = {}
        self.orders: dict[torch.Size, _Order] = {}
        self.outputs: dict[Any, Batched] = {}
        self.compiled: dict[Any, Any] = {}  # None in Triton's interpreter

    # what is asked

    def keep(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Keep some numbers, int64 or as float64, until they are read."""
        flat = tensor.detach().reshape(-1)
        place = self.place(len(flat))
        self.at(place, torch.float64 if flat.is_floating_point() else torch.int64).copy_(flat)
        return lambda: self.found(place, torch.float64 if tensor.is_floating_point() else torch.int64)

    def ask(self, local: Tensor, pieces: tuple[Piece, ...], *, sketch: bool) -> Asked:
        """Ask for the squares, the fingerprint and, if that is wanted, the sketch of what is held of a tensor."""
        asked = Asked(local=local.detach().reshape(-1), pieces=pieces, wants_sketch=sketch)
        self.waiting.append(asked)
        return asked

    def numbered(self, ids: Sequence[Tensor], *, named: bool, key: int) -> tuple[Tensor, list[Callable[[], list[int]]]]:
        """The numbers by which rows of one or two tensors of ids are known; and what reads numbers of all ids of a row,
        these ones, and those of its halves: see `contracts.observe.recorder` and `contracts.observe.cut`.

        Args:
            named: whether rows are known by the first tensor in any case.
            key: of the hash.
        """
        first, last, count, two = ids[0], ids[-1], len(ids[0]), len(ids) == 2
        place = self.place(8 * count)
        chunk = self.chunks[place.chunk]
        tables = (
            odd(first.shape[1], self.device),
            odd(last.shape[1], self.device),
            powers(first.shape[1], self.device),
        )
        self.start("summed", (count, 1, 1), (
            first, last, first.stride(0), last.stride(0), first.shape[1], last.shape[1], *tables, chunk, place.at, count
        ), {"TWO": two, "PRIME": PRIME, "BLOCK": _BLOCK}, of=(first.dtype, last.dtype))  # fmt: skip
        self.start("numbered", (1, 1, 1), (chunk, place.at, count, key), {"TWO": two, "NAMED": named, "BLOCK": _WIDE})
        parts = [place._replace(at=place.at + at * count, size=size * count) for at, size in ((0, 1), (1, 1), (2, 2))]
        return self.at(parts[1], torch.int64), [
            functools.cache(functools.partial(lambda part: self.found(part, torch.int64).tolist(), each))
            for each in parts
        ]

    def few(self, tensors: Sequence[Tensor], kept: Tensor | None = None, place: Place | None = None) -> Tensor:
        """Eight numbers of each of up to eight contiguous tensors of one dtype, as float64; or, beside those that were
        `kept`, those of now, in a place."""
        beside, held = place is not None, [*tensors, *[tensors[0]] * 8][:8]
        kept = torch.empty(64, dtype=torch.float64, device=self.device) if kept is None else kept
        given = (kept, self.chunks[place.chunk] if place else kept, place.at if place else 0,
                 *(each.data_ptr() for each in held), *(each.numel() for each in held))  # fmt: skip
        value, _ = self.kernels.TYPES[tensors[0].dtype]
        self.start("few", (8, 1, 1), given, {"VALUE": value, "BESIDE": beside})
        return kept

    def few_beside(self, tensors: Sequence[Tensor], kept: Tensor) -> Callable[[], list[float]]:
        """What reads such numbers that were kept, [8, 8], and those of now."""
        place = self.place(128)
        self.few(tensors, kept, place)
        return functools.cache(lambda: self.found(place).tolist())

    def of_batch(self, output: Tensor, piece: Piece) -> Batched:
        """The launch for batched outputs of this shape."""
        of = (output.shape, output.dtype)
        known = self.outputs.get(of)
        if known is None:
            lines = output.shape[:-1]
            if len(self.outputs) > 1024:
                self.orders, self.outputs = {}, {}
            if lines not in self.orders:
                self.orders[lines] = _Order(piece, self)
            last = combined([(len(lines), piece.indices[-1])], odd=False).to(self.device)
            known = self.outputs[of] = Batched(self, output, self.orders[lines], last)
        return known

    def of_whole(self, name: str, dtype: torch.dtype, pieces: tuple[Piece, ...]) -> Plan:
        """The launch for a module's output that is held so, with its sketch."""
        return self._plan((name, dtype, pieces), dtype, [Asked(pieces=pieces, wants_sketch=True)])

    def _plan(self, key: Any, dtype: torch.dtype, asked: Sequence[Asked]) -> Plan:
        if key not in self.plans:
            if len(self.plans) > 256:
                self.plans.clear()
            self.plans[key] = Plan(self, dtype, asked)
        return self.plans[key]

    def launch(self) -> None:
        """Launch what waits, by dtype."""
        waiting, self.waiting = self.waiting, []
        for dtype in {each.local.dtype: None for each in waiting if each.local is not None}:
            mine = [each for each in waiting if each.local is not None and each.local.dtype == dtype]
            key = (dtype, *((each.pieces, each.wants_sketch) for each in mine))
            sums = self._plan(key, dtype, mine).launch(
                [each.local.data_ptr() for each in mine if each.local is not None]
            )
            sketched = itertools.count()
            for number, each in enumerate(mine):
                each.local, each.sums, each.number = None, sums, number
                each.sketch_number = next(sketched) if each.wants_sketch else 0

    def table(self, piece: Piece) -> _Tables:
        if piece not in self.tables:
            self.tables[piece] = _Tables.of(piece, self.device)
        return self.tables[piece]

    def start(
        self, name: str, grid: tuple[int, int, int], given: tuple[Any, ...], constants: Mapping[str, Any], *,
        of: Any = None, **how: int,
    ) -> None:  # fmt: skip
        """Start a kernel. Triton's own launcher looks at each argument in each call, which takes longer than the kernel
        of a small tensor. A kernel that it has compiled for arguments `of` a kind is therefore kept, and started; it
        asks the driver about each tensor, and about no address."""
        key = (name, *constants.values(), of)
        compiled = self.compiled.get(key)
        if compiled is not None and torch.cuda.current_device() == self.device.index:
            addresses = (each.data_ptr() if isinstance(each, Tensor) else each for each in given)
            compiled[grid](*addresses, *constants.values())
            return
        with self.current():
            self.compiled[key] = getattr(self.kernels, name)[grid](*given, **constants, **how)

    def current(self) -> contextlib.AbstractContextManager[object]:
        """Kernels are launched on the current device."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()

    # the arena

    def has_room(self, count: int) -> bool:
        return bool(self.chunks) and self.used[-1] + count <= self.room

    def place(self, count: int) -> Place:
        if not self.has_room(count):
            self.room = max(_CHUNK, count)
            self.chunks.append(torch.zeros(self.room, dtype=torch.float64, device=self.device))
            self.used.append(0)
        place = Place(len(self.chunks) - 1, self.used[-1], count)
        self.used[-1] += count
        return place

    def at(self, place: Place, dtype: torch.dtype = torch.float64) -> Tensor:
        return self.chunks[place.chunk].view(dtype)[place.at : place.at + place.size]

    def read(self) -> None:
        """Wait for all that was asked for."""
        self.launch()
        self.hosts = []
        for chunk, used in zip(self.chunks, self.used, strict=True):
            host = torch.empty(used, dtype=torch.float64, pin_memory=self.device.type == "cuda")
            self.hosts.append(host.copy_(chunk[:used], non_blocking=True))
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        self.chunks, self.used = [], []

    def found(self, place: Place, dtype: torch.dtype = torch.float64) -> Tensor:
        return self.hosts[place.chunk].view(dtype)[place.at : place.at + place.size]


class _Order:
    """The lines of batched outputs, [batch, ...] but for their columns, by their 64 buckets. It is made anew for other
    rows: one order of each shape is kept on the device."""

    def __init__(self, piece: Piece, device: Device) -> None:
        self.device = device
        self.of: Tensor | None = None
        count, *inner = piece.shape[:-1]
        lines = combined(list(enumerate(piece.indices[1:-1], start=1)), odd=False)
        bucket, minus = lines & (COARSE - 1), (lines & SIGN) != 0
        by_bucket, order = torch.sort(bucket, stable=True)
        starts = torch.searchsorted(by_bucket, torch.arange(COARSE + 1, dtype=by_bucket.dtype))
        held = ((order * 2 + minus[order]).int(), starts.int())
        self.order, self.starts = (each.to(device.device) for each in held)
        self.sizes = (count, math.prod(inner))
        self.found = torch.empty(_LINES + count * math.prod(inner), dtype=torch.int32, device=device.device)

    def by(self, rows: Tensor) -> Tensor:
        """The order of the lines of rows with these numbers."""
        if rows is not self.of:
            given = (rows, _signed(key_of(TENSOR, 0)), self.order, self.starts, self.found, *self.sizes)
            aligned = not rows.data_ptr() & 15
            self.device.start("ordered", (COARSE, 1, 1), given, {"BLOCK": _ROWS}, of=aligned)
            self.of = rows
        return self.found


class Batched:
    """A launch for batched outputs of one shape, [batch, ..., width], each row of which is known by its number."""

    def __init__(self, device: Device, output: Tensor, order: _Order, columns: Tensor) -> None:
        self.device, self.order, self.columns, self.width = device, order, columns, output.shape[-1]
        blocks, lines = -(-self.width // _WIDE), math.prod(order.sizes)
        depth = _DEPTH if blocks > 1 else 4 * _DEPTH  # lines at once; as a card was fastest (`observed_device --tune`)
        groups = max(1, min(_PROGRAMS // (COARSE * blocks), lines // (COARSE * depth)))
        self.size, self.grid = BUCKETS + COARSE * blocks * groups, (COARSE, blocks, groups)
        self.constants = {"DEPTH": depth, "BLOCK": _WIDE}
        self.kind = (output.dtype, self.width)

    def launch(self, output: Tensor, rows: Tensor) -> Place:
        """Sum up a contiguous output whose rows have these numbers, on its device: the sketch lies first, and squares
        follow. It is read when the device was."""
        order = self.order.by(rows)
        place = self.device.place(self.size)
        chunk, at = self.device.chunks[place.chunk], place.at
        given = (output, order, self.columns, chunk, at, at + BUCKETS, self.width)
        self.device.start("batched", self.grid, given, self.constants, of=(self.kind, not output.data_ptr() & 15))
        return place


def _signed(key: int) -> int:
    """An unsigned number of 64 bits as a signed one."""
    return key - (1 << 64) if key >> 63 else key


@functools.lru_cache(maxsize=64)
def odd(size: int, place: torch.device) -> Tensor:
    """The odd numbers that the elements of an input's rows are multiplied with."""
    return (hashed(key_of("rankproof input", 1), torch.arange(size)) | 1).to(place)


class _Tables(NamedTuple):
    """Of one piece as rows and columns, on the device, as `contracts.observe.kernels` has them."""

    rows: int
    width: int
    order: Tensor
    deepest: int
    columns: Tensor
    row_odd: Tensor
    column_odd: Tensor
    base: int

    @classmethod
    def of(cls, piece: Piece, device: torch.device) -> _Tables:
        axes = list(enumerate(piece.indices or (span(1),)))
        sizes = [len(each) for _, each in axes]
        at = min(range(1, len(axes) + 1), key=lambda cut: math.prod(sizes[:cut]) + math.prod(sizes[cut:]))
        rows, columns = (combined(each, odd=False) for each in (axes[:at], axes[at:]))
        row_odd, column_odd = (combined(each, odd=True) for each in (axes[:at], axes[at:]))
        held = (row_odd != 0).nonzero().reshape(-1)
        order = held[torch.sort(rows[held] & (BUCKETS - 1), stable=True)[1]]
        bucket = (rows[order] & (BUCKETS - 1)).long()
        counts = torch.bincount(bucket, minlength=BUCKETS)
        deepest = int(counts.max())
        lines = torch.full((deepest, BUCKETS), -1, dtype=torch.int32)
        deep = torch.arange(len(order)) - (counts.cumsum(0) - counts)[bucket]
        lines[deep, bucket] = (order * 2 + ((rows[order] & SIGN) != 0)).int()
        base = int(row_odd.sum()) * int(column_odd.sum())  # each element counts one more, so that a zero counts
        return cls(
            rows=len(rows), width=len(columns), order=lines.to(device), deepest=deepest,
            columns=torch.where(column_odd != 0, columns, -1).int().to(device),
            row_odd=row_odd.to(device), column_odd=column_odd.to(device), base=base,
        )  # fmt: skip

    def item(self, at: int) -> list[int]:
        held = (self.order, self.columns, self.row_odd, self.column_odd)
        order, columns, row_odd, column_odd = (each.data_ptr() for each in held)
        return [at, self.rows, self.width, order, self.deepest, columns, row_odd, column_odd]


def _parts(table: _Tables, numel: int) -> int:
    """How many programs have a part of a piece each, as `kernels.bits` divides it."""
    if table.width > _NARROW:
        return max(1, -(-table.width // _ACROSS) * -(-table.rows // (_LOOPS * _DEEP)))
    return max(1, -(-numel // (_LOOPS * _BLOCK)))


class Plan:
    """What a launch of some tensors of one dtype has for the kernels, but for where the tensors lie."""

    def __init__(self, device: Device, dtype: torch.dtype, asked: Sequence[Asked]) -> None:
        self.device, self.dtype = device, dtype
        self.owners: list[tuple[int, int]] = []  # for each item: the number of its tensor, and where in it it begins
        self.bounds: list[int] = []
        bases = [0] * len(asked)
        self.sketches = sum(each.wants_sketch for each in asked)
        self.tables: list[_Tables] = []
        items: list[list[int]] = []
        strips: list[tuple[int, int]] = []
        parts: list[tuple[int, int]] = []
        at = 0
        for owner, each in enumerate(asked):
            self.bounds.append(len(parts))
            for piece in each.pieces:
                table, item = device.table(piece), len(items)
                self.tables.append(table)
                self.owners.append((owner, piece.start * dtype.itemsize))
                bases[owner] += table.base
                items.append(table.item(at))
                parts += [(item, part) for part in range(_parts(table, piece.numel))]
                strips += [(item, strip) for strip in range(-(-table.width // _STRIP)) if each.wants_sketch]
            at += BUCKETS * each.wants_sketch
        self.bases = numpy.array([each % (1 << 64) for each in bases], dtype=numpy.uint64)
        self.parts, self.strips = len(parts), len(strips)
        self.held = [torch.tensor(each, dtype=of).to(device.device) for each, of in
                     ((items, torch.int64), (parts, torch.int32), (strips, torch.int32))]  # fmt: skip
        self.pointers: list[int] = []
        self.there = self.held[0]

    def launch(self, pointers: list[int]) -> Sums:
        """Sum up the tensors that lie there. What is found can be read when the device was."""
        device = self.device
        if pointers != self.pointers:
            begins = [pointers[owner] + start for owner, start in self.owners]
            held = torch.tensor(begins, dtype=torch.int64, pin_memory=device.device.type == "cuda")
            self.pointers, self.there = pointers, held.to(device.device, non_blocking=True)
        items, parts, strips = self.held
        value, bits = device.kernels.TYPES[self.dtype]
        place = device.place(2 * self.parts + BUCKETS * self.sketches)
        squares, sums = (Place(place.chunk, place.at + part, self.parts) for part in (0, self.parts))
        sketched = Place(place.chunk, sums.at + self.parts, BUCKETS * self.sketches) if self.sketches else None
        chunk = device.chunks[place.chunk]
        given = (items, self.there, parts, chunk, squares.at, sums.at)
        device.start("bits", (self.parts, 1, 1), given, {
            "VALUE": value, "BITS": bits, "LOOPS": _LOOPS, "BLOCK": _BLOCK, "DEPTH": _DEEP, "WIDE": _ACROSS,
            "NARROW": _NARROW,
        })  # fmt: skip
        if sketched is not None:
            constants = {"VALUE": value, "BLOCK": _STRIP, "BUCKETS": BUCKETS, "TURNS": _TURNS}
            device.start("parameters", (self.strips, 1, 1), (items, self.there, strips, chunk, sketched.at), constants,
                         num_warps=_WARPS)  # fmt: skip
        found = Sums(device, squares, self.bounds, sketched)
        found.places.append(sums)
        found.bases = self.bases
        return found

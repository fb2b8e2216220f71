"""The allocator's records: why an allocation failed, and whether `reserved` drifts away from `allocated`.

`allocated` is memory used by tensors, `reserved` is memory that the allocator has taken from the device. The gap
between them is unused. If the gap grows while the shape of the steps is constant, that is fragmentation; if both
numbers grow together, the model needs more. Neither one out-of-memory record nor two samples can distinguish these. All
sizes are in bytes.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from contracts.spec.errors import Refusals


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """A failed allocation as the allocator reported it, in bytes. None: not recorded.

    Args:
        requested: the size of the allocation; `capacity`: of the device; `free`: what the device had left.
        allocated, reserved: used by tensors, and held by this process's allocator, at that moment.
        own_overhead: used by this process outside the allocator (context, NCCL buffers).
    """

    requested: int
    capacity: int
    free: int | None
    allocated: int | None
    reserved: int | None
    own_overhead: int | None = None


@dataclass(frozen=True, kw_only=True)
class OomCause:
    """fragmentation: enough bytes were there, but in pieces. exhaustion: there were not enough. occupied: there would
    be enough, but another process has them."""

    word: Literal["fragmentation", "exhaustion", "occupied", "cannot say"]
    why: str


@dataclass(frozen=True, kw_only=True)
class MemorySample:
    """One sample of the allocator. Batch and sequence are the shape on which the memory of a step depends."""

    step: int
    batch: int
    sequence: int
    allocated: int
    reserved: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.batch, self.sequence

    @property
    def gap(self) -> int:
        return self.reserved - self.allocated


@dataclass(frozen=True, kw_only=True)
class AllocatorTrend:
    """The trend late in the run, under one shape. fragmenting: reserved drifts away from allocated. pressure: both grow
    together. steady: neither."""

    word: Literal["steady", "fragmenting", "pressure", "cannot say"]
    why: str


@dataclass(frozen=True, kw_only=True)
class FlagEffect:
    """Whether expandable_segments helped, by comparison of two runs of one shape."""

    word: Literal["helps", "does not help", "cannot say"]
    why: str


GIB = 2**30
SLACK = 0.01  # of reserved: growth below it is the allocator's rounding (2 MiB blocks, 20 MiB segments)
ROUNDING = 0.02  # of the capacity: some gap is always there, and releasing one this small would not help
OVERHEAD = 4 * GIB  # a process's context, NCCL and cuBLAS buffers together stay below it
FEWEST = 6  # samples under one shape; the last two thirds of them are compared with each other


def oom_cause(record: OutOfMemory) -> OomCause:
    """Why an allocation failed.

    Raises:
        Refused: for impossible numbers: negative, more allocated than reserved, more held than the device has.
    """
    _possible(record)
    free, allocated, reserved = record.free, record.allocated, record.reserved
    if free is None or allocated is None or reserved is None:
        missing = [name for name in ("free", "allocated", "reserved") if getattr(record, name) is None]
        return OomCause(word="cannot say", why=f"the record lacks {', '.join(missing)}")
    asked, gap = record.requested, reserved - allocated
    said = f"asked {_gib(asked)}, free {_gib(free)}, held and unused {_gib(gap)}, of {_gib(record.capacity)}"
    if asked <= free:
        return OomCause(word="cannot say", why=f"it would have fitted, so the record is of another moment: {said}")
    if asked <= free + gap and gap > ROUNDING * record.capacity:
        return OomCause(word="fragmentation", why=f"the bytes are there in pieces: {said}")
    overhead = record.own_overhead
    others = record.capacity - free - reserved - (overhead or 0)
    noise = OVERHEAD if overhead is None else ROUNDING * record.capacity
    if others > noise and asked <= free + gap + others:
        if overhead is None:
            return OomCause(word="cannot say", why=f"nobody knows whose {_gib(others)} are: {said}")
        return OomCause(word="occupied", why=f"another process holds {_gib(others)}: {said}")
    return OomCause(word="exhaustion", why=f"the bytes are not there: {said}")


def allocator_trend(samples: Sequence[MemorySample]) -> AllocatorTrend:
    """How the gap and the allocation develop late in a run, under one shape. The worst shape decides.

    The last third of a shape's samples is compared with the middle third. The first third is warm-up, in which every
    allocator grows.

    Raises:
        Refused: for samples with impossible numbers, or that are not in order of their steps.
    """
    _in_order(samples)
    shapes: dict[tuple[int, int], list[MemorySample]] = {}
    for sample in samples:
        shapes.setdefault(sample.shape, []).append(sample)
    enough = {shape: each for shape, each in shapes.items() if len(each) >= FEWEST}
    if not enough:
        most = max(map(len, shapes.values()), default=0)
        return AllocatorTrend(word="cannot say", why=f"at most {most} readbacks under one shape, {FEWEST} are needed")
    trends = [_trend_of(shape, each) for shape, each in enough.items()]
    worst = ("fragmenting", "pressure", "steady")
    return min(trends, key=lambda trend: worst.index(trend.word))


def expandable_effect(off: Sequence[MemorySample], on: Sequence[MemorySample]) -> FlagEffect:
    """Whether expandable_segments helped: under the same shapes the gap grows without it and does not grow with it.

    Raises:
        Refused: as `allocator_trend`.
    """
    without, with_ = allocator_trend(off), allocator_trend(on)
    shapes = [sorted({sample.shape for sample in run}) for run in (off, on)]
    if shapes[0] != shapes[1]:
        return FlagEffect(word="cannot say", why=f"other shapes without it ({shapes[0]}) than with it ({shapes[1]})")
    if "cannot say" in (without.word, with_.word):
        return FlagEffect(word="cannot say", why=f"without: {without.why}; with: {with_.why}")
    helps = without.word == "fragmenting" and with_.word != "fragmenting"
    words = f"without it {without.word} ({without.why}), with it {with_.word} ({with_.why})"
    return FlagEffect(word="helps" if helps else "does not help", why=words)


def _trend_of(shape: tuple[int, int], samples: Sequence[MemorySample]) -> AllocatorTrend:
    third = len(samples) // 3
    before, last = samples[-2 * third : -third], samples[-third:]

    def grown(name: Literal["gap", "allocated"]) -> float:
        middle, late = (statistics.median(int(getattr(sample, name)) for sample in part) for part in (before, last))
        return float(late - middle)

    gap, allocated = grown("gap"), grown("allocated")
    slack = SLACK * statistics.median(sample.reserved for sample in before)
    said = f"batch {shape[0]}, sequence {shape[1]}: gap {_gib(gap)}, allocated {_gib(allocated)} more late in the run"
    if gap > slack:
        return AllocatorTrend(word="fragmenting", why=said)
    return AllocatorTrend(word="pressure" if allocated > slack else "steady", why=said)


def _possible(record: OutOfMemory) -> None:
    found = Refusals()
    for name in ("requested", "capacity"):
        found.unless(getattr(record, name) > 0, name, getattr(record, name), "must be positive", "read it again")
    for name in ("free", "allocated", "reserved", "own_overhead"):
        size = getattr(record, name)
        found.unless(size is None or size >= 0, name, size, "must not be negative", "leave out what is not known")
    if record.allocated is not None and record.reserved is not None:
        words = f"exceeds reserved ({record.reserved})"
        found.unless(record.allocated <= record.reserved, "allocated", record.allocated, words, "are they swapped?")
    held = sum(size or 0 for size in (record.free, record.reserved, record.own_overhead))
    words = f"is less than free, reserved and overhead together ({held})"
    found.unless(held <= record.capacity, "capacity", record.capacity, words, "read all at one moment")
    found.raise_any()


def _in_order(samples: Sequence[MemorySample]) -> None:
    found = Refusals()
    for place, sample in enumerate(samples):
        name = f"samples[{place}]"
        words = f"exceeds reserved ({sample.reserved})"
        found.unless(0 <= sample.allocated <= sample.reserved, f"{name}.allocated", sample.allocated, words, "swapped?")
        if place:
            last = samples[place - 1].step
            found.unless(sample.step > last, f"{name}.step", sample.step, f"does not follow {last}", "sort by step")
    found.raise_any()


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"

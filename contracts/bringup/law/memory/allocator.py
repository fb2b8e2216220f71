"""What a memory record proves: fragmentation or exhaustion, and whether an allocator flag helped."""

from contracts.contract import contract
from contracts.law._support.answers import refusal_of
from contracts.spec.allocator import MemorySample, OutOfMemory
from contracts.spec.lifecycle import Lifecycle

MIB, GIB = 2**20, 2**30
H200, H100 = 140 * GIB, 79 * GIB  # what the driver shows of the 141 GB and 80 GB cards, rounded


def _oom(requested: int, free: int | None, allocated: int | None, reserved: int | None, own: int | None = GIB,
         capacity: int = H200) -> OutOfMemory:  # fmt: skip
    return OutOfMemory(
        requested=requested, capacity=capacity, free=free, allocated=allocated, reserved=reserved, own_overhead=own
    )


CAUSES: dict[str, tuple[OutOfMemory, tuple[str, ...]]] = {  # record → the right words
    # 2 GiB are requested; 1 GiB is free and 138 − 119 = 19 GiB are held in pieces
    "held-in-pieces": (_oom(2 * GIB, 1 * GIB, 119 * GIB, 138 * GIB), ("fragmentation",)),
    "held-in-pieces-h100": (_oom(3 * GIB, 512 * MIB, 61 * GIB, 77 * GIB, capacity=H100), ("fragmentation",)),
    # 16 GiB are requested; 1 free and 138 − 137.5 = 0.5 held make 1.5
    "nothing-left": (_oom(16 * GIB, 1 * GIB, 137 * GIB + 512 * MIB, 138 * GIB), ("exhaustion",)),
    # a large gap, and still not enough: 10 free + 18 held < 40
    "gap-but-too-small": (_oom(40 * GIB, 10 * GIB, 111 * GIB, 129 * GIB), ("exhaustion",)),
    # 8 GiB are requested; the 140 − 2 − 70 − 1 = 67 GiB that another process holds would be enough
    "stale-process": (_oom(8 * GIB, 2 * GIB, 69 * GIB, 70 * GIB), ("occupied", "cannot say")),
    "stale-process-or-overhead": (_oom(8 * GIB, 2 * GIB, 69 * GIB, 70 * GIB, own=None), ("occupied", "cannot say")),
    "nothing-left-overhead-unknown": (_oom(16 * GIB, 1 * GIB, 137 * GIB, 138 * GIB, own=None), ("exhaustion",)),
    "no-readback": (_oom(2 * GIB, 1 * GIB, None, None), ("cannot say",)),
    "reserved-alone": (_oom(2 * GIB, 1 * GIB, None, 138 * GIB), ("cannot say",)),
    # 20 GiB are free on the device: the numbers come from another moment or another device
    "would-have-fitted": (_oom(2 * GIB, 20 * GIB, 90 * GIB, 119 * GIB), ("cannot say",)),
}


@contract("MEM-04", asks="oom_cause", cases=CAUSES, source="hub")
def fragmentation_and_exhaustion_are_told_apart(stack: Lifecycle, record: OutOfMemory, words: tuple[str, ...]) -> None:
    """An out-of-memory record is classified as fragmentation if enough bytes were free in pieces, as exhaustion if they
    were not, and as "cannot say" if the record lacks the numbers to decide.

    The fixes are opposite: allocator policy for one; batch, recompute or sharding for the other. A dead process that
    still holds the device is neither.
    """
    found = stack.oom_cause(record)
    assert found.word in words, (
        f"the cause is {found.word}, expected {' or '.join(words)}: requested {record.requested / GIB:g} GiB, "
        f"free {record.free}, allocated {record.allocated}, reserved {record.reserved} of {record.capacity}"
    )
    assert found.why, f"the cause is {found.word}, with no reason given"


IMPOSSIBLE = {  # record, the impossible number
    "allocated-over-reserved": (_oom(2 * GIB, 1 * GIB, 138 * GIB, 119 * GIB), str(138 * GIB)),
    "more-than-the-card": (_oom(2 * GIB, 30 * GIB, 119 * GIB, 138 * GIB), str(H200)),
    "negative-free": (_oom(2 * GIB, -4096, 119 * GIB, 138 * GIB), "-4096"),
}


@contract("MEM-04a", asks="oom_cause", cases=IMPOSSIBLE, source="hub")
def a_record_that_cannot_be_is_refused(stack: Lifecycle, record: OutOfMemory, number: str) -> None:
    """A memory record with numbers that cannot all be true is refused, and the refusal names the number.

    Peak statistics of one moment beside a free figure of another, or swapped columns, give a confident wrong diagnosis.
    """
    refused = refusal_of(stack.oom_cause, record)
    assert number in str(refused), f"the refusal does not name {number}: {refused}"


def _series(allocated: tuple[int, ...], reserved: tuple[int, ...], shapes: tuple[tuple[int, int], ...] = ((2, 4096),)
            ) -> tuple[MemorySample, ...]:  # fmt: skip
    """Readbacks every 100 steps, in GiB; one (batch, sequence) shape for all of them, or one each."""
    each = shapes * len(allocated) if len(shapes) == 1 else shapes
    return tuple(
        MemorySample(step=100 * i, batch=batch, sequence=length, allocated=used * GIB, reserved=held * GIB)
        for i, (used, held, (batch, length)) in enumerate(zip(allocated, reserved, each, strict=True))
    )


FLAT = (90, 96, 96, 96, 96, 96, 96, 96, 96)
DRIFTS = _series(FLAT, (98, 104, 107, 110, 113, 117, 121, 126, 131))  # gap 8 8 11 14 17 21 25 30 35
SETTLES = _series(FLAT, (98, 104, 110, 112, 112, 112, 112, 112, 112))  # gap 8 8 14 16 16 16 16 16 16
GROWS = _series((60, 66, 72, 78, 84, 90, 96, 102, 108), (68, 74, 80, 86, 92, 98, 104, 110, 116))  # gap 8 throughout
SAWS = _series(FLAT, (98, 112, 104, 112, 104, 112, 104, 112, 104))  # gap 8 16 8 16 …
SHORT, LONG = (2, 4096), (2, 8192)
TWO_SHAPES = _series(  # gap 8 for the short shape, 20 for the long one: each flat
    (90, 90, 90, 90, 90, 90, 90, 110, 110, 110, 110, 110, 110, 110),
    (98, 98, 98, 98, 98, 98, 98, 130, 130, 130, 130, 130, 130, 130), (SHORT,) * 7 + (LONG,) * 7,
)  # fmt: skip
ONE_OF_TWO_DRIFTS = _series(  # long and short alternate; the gap of the long grows 9 … 33, that of the short stays 8
    (90, 110) * 9, tuple(n for k in range(9) for n in (98, 119 + 3 * k)), (SHORT, LONG) * 9,
)  # fmt: skip
EVERY_SHAPE_ONCE = _series(
    (90, 92, 94, 96, 98, 99), (98, 103, 108, 113, 118, 124), tuple((2, 1024 * n) for n in range(3, 9))
)

TRENDS: dict[str, tuple[tuple[MemorySample, ...], str]] = {
    "gap-grows": (DRIFTS, "fragmenting"),
    "gap-settles-after-warm-up": (SETTLES, "steady"),
    "both-grow": (GROWS, "pressure"),
    "gap-swings": (SAWS, "steady"),
    "longer-sequences-later": (TWO_SHAPES, "steady"),
    "one-shape-of-two-drifts": (ONE_OF_TWO_DRIFTS, "fragmenting"),
    "every-shape-once": (EVERY_SHAPE_ONCE, "cannot say"),
    "one-line": (DRIFTS[-1:], "cannot say"),
    "first-and-last": ((DRIFTS[0], DRIFTS[-1]), "cannot say"),
}


@contract("MEM-03a", asks="allocator_trend", cases=TRENDS, source="playbook")
def drift_is_the_gap_under_one_shape(stack: Lifecycle, samples: tuple[MemorySample, ...], word: str) -> None:
    """For readbacks of one shape, a gap between reserved and allocated bytes that still grows late in the run is
    fragmentation, and both numbers growing together is memory pressure. If neither grows, memory is steady. One or two
    readbacks cannot say.

    Late allocator drift looks like "the node became unreliable" unless the record names it. A longer sequence needs
    another pool and moves the gap once, and every allocator grows at the start; neither is drift.
    """
    found = stack.allocator_trend(samples)
    gaps = [(sample.reserved - sample.allocated) // GIB for sample in samples]
    assert found.word == word, f"the trend is {found.word}, expected {word}: gaps in GiB are {gaps} ({found.why})"


EFFECTS = {  # without expandable_segments, with it
    "gap-stops-growing": (DRIFTS, SETTLES, "helps"),
    "gap-grows-all-the-same": (DRIFTS, DRIFTS, "does not help"),
    "nothing-to-mend": (SETTLES, SETTLES, "does not help"),
    "model-grows-with-and-without": (GROWS, GROWS, "does not help"),
    "another-shape": (
        DRIFTS, _series(FLAT, (98, 104, 110, 112, 112, 112, 112, 112, 112), ((1, 4096),)), "cannot say",
    ),
    "one-out-of-memory-line-each": (DRIFTS[-1:], SETTLES[-1:], "cannot say"),
    "out-of-memory-then-none": (DRIFTS[-1:], SETTLES, "cannot say"),
}  # fmt: skip


@contract("MEM-03", asks="expandable_effect", cases=EFFECTS, source="playbook")
def expandable_segments_is_judged_by_the_gap(
    stack: Lifecycle, off: tuple[MemorySample, ...], on: tuple[MemorySample, ...], word: str
) -> None:
    """expandable_segments is judged to help if, at the same shape, the gap between reserved and allocated bytes grows
    without it and stops growing with it. A single out-of-memory line proves nothing.

    The flag reduces fragmentation and makes no model smaller. When both numbers grow together, the cause is model or
    activation pressure, and the flag gets the credit for what a smaller batch did.
    """
    found = stack.expandable_effect(off, on)
    assert found.word == word, f"the effect is {found.word!r}, expected {word!r} ({found.why})"

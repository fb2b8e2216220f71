"""Memory records: what is asked for, what a process holds, and their order."""

from dataclasses import replace

import pytest
from hypothesis import strategies as st

from contracts.spec import Refused
from contracts.spec.allocator import MemorySample, OutOfMemory, allocator_trend, oom_cause

GIB = 2**30


@st.composite
def records(draw: st.DrawFn) -> OutOfMemory:
    """Whole GiB that can be true together."""
    capacity = draw(st.integers(16, 140))
    reserved = draw(st.integers(0, capacity))
    own = draw(st.integers(0, min(3, capacity - reserved)))
    free = draw(st.integers(0, capacity - reserved - own))
    allocated = draw(st.integers(0, reserved))
    return OutOfMemory(
        requested=draw(st.integers(1, 40)) * GIB, capacity=capacity * GIB, free=free * GIB, allocated=allocated * GIB,
        reserved=reserved * GIB, own_overhead=own * GIB,
    )  # fmt: skip


def test_another_process_is_blamed_for_an_oom_only_if_it_holds_enough() -> None:
    """Of 80 GiB a process has 40, 2 of them unused, another one 30; 10 are free."""
    record = OutOfMemory(
        requested=42 * GIB, capacity=80 * GIB, free=10 * GIB, allocated=38 * GIB, reserved=40 * GIB, own_overhead=0
    )
    said = "asked {}.00 GiB, free 10.00 GiB, held and unused 2.00 GiB, of 80.00 GiB"
    occupied = oom_cause(record)
    assert (occupied.word, occupied.why) == ("occupied", f"another process holds 30.00 GiB: {said.format(42)}")
    exhausted = oom_cause(replace(record, requested=43 * GIB))
    assert (exhausted.word, exhausted.why) == ("exhaustion", f"the bytes are not there: {said.format(43)}")
    assert oom_cause(replace(record, requested=10 * GIB)).word == "cannot say", "all of it is free"
    assert oom_cause(replace(record, requested=10 * GIB + 1)).word == "fragmentation"


def test_rounding_of_the_allocator_is_not_called_fragmentation() -> None:
    """1.25 GiB of 140 are held and unused, which is never nothing; giving them back mends nothing."""
    record = OutOfMemory(
        requested=GIB, capacity=140 * GIB, free=0, allocated=137 * GIB, reserved=137 * GIB + 5 * GIB // 4
    )
    assert oom_cause(record).word == "exhaustion"


def series(gaps: list[int], allocated: int = 90) -> tuple[MemorySample, ...]:
    return tuple(
        MemorySample(step=i, batch=2, sequence=4096, allocated=allocated * GIB, reserved=(allocated + gap) * GIB)
        for i, gap in enumerate(gaps)
    )


@pytest.mark.parametrize("step", [3, 2], ids=["twice", "back"])
def test_readbacks_out_of_order_are_refused(step: int) -> None:
    samples = series([8] * 6)
    with pytest.raises(Refused, match="does not follow 3"):
        allocator_trend((*samples[:4], replace(samples[4], step=step), samples[5]))

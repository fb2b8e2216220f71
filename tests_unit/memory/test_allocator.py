"""Memory records: every possible one gets a word, no impossible one does, and more memory never makes it worse."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.spec.allocator import FEWEST, MemorySample, OutOfMemory, allocator_trend, expandable_effect, oom_cause
from contracts.spec.errors import Refused

SETTINGS = settings(max_examples=200)
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


@SETTINGS
@given(records())
def test_the_word_follows_from_where_the_bytes_are(record: OutOfMemory) -> None:
    word = oom_cause(record).word
    free, gap = record.free or 0, (record.reserved or 0) - (record.allocated or 0)
    if word == "fragmentation":
        assert free < record.requested <= free + gap
    if word == "cannot say":
        assert record.requested <= free
    if word == "exhaustion":
        assert record.requested > free


@SETTINGS
@given(records())
def test_asking_for_more_never_turns_exhaustion_into_fragmentation(record: OutOfMemory) -> None:
    if oom_cause(record).word == "exhaustion":
        assert oom_cause(replace(record, requested=record.requested + GIB)).word == "exhaustion"


def test_a_process_holds_what_is_missing_only_where_it_holds_enough_and_is_told_in_gib() -> None:
    """Of 80 GiB a process has 40, 2 of them unused, another one 30; 10 are free."""
    record = OutOfMemory(
        requested=42 * GIB, capacity=80 * GIB, free=10 * GIB, allocated=38 * GIB, reserved=40 * GIB, own_overhead=0
    )
    said = "asked {}.00 GiB, free 10.00 GiB, held and unused 2.00 GiB, of 80.00 GiB"
    occupied = oom_cause(record)
    assert (occupied.word, occupied.why) == ("occupied", f"another process holds 30.00 GiB: {said.format(42)}")
    exhausted = oom_cause(replace(record, requested=43 * GIB))
    assert (exhausted.word, exhausted.why) == ("exhaustion", f"the bytes are not there: {said.format(43)}")


def test_the_rounding_of_an_allocator_is_no_fragmentation() -> None:
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


@SETTINGS
@given(st.lists(st.integers(0, 40), min_size=FEWEST, max_size=30))
def test_readbacks_of_another_shape_in_between_change_nothing(gaps: list[int]) -> None:
    alone = series(gaps)
    mixed = []
    for sample in alone:
        other = replace(sample, sequence=8192, step=2 * sample.step, reserved=130 * GIB)
        mixed += [other, replace(sample, step=2 * sample.step + 1)]
    assert allocator_trend(mixed).word == allocator_trend(alone).word


@SETTINGS
@given(st.integers(1, 5), st.integers(FEWEST, 40))
def test_a_gap_that_grows_at_every_readback_is_drift(slope: int, count: int) -> None:
    assert allocator_trend(series([slope * i for i in range(count)], allocated=20)).word == "fragmenting"


def test_no_flag_is_credited_for_the_same_run_twice() -> None:
    for gaps in ([8] * 9, [3 * i for i in range(9)]):
        assert expandable_effect(series(gaps), series(gaps)).word == "does not help"


@pytest.mark.parametrize("step", [3, 2], ids=["twice", "back"])
def test_readbacks_out_of_order_are_refused(step: int) -> None:
    samples = series([8] * 6)
    with pytest.raises(Refused, match="does not follow 3"):
        allocator_trend((*samples[:4], replace(samples[4], step=step), samples[5]))

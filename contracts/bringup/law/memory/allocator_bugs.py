"""Diagnoses from one number: a single line, the last line, a maximum, or several shapes mixed."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.spec.allocator import AllocatorTrend, FlagEffect, OomCause
from contracts.stacks.reference.stack import Reference


@broken(Reference, "oom_cause", "MEM-04[held-in-pieces]: the cause is exhaustion, expected fragmentation")
def every_oom_is_exhaustion(oom_cause, self, record):
    """Every out-of-memory error is exhaustion: the gap is ignored, and the batch is halved for nothing."""
    return oom_cause(self, replace(record, allocated=record.reserved))


@broken(Reference, "oom_cause", "MEM-04[gap-but-too-small]: the cause is fragmentation, expected exhaustion")
def any_gap_is_fragmentation(oom_cause, self, record):
    """Over-correction: every large gap is fragmentation, whether or not it would have been enough."""
    if record.reserved and record.allocated and record.reserved - record.allocated > record.capacity // 10:
        return OomCause(word="fragmentation", why="much is held and unused")
    return oom_cause(self, record)


@broken(Reference, "oom_cause", "MEM-04[stale-process]: the cause is exhaustion, expected occupied")
def the_device_is_ours(oom_cause, self, record):
    """All memory that is not free is taken to be this process's: a dead run's memory reads as exhaustion."""
    if record.free is None or record.reserved is None:
        return oom_cause(self, record)
    ours = record.capacity - record.free - record.reserved
    return oom_cause(self, replace(record, own_overhead=ours))


@broken(Reference, "oom_cause", "MEM-04[no-readback]: the cause is occupied, expected cannot say")
def missing_is_zero(oom_cause, self, record):
    """A missing readback is stored as 0 allocated and 0 reserved, and another process gets the blame."""
    return oom_cause(self, replace(record, allocated=record.allocated or 0, reserved=record.reserved or 0))


@broken(Reference, "oom_cause", "MEM-04a[allocated-over-reserved]: was accepted, expected a refusal")
def swaps_back(oom_cause, self, record):
    """The larger number is taken as reserved: swapped columns, or readings of two moments, are accepted."""
    if record.allocated is None or record.reserved is None:
        return oom_cause(self, record)
    pair = sorted((record.allocated, record.reserved))
    return oom_cause(self, replace(record, allocated=pair[0], reserved=pair[1]))


def _one_shape(samples):
    return tuple(replace(sample, batch=1, sequence=1) for sample in samples)


@broken(Reference, "allocator_trend", "MEM-03a[longer-sequences-later]: the trend is fragmenting, expected steady")
def forgets_the_shape(allocator_trend, self, samples):
    """All readbacks form one series: a longer sequence, which needs another pool, reads as drift."""
    grown = _gap(samples[-1]) - _gap(samples[0])
    return AllocatorTrend(word="fragmenting", why="the gap grew") if grown > 0 else allocator_trend(self, samples)


def _gap(sample):
    return sample.reserved - sample.allocated


@broken(Reference, "allocator_trend", "MEM-03a[every-shape-once]: the trend is fragmenting, expected cannot say")
def pools_every_shape(allocator_trend, self, samples):
    """Over-correction: for a run in which every shape occurs once, all shapes are pooled to have a series to judge."""
    return allocator_trend(self, _one_shape(samples))


@broken(Reference, "allocator_trend", "MEM-03a[gap-grows]: the trend is steady, expected fragmenting", bugs=("PRV-23",))
def watches_allocated_alone(allocator_trend, self, samples):
    """Only allocated bytes are read: they stay flat until the run is out of memory."""
    return allocator_trend(self, tuple(replace(sample, reserved=sample.allocated) for sample in samples))


@broken(Reference, "allocator_trend", "MEM-03a[both-grow]: the trend is fragmenting, expected pressure")
def watches_reserved_alone(allocator_trend, self, samples):
    """Growth of reserved bytes counts as drift: a model that grows is given allocator flags."""
    return allocator_trend(self, tuple(replace(sample, allocated=0) for sample in samples))


@broken(Reference, "expandable_effect", "MEM-03[out-of-memory-then-none]: the effect is 'helps', expected 'cannot say'")
def one_line_proves(expandable_effect, self, off, on):
    """The run was out of memory without the flag and not with it, so the flag is said to help."""
    return FlagEffect(word="helps" if on[-1].reserved < off[-1].reserved else "does not help", why="the last line")


@broken(Reference, "expandable_effect", "MEM-03[nothing-to-mend]: the effect is 'helps', expected 'does not help'")
def on_and_steady_is_credited(expandable_effect, self, off, on):
    """The gap is steady with the flag, so the flag gets the credit, even if the gap never grew without it."""
    steady = self.allocator_trend(on).word == "steady"
    return FlagEffect(word="helps", why="steady with it") if steady else expandable_effect(self, off, on)


@broken(Reference, "expandable_effect", "MEM-03[another-shape]: the effect is 'helps', expected 'cannot say'")
def compares_across_shapes(expandable_effect, self, off, on):
    """The run with the flag had half the batch, and the flag gets the credit."""
    return expandable_effect(self, _one_shape(off), _one_shape(on))

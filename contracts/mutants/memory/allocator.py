"""Diagnoses from one number: a single line, the last line, a maximum, or several shapes mixed."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.allocator import AllocatorTrend, FlagEffect, MemorySample, OomCause, OutOfMemory
from contracts.stacks.reference.stack import Reference


@mutant(of="MEM-04", case="held-in-pieces", says="the cause is exhaustion, expected fragmentation")
class EveryOomIsExhaustion(Reference):
    """Every out-of-memory error is exhaustion: the gap is ignored, and the batch is halved for nothing."""

    def oom_cause(self, record: OutOfMemory) -> OomCause:
        return super().oom_cause(replace(record, allocated=record.reserved))


@mutant(of="MEM-04", case="gap-but-too-small", says="the cause is fragmentation, expected exhaustion")
class AnyGapIsFragmentation(Reference):
    """Over-correction: every large gap is fragmentation, whether or not it would have been enough."""

    def oom_cause(self, record: OutOfMemory) -> OomCause:
        if record.reserved and record.allocated and record.reserved - record.allocated > record.capacity // 10:
            return OomCause(word="fragmentation", why="much is held and unused")
        return super().oom_cause(record)


@mutant(of="MEM-04", case="stale-process", says="the cause is exhaustion, expected occupied")
class TheDeviceIsOurs(Reference):
    """All memory that is not free is taken to be this process's: a dead run's memory reads as exhaustion."""

    def oom_cause(self, record: OutOfMemory) -> OomCause:
        if record.free is None or record.reserved is None:
            return super().oom_cause(record)
        ours = record.capacity - record.free - record.reserved
        return super().oom_cause(replace(record, own_overhead=ours))


@mutant(of="MEM-04", case="no-readback", says="the cause is occupied, expected cannot say")
class MissingIsZero(Reference):
    """A missing readback is stored as 0 allocated and 0 reserved, and another process gets the blame."""

    def oom_cause(self, record: OutOfMemory) -> OomCause:
        return super().oom_cause(replace(record, allocated=record.allocated or 0, reserved=record.reserved or 0))


@mutant(of="MEM-04a", case="allocated-over-reserved", says="was accepted, expected a refusal")
class SwapsBack(Reference):
    """The larger number is taken as reserved: swapped columns, or readings of two moments, are accepted."""

    def oom_cause(self, record: OutOfMemory) -> OomCause:
        if record.allocated is None or record.reserved is None:
            return super().oom_cause(record)
        pair = sorted((record.allocated, record.reserved))
        return super().oom_cause(replace(record, allocated=pair[0], reserved=pair[1]))


def _one_shape(samples: tuple[MemorySample, ...]) -> tuple[MemorySample, ...]:
    return tuple(replace(sample, batch=1, sequence=1) for sample in samples)


@mutant(of="MEM-03a", case="longer-sequences-later", says="the trend is fragmenting, expected steady")
class ForgetsTheShape(Reference):
    """All readbacks form one series: a longer sequence, which needs another pool, reads as drift."""

    def allocator_trend(self, samples: tuple[MemorySample, ...]) -> AllocatorTrend:
        grown = _gap(samples[-1]) - _gap(samples[0])
        return AllocatorTrend(word="fragmenting", why="the gap grew") if grown > 0 else super().allocator_trend(samples)


def _gap(sample: MemorySample) -> int:
    return sample.reserved - sample.allocated


@mutant(of="MEM-03a", case="every-shape-once", says="the trend is fragmenting, expected cannot say")
class PoolsEveryShape(Reference):
    """Over-correction: for a run in which every shape occurs once, all shapes are pooled to have a series to judge."""

    def allocator_trend(self, samples: tuple[MemorySample, ...]) -> AllocatorTrend:
        return super().allocator_trend(_one_shape(samples))


@mutant(of="MEM-03a", case="gap-grows", says="the trend is steady, expected fragmenting", bugs=("PRV-23",))
class WatchesAllocatedAlone(Reference):
    """Only allocated bytes are read: they stay flat until the run is out of memory."""

    def allocator_trend(self, samples: tuple[MemorySample, ...]) -> AllocatorTrend:
        return super().allocator_trend(tuple(replace(sample, reserved=sample.allocated) for sample in samples))


@mutant(of="MEM-03a", case="both-grow", says="the trend is fragmenting, expected pressure")
class WatchesReservedAlone(Reference):
    """Growth of reserved bytes counts as drift: a model that grows is given allocator flags."""

    def allocator_trend(self, samples: tuple[MemorySample, ...]) -> AllocatorTrend:
        return super().allocator_trend(tuple(replace(sample, allocated=0) for sample in samples))


@mutant(of="MEM-03", case="out-of-memory-then-none", says="the effect is 'helps', expected 'cannot say'")
class OneLineProves(Reference):
    """The run was out of memory without the flag and not with it, so the flag is said to help."""

    def expandable_effect(self, off: tuple[MemorySample, ...], on: tuple[MemorySample, ...]) -> FlagEffect:
        return FlagEffect(word="helps" if on[-1].reserved < off[-1].reserved else "does not help", why="the last line")


@mutant(of="MEM-03", case="nothing-to-mend", says="the effect is 'helps', expected 'does not help'")
class OnAndSteadyIsCredited(Reference):
    """The gap is steady with the flag, so the flag gets the credit, even if the gap never grew without it."""

    def expandable_effect(self, off: tuple[MemorySample, ...], on: tuple[MemorySample, ...]) -> FlagEffect:
        steady = super().allocator_trend(on).word == "steady"
        return FlagEffect(word="helps", why="steady with it") if steady else super().expandable_effect(off, on)


@mutant(of="MEM-03", case="another-shape", says="the effect is 'helps', expected 'cannot say'")
class ComparesAcrossShapes(Reference):
    """The run with the flag had half the batch, and the flag gets the credit."""

    def expandable_effect(self, off: tuple[MemorySample, ...], on: tuple[MemorySample, ...]) -> FlagEffect:
        return super().expandable_effect(_one_shape(off), _one_shape(on))

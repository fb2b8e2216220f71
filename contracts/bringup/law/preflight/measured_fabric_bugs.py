"""Stacks whose fabric measurement reports more than was measured."""

from dataclasses import replace

from contracts.instruments.ranks import here
from contracts.law._bugs.broken import broken
from contracts.spec import FabricPass, Upset
from contracts.stacks.reference.stack import Reference


class _Passes(Reference):
    """A stack that changes a pass on its way out."""

    def changed(self, found: FabricPass) -> FabricPass:
        raise NotImplementedError

    def fabric_pass(self, message: int, rounds: int, timeout_s: float, upset: Upset) -> FabricPass:
        return self.changed(super().fabric_pass(message, rounds, timeout_s, upset))


@broken(
    _Passes,
    "changed",
    "PREF-03[1-mib-on-2]: busbw / algbw is 0.5000 over 2 ranks, expected 1.0000",
    "PREF-03[1-mib-on-4]: busbw / algbw is 0.7500 over 4 ranks, expected 1.5000",
)
def counts_the_bus_as_for_all_gather(changed, self, found):
    """Uses the factor of an all-gather, (n − 1)/n, for an all-reduce."""
    return replace(found, busbw=found.algbw * (found.ranks - 1) / found.ranks)


@broken(_Passes, "changed", "PREF-03[3-mib-on-3]: busbw / algbw is 2.0000 over 3 ranks, expected 1.3333")
def counts_a_large_worlds_bus(changed, self, found):
    """Uses 2, the factor's limit in a large world, which overstates busbw on three ranks by half."""
    return replace(found, busbw=found.algbw * 2)


@broken(_Passes, "changed", "PREF-03[one-element-on-4]: algbw is")
def takes_the_best_round(changed, self, found):
    """Reports the fastest round, so a link that stalls now and then is never seen."""
    algbw = found.message / min(found.seconds) / 1e9
    return replace(found, algbw=algbw, busbw=algbw * 2 * (found.ranks - 1) / found.ranks)


@broken(Reference, "fabric_pass", "PREF-03[one-element-on-4]: 10 rounds were kept, asked for 7")
def keeps_its_warm_up(fabric_pass, self, message, rounds, timeout_s, upset):
    """Counts the warm-up rounds that build rings and buffers."""
    return fabric_pass(self, message, rounds + 3, timeout_s, upset)


@broken(_Passes, "changed", "PREF-03b[on-rank-2-of-4]: accepts the sum, though rank 2")
def reports_without_looking(changed, self, found):
    """Reports every pass that ends as correct."""
    return replace(found, right=bool(found.seconds))


@broken(_Passes, "changed", "PREF-03b[on-the-first-of-4]: rank 1 of 4 accepts the sum, though rank 0")
def looks_on_rank_zero_alone(changed, self, found):
    """Only rank 0 checks its sum; the others report theirs as correct."""
    return found if here().rank == 0 else replace(found, right=bool(found.seconds))


@broken(Reference, "fabric_pass", "PREF-03b[on-the-first-of-4]: accepts the sum, though rank 0")
def looks_at_the_first_element(fabric_pass, self, message, rounds, timeout_s, upset):
    """Checks only element 0 of the sum, while a broken link damages the end of a message."""
    return fabric_pass(self, message, rounds, timeout_s, replace(upset, offset=0.0))


@broken(Reference, "fabric_pass", "PREF-03c[rank-0-of-3]: the limit is 0.5 s")
def waits_for_ever(fabric_pass, self, message, rounds, timeout_s, upset):
    """Runs on the default group with its 30-minute timeout and ignores the requested limit."""
    return fabric_pass(self, message, rounds, 60.0, upset)


@broken(Reference, "fabric_pass", "PREF-03c[rank-0-of-3]: of a pass that rank 0 did not join")
def gives_up_and_calls_it_good(fabric_pass, self, message, rounds, timeout_s, upset):
    """Reports a pass that ran out of time as correct."""
    found = fabric_pass(self, message, rounds, timeout_s, upset)
    return found if found.seconds else replace(found, right=True)


@broken(Reference, "fabric_reasons", "PREF-03a[just-below-the-floor]: is called fit")
def forgives_one_percent(fabric_reasons, self, measured):
    """Allows one percent below the floor, which is a lower floor."""
    floor = None if measured.floor is None else measured.floor * 0.99
    return fabric_reasons(self, replace(measured, floor=floor))


@broken(Reference, "fabric_reasons", "PREF-03a[slow-but-for-one-round]: is called fit")
def judges_the_best_round(fabric_reasons, self, measured):
    """Compares the fastest round with the floor."""
    return fabric_reasons(self, replace(measured, seconds=measured.seconds and (min(measured.seconds),)))


@broken(Reference, "fabric_reasons", "PREF-03a[one-slow-round-of-three]: is refused")
def judges_the_worst_round(fabric_reasons, self, measured):
    """Over-correction: judges the slowest round, so one round beside another job refuses the node."""
    return fabric_reasons(self, replace(measured, seconds=measured.seconds and (max(measured.seconds),)))


@broken(Reference, "fabric_reasons", "PREF-03a[fast-and-wrong]: is called fit")
def judges_speed_alone(fabric_reasons, self, measured):
    """Judges only the speed and ignores whether the sum was correct."""
    return fabric_reasons(self, replace(measured, right=True))


@broken(Reference, "fabric_reasons", "PREF-03a[no-floor-set]: is called fit")
def passes_what_has_no_floor(fabric_reasons, self, measured):
    """Passes every measurement when no floor is set."""
    return fabric_reasons(self, replace(measured, floor=measured.floor or 0.0))

"""Verdict code whose deviations forgive more, or less, than they say."""

from dataclasses import replace

from contracts.court.court import Court
from contracts.mutants._support.broken import broken


@broken(Court, "verdict", "GATE-10a[other-words]: verdict is conformant, expected violated")
def a_deviation_is_a_case(verdict, self, run, today):
    """A deviation is an id and a case, and forgives whatever breaks there."""
    wide = tuple(replace(each, says="*", tensors=()) for each in run.deviations)
    plain = tuple(replace(each, violations=()) for each in run.results)
    return verdict(self, replace(run, deviations=wide, results=plain), today)


def _first(result):
    return replace(result, violations=result.violations[:1])


@broken(Court, "verdict", "GATE-10a[one-more]: verdict is conformant, expected violated")
def the_first_violation_decides(verdict, self, run, today):
    """Compares the deviation with the first thing that is wrong, and forgives the rest."""
    return verdict(self, replace(run, results=tuple(map(_first, run.results))), today)


@broken(Court, "verdict", "GATE-10a[one-tensor-more]: verdict is conformant, expected violated")
def tensors_are_not_read(verdict, self, run, today):
    """Reads the words of a deviation and forgives every tensor that differs."""
    wide = tuple(replace(each, tensors=("*",) if each.tensors else ()) for each in run.deviations)
    return verdict(self, replace(run, deviations=wide), today)


@broken(Court, "verdict", "GATE-10a[no-words]: verdict is conformant, expected violated")
def no_words_are_any_words(verdict, self, run, today):
    """An entry that names no words is read as it was before there were words."""
    wide = tuple(replace(each, says=each.says or "*") for each in run.deviations)
    return verdict(self, replace(run, deviations=wide), today)


@broken(Court, "verdict", "GATE-10a[any-number]: verdict is violated, expected conformant")
def numbers_are_words(verdict, self, run, today):
    """Over-correction: `#` is a character, so that an entry holds for one machine's rounding."""
    exact = tuple(replace(each, says=each.says.replace("#", "number")) for each in run.deviations)
    return verdict(self, replace(run, deviations=exact), today)


@broken(Court, "verdict", "GATE-10b[not-offered]: verdict is conformant, expected violated")
def a_case_that_is_gone_is_quiet(verdict, self, run, today):
    """Keeps a deviation whose case the stack declines now."""
    judged = verdict(self, run, today)
    faults = tuple(fault for fault in judged.faults if "no longer offered" not in fault.words)
    return replace(judged, faults=faults, word=judged.word if faults else "conformant")


@broken(Court, "verdict", "GATE-10b[of-another-device]: verdict is violated, expected conformant")
def every_device_is_this_one(verdict, self, run, today):
    """Over-correction: an entry about GPUs is red wherever there is none."""
    here = tuple(replace(each, device="") for each in run.deviations)
    return verdict(self, replace(run, deviations=here), today)


@broken(Court, "verdict", "GATE-10b[fails-on-this-device]: verdict is conformant, expected violated")
def another_device_forgives_here(verdict, self, run, today):
    """What was declared for GPUs is forgiven on a CPU too."""
    return every_device_is_this_one().verdict(run, today)


@broken(Court, "verdict", "GATE-10b[of-another-version]: verdict is violated, expected conformant")
def every_version_is_this_one(verdict, self, run, today):
    """Over-correction: what an earlier version did wrong has to be wrong in this one."""
    all_versions = tuple(replace(each, versions=()) for each in run.deviations)
    return verdict(self, replace(run, deviations=all_versions), today)


@broken(Court, "verdict", "GATE-10b[fails-in-this-version]: verdict is conformant, expected violated")
def another_version_forgives_here(verdict, self, run, today):
    """What was declared for an earlier version is forgiven in a later one."""
    return every_version_is_this_one().verdict(run, today)


@broken(Court, "parts", "GATE-10c[five]: the violation names ['a', 'b', 'c'], expected")
def a_violation_is_its_words(parts, self, got, want):
    """A violation carries the three tensors that its words have room for."""
    return parts(self, got, want)[:3]


@broken(Court, "parts", "GATE-10c[lacking]: the violation names ['a'], expected")
def missing_tensors_have_no_name(parts, self, got, want):
    """Compares the tensors that both sides have."""
    return parts(self, got, {name: each for name, each in want.items() if name in got})

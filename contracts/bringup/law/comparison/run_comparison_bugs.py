"""Stacks that compare runs which are not comparable, or the reverse."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.stack import Reference


def _placed(receipt, host):
    machine = replace(receipt.provenance.machine, host=host)
    return replace(receipt, provenance=replace(receipt.provenance, machine=machine))


@broken(Reference, "compare", "CMP-01[another-region]: the runs are called same class", bugs=("PRV-34",))
def compares_by_lane_name(compare, self, base, candidate):
    """Compares by "the H200": two boxes with different software histories share one column."""
    return compare(self, _placed(base, "bench-1@us-west1-c"), _placed(candidate, "bench-1@us-west1-c"))


@broken(Reference, "compare", "CMP-01[another-box-of-one-region]: the runs are called same class")
def compares_by_region(compare, self, base, candidate):
    """Takes the region for the host."""

    def region(receipt):
        host = receipt.provenance.machine.host
        return _placed(receipt, host and f"any@{host.partition('@')[2]}")

    return compare(self, region(base), region(candidate))


@broken(Reference, "compare", "CMP-01[neither-says-its-host]: the runs are called same class")
def missing_equals_missing(compare, self, base, candidate):
    """Assumes that two runs without a stated host ran on the same one."""
    if base.provenance.machine.host is None and candidate.provenance.machine.host is None:
        return compare(self, _placed(base, "any@us-west1-c"), _placed(candidate, "any@us-west1-c"))
    return compare(self, base, candidate)


@broken(Reference, "compare", "CMP-01[another-mode]: the runs are called same class", bugs=("PRV-04",))
def forgets_whose_mixers_ran(compare, self, base, candidate):
    """Treats nemo_native and author_dp as one regime, though R layers run as Mamba in one of them."""
    return compare(self, base, replace(candidate, lane=replace(candidate.lane, mode=base.lane.mode)))


@broken(Reference, "compare", "CMP-01[not-compiled]: the runs are called same class")
def forgets_the_compiler(compare, self, base, candidate):
    """Treats compiled and uncompiled runs as one regime."""
    return compare(self, base, replace(candidate, lane=replace(candidate.lane, compile=base.lane.compile)))


@broken(Reference, "compare", "CMP-01[another-family]: the runs are called same class", bugs=("PRV-04", "PRV-05"))
def compares_by_nickname(compare, self, base, candidate):
    """Compares nicknames: both runs are called "dense", or "current", but the models differ."""
    alike = replace(candidate.lane, family=base.lane.family) if base.run == candidate.run else candidate.lane
    return compare(self, base, replace(candidate, lane=alike))


@broken(Reference, "compare", "CMP-01[all-three]: the comparison names ['host lineage'], expected")
def stops_at_the_first_difference(compare, self, base, candidate):
    """Names only the first differing part."""
    found = compare(self, base, candidate)
    return replace(found, differences=found.differences[:1])


@broken(Reference, "compare", "CMP-01[another-regime]: a ratio of 1.25 is given despite another launch regime")
def prints_the_ratio_anyway(compare, self, base, candidate):
    """Says "not comparable" and prints the ratio below it for orientation, and the ratio is what gets quoted."""
    ratio = (candidate.tokens_per_second or 0.0) / (base.tokens_per_second or 1.0)
    return replace(compare(self, base, candidate), ratio=ratio)


@broken(Reference, "compare", "CMP-01a[other-revision]: the runs are called changed class")
def makes_the_revision_a_class(compare, self, base, candidate):
    """Over-correction: two revisions never compare, so no regression is ever found."""
    found = compare(self, base, candidate)
    same = base.provenance.source == candidate.provenance.source
    return found if same else replace(found, standing="changed class", ratio=None)


@broken(Reference, "compare", "CMP-01a[slower]: the ratio is 1.25, expected 0.8")
def turns_the_ratio_around(compare, self, base, candidate):
    """Divides base by candidate, so a slower run reads as a faster one."""
    found = compare(self, base, candidate)
    return replace(found, ratio=found.ratio and 1 / found.ratio)


@broken(Reference, "compare", "CMP-01a[one-figure-withheld]: the ratio is 0.0, expected None")
def withheld_is_zero(compare, self, base, candidate):
    """Counts a withheld figure as 0: an infinite regression."""
    found = compare(self, base, candidate)
    return replace(found, ratio=found.ratio or 0.0)


@broken(Reference, "compare", "CMP-01b[a-narrower-model]: the notes next to the ratio are []", bugs=("PRV-04",))
def trusts_the_family(compare, self, base, candidate):
    """Notes no difference inside a family, so overrides that make another model are visible only in the receipts."""
    return replace(compare(self, base, candidate), besides=())


@broken(Reference, "compare", "CMP-01c[alike]: the ratio of equal runs has the notes")
def warns_always(compare, self, base, candidate):
    """Prints every property of both runs, equal or not."""
    found = compare(self, base, candidate)
    return replace(found, besides=(*found.besides, f"world {base.lane.world}, {candidate.lane.world}"))


@broken(Reference, "compare", "CMP-02[other-kernel-same-request]: the runs are called same class", bugs=("PRV-20",))
def compares_what_was_requested(compare, self, base, candidate):
    """Compares the requested backends: both runs asked for flash4, and one of them got it."""
    return compare(self, base, replace(candidate, backends=base.backends))


@broken(
    Reference, "compare", "CMP-02[same-version-other-build]: the runs are called same class", bugs=("PRV-31", "PRV-34")
)
def compares_version_strings(compare, self, base, candidate):
    """Compares version strings: two boxes with two checkouts share one."""
    versions = {each.name: each for each in base.provenance.components}
    alike = tuple(
        versions.get(each.name, each) if versions.get(each.name, each).version == each.version else each
        for each in candidate.provenance.components
    )
    return compare(self, base, replace(candidate, provenance=replace(candidate.provenance, components=alike)))


@broken(
    Reference, "compare", "CMP-02[build-proved-by-neither]: the runs are called same class", bugs=("PRV-31", "INS-04")
)
def unknown_equals_unknown(compare, self, base, candidate):
    """Treats two checkouts without a history as equal."""

    def proved(receipt):
        taken = receipt.provenance
        known = tuple(replace(each, build=each.build or "none") for each in taken.components)
        return replace(receipt, provenance=replace(taken, components=known))

    return compare(self, proved(base), proved(candidate))


@broken(Reference, "compare", "CMP-02[other-image]: the runs are called same class", bugs=("PRV-20",))
def trusts_the_benchmarks_name(compare, self, base, candidate):
    """Never looks at the image's digest, so an image rebuilt under the same name counts as the same."""
    taken = replace(candidate.provenance, image=base.provenance.image)
    return compare(self, base, replace(candidate, provenance=taken))


@broken(Reference, "compare", "CMP-02[torch-moved]: the runs are called not comparable; runtime provenance changed")
def calls_every_change_foreign(compare, self, base, candidate):
    """Over-correction: treats a changed package as another machine, and nobody asks which package it was."""
    found = compare(self, base, candidate)
    return found if found.standing == "same class" else replace(found, standing="not comparable")

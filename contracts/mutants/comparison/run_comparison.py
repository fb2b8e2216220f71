"""Stacks that compare runs which are not comparable, or the reverse."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.receipt import Comparison, Receipt
from contracts.stacks.reference.stack import Reference


def _placed(receipt: Receipt, host: str | None) -> Receipt:
    machine = replace(receipt.provenance.machine, host=host)
    return replace(receipt, provenance=replace(receipt.provenance, machine=machine))


@mutant(of="CMP-01", case="another-region", says="the runs are called same class", bugs=("PRV-34",))
class ComparesByLaneName(Reference):
    """Compares by "the H200": two boxes with different software histories share one column."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        return super().compare(_placed(base, "bench-1@us-west1-c"), _placed(candidate, "bench-1@us-west1-c"))


@mutant(of="CMP-01", case="another-box-of-one-region", says="the runs are called same class")
class ComparesByRegion(Reference):
    """Takes the region for the host."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        def region(receipt: Receipt) -> Receipt:
            host = receipt.provenance.machine.host
            return _placed(receipt, host and f"any@{host.partition('@')[2]}")

        return super().compare(region(base), region(candidate))


@mutant(of="CMP-01", case="neither-says-its-host", says="the runs are called same class")
class MissingEqualsMissing(Reference):
    """Assumes that two runs without a stated host ran on the same one."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        if base.provenance.machine.host is None and candidate.provenance.machine.host is None:
            return super().compare(_placed(base, "any@us-west1-c"), _placed(candidate, "any@us-west1-c"))
        return super().compare(base, candidate)


@mutant(of="CMP-01", case="another-mode", says="the runs are called same class", bugs=("PRV-04",))
class ForgetsWhoseMixersRan(Reference):
    """Treats nemo_native and author_dp as one regime, though R layers run as Mamba in one of them."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        return super().compare(base, replace(candidate, lane=replace(candidate.lane, mode=base.lane.mode)))


@mutant(of="CMP-01", case="not-compiled", says="the runs are called same class")
class ForgetsTheCompiler(Reference):
    """Treats compiled and uncompiled runs as one regime."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        return super().compare(base, replace(candidate, lane=replace(candidate.lane, compile=base.lane.compile)))


@mutant(of="CMP-01", case="another-family", says="the runs are called same class", bugs=("PRV-04", "PRV-05"))
class ComparesByNickname(Reference):
    """Compares nicknames: both runs are called "dense", or "current", but the models differ."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        alike = replace(candidate.lane, family=base.lane.family) if base.run == candidate.run else candidate.lane
        return super().compare(base, replace(candidate, lane=alike))


@mutant(of="CMP-01", case="all-three", says="the comparison names ['host lineage'], expected")
class StopsAtTheFirstDifference(Reference):
    """Names only the first differing part."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        found = super().compare(base, candidate)
        return replace(found, differences=found.differences[:1])


@mutant(of="CMP-01", case="another-regime", says="a ratio of 1.25 is given despite another launch regime")
class PrintsTheRatioAnyway(Reference):
    """Says "not comparable" and prints the ratio below it for orientation, and the ratio is what gets quoted."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        ratio = (candidate.tokens_per_second or 0.0) / (base.tokens_per_second or 1.0)
        return replace(super().compare(base, candidate), ratio=ratio)


@mutant(of="CMP-01a", case="other-revision", says="the runs are called changed class")
class MakesTheRevisionAClass(Reference):
    """Over-correction: two revisions never compare, so no regression is ever found."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        found = super().compare(base, candidate)
        same = base.provenance.source == candidate.provenance.source
        return found if same else replace(found, standing="changed class", ratio=None)


@mutant(of="CMP-01a", case="slower", says="the ratio is 1.25, expected 0.8")
class TurnsTheRatioAround(Reference):
    """Divides base by candidate, so a slower run reads as a faster one."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        found = super().compare(base, candidate)
        return replace(found, ratio=found.ratio and 1 / found.ratio)


@mutant(of="CMP-01a", case="one-figure-withheld", says="the ratio is 0.0, expected None")
class WithheldIsZero(Reference):
    """Counts a withheld figure as 0: an infinite regression."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        found = super().compare(base, candidate)
        return replace(found, ratio=found.ratio or 0.0)


@mutant(of="CMP-01b", case="a-narrower-model", says="the notes next to the ratio are []", bugs=("PRV-04",))
class TrustsTheFamily(Reference):
    """Notes no difference inside a family, so overrides that make another model are visible only in the receipts."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        return replace(super().compare(base, candidate), besides=())


@mutant(of="CMP-01c", case="alike", says="the ratio of equal runs has the notes")
class WarnsAlways(Reference):
    """Prints every property of both runs, equal or not."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        found = super().compare(base, candidate)
        return replace(found, besides=(*found.besides, f"world {base.lane.world}, {candidate.lane.world}"))


@mutant(of="CMP-02", case="other-kernel-same-request", says="the runs are called same class", bugs=("PRV-20",))
class ComparesWhatWasRequested(Reference):
    """Compares the requested backends: both runs asked for flash4, and one of them got it."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        return super().compare(base, replace(candidate, backends=base.backends))


@mutant(of="CMP-02", case="same-version-other-build", says="the runs are called same class", bugs=("PRV-31", "PRV-34"))
class ComparesVersionStrings(Reference):
    """Compares version strings: two boxes with two checkouts share one."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        versions = {each.name: each for each in base.provenance.components}
        alike = tuple(
            versions.get(each.name, each) if versions.get(each.name, each).version == each.version else each
            for each in candidate.provenance.components
        )
        return super().compare(base, replace(candidate, provenance=replace(candidate.provenance, components=alike)))


@mutant(of="CMP-02", case="build-proved-by-neither", says="the runs are called same class", bugs=("PRV-31", "INS-04"))
class UnknownEqualsUnknown(Reference):
    """Treats two checkouts without a history as equal."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        def proved(receipt: Receipt) -> Receipt:
            taken = receipt.provenance
            known = tuple(replace(each, build=each.build or "none") for each in taken.components)
            return replace(receipt, provenance=replace(taken, components=known))

        return super().compare(proved(base), proved(candidate))


@mutant(of="CMP-02", case="other-image", says="the runs are called same class", bugs=("PRV-20",))
class TrustsTheBenchmarksName(Reference):
    """Never looks at the image's digest, so an image rebuilt under the same name counts as the same."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        taken = replace(candidate.provenance, image=base.provenance.image)
        return super().compare(base, replace(candidate, provenance=taken))


@mutant(of="CMP-02", case="torch-moved", says="the runs are called not comparable; runtime provenance changed")
class CallsEveryChangeForeign(Reference):
    """Over-correction: treats a changed package as another machine, and nobody asks which package it was."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        found = super().compare(base, candidate)
        return found if found.standing == "same class" else replace(found, standing="not comparable")

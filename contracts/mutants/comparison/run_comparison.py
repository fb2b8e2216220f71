"""Stacks that put numbers of different things side by side."""

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
    """ "The H200" is the H200: two boxes with different software histories share one column."""

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
    """Two runs that do not say where they ran ran on the same host."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        if base.provenance.machine.host is None and candidate.provenance.machine.host is None:
            return super().compare(_placed(base, "any@us-west1-c"), _placed(candidate, "any@us-west1-c"))
        return super().compare(base, candidate)


@mutant(of="CMP-01", case="another-mode", says="the runs are called same class", bugs=("PRV-04",))
class ForgetsWhoseMixersRan(Reference):
    """nemo_native and author_dp are one regime to it, and R layers are Mamba in one of them."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        return super().compare(base, replace(candidate, lane=replace(candidate.lane, mode=base.lane.mode)))


@mutant(of="CMP-01", case="not-compiled", says="the runs are called same class")
class ForgetsTheCompiler(Reference):
    """Compiled or not is a detail of one regime."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        return super().compare(base, replace(candidate, lane=replace(candidate.lane, compile=base.lane.compile)))


@mutant(of="CMP-01", case="another-family", says="the runs are called same class", bugs=("PRV-04", "PRV-05"))
class ComparesByNickname(Reference):
    """Both runs were called "dense", or "current": the words are equal, the models are not."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        alike = replace(candidate.lane, family=base.lane.family) if base.run == candidate.run else candidate.lane
        return super().compare(base, replace(candidate, lane=alike))


@mutant(of="CMP-01", case="all-three", says="it names ['host lineage'], expected")
class StopsAtTheFirstDifference(Reference):
    """Names one part, and the next after that one is mended."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        found = super().compare(base, candidate)
        return replace(found, differences=found.differences[:1])


@mutant(of="CMP-01", case="another-regime", says="a ratio of 1.25 stands across launch regime")
class PrintsTheRatioAnyway(Reference):
    """Says "not comparable" and prints the ratio below it, for orientation. The ratio is what gets quoted."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        ratio = (candidate.tokens_per_second or 0.0) / (base.tokens_per_second or 1.0)
        return replace(super().compare(base, candidate), ratio=ratio)


@mutant(of="CMP-01a", case="other-revision", says="the runs are called changed class")
class MakesTheRevisionAClass(Reference):
    """The over-correction: two revisions never compare, so no regression is ever found."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        found = super().compare(base, candidate)
        same = base.provenance.source == candidate.provenance.source
        return found if same else replace(found, standing="changed class", ratio=None)


@mutant(of="CMP-01a", case="slower", says="the ratio is 1.25, expected 0.8")
class TurnsTheRatioAround(Reference):
    """Base over candidate: a slower run reads as a faster one."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        found = super().compare(base, candidate)
        return replace(found, ratio=found.ratio and 1 / found.ratio)


@mutant(of="CMP-01a", case="one-figure-withheld", says="the ratio is 0.0, expected None")
class WithheldIsZero(Reference):
    """A figure that was withheld counts as 0: an infinite regression."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        found = super().compare(base, candidate)
        return replace(found, ratio=found.ratio or 0.0)


@mutant(of="CMP-01b", case="a-narrower-model", says="beside the ratio stands []", bugs=("PRV-04",))
class TrustsTheFamily(Reference):
    """One family, one column: overrides that make another model of it are in the receipts, for who looks."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        return replace(super().compare(base, candidate), besides=())


@mutant(of="CMP-01c", case="alike", says="beside the ratio of like runs stands")
class WarnsAlways(Reference):
    """Prints every circumstance of both runs, equal or not."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        found = super().compare(base, candidate)
        return replace(found, besides=(*found.besides, f"world {base.lane.world}, {candidate.lane.world}"))


@mutant(of="CMP-02", case="other-kernel-same-request", says="the runs are called same class", bugs=("PRV-20",))
class ComparesWhatWasRequested(Reference):
    """Both asked for flash4. One of them got it."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        return super().compare(base, replace(candidate, backends=base.backends))


@mutant(of="CMP-02", case="same-version-other-build", says="the runs are called same class", bugs=("PRV-31", "PRV-34"))
class ComparesVersionStrings(Reference):
    """Two boxes, two checkouts, one version string."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        versions = {each.name: each for each in base.provenance.components}
        alike = tuple(
            versions.get(each.name, each) if versions.get(each.name, each).version == each.version else each
            for each in candidate.provenance.components
        )
        return super().compare(base, replace(candidate, provenance=replace(candidate.provenance, components=alike)))


@mutant(of="CMP-02", case="build-proved-by-neither", says="the runs are called same class", bugs=("PRV-31",))
class UnknownEqualsUnknown(Reference):
    """Neither checkout has a history, so they are equal."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        def proved(receipt: Receipt) -> Receipt:
            taken = receipt.provenance
            known = tuple(replace(each, build=each.build or "none") for each in taken.components)
            return replace(receipt, provenance=replace(taken, components=known))

        return super().compare(proved(base), proved(candidate))


@mutant(of="CMP-02", case="other-image", says="the runs are called same class", bugs=("PRV-20",))
class TrustsTheBenchmarksName(Reference):
    """The image was rebuilt under the same name: its digest is kept and never looked at."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        taken = replace(candidate.provenance, image=base.provenance.image)
        return super().compare(base, replace(candidate, provenance=taken))


@mutant(of="CMP-02", case="torch-moved", says="the runs are called not comparable; runtime provenance changed")
class CallsEveryChangeForeign(Reference):
    """The over-correction: a moved package reads as another machine, and nobody asks which package it was."""

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        found = super().compare(base, candidate)
        return found if found.standing == "same class" else replace(found, standing="not comparable")

"""Stacks that average gradients over the wrong ranks or divide by the wrong number."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.topology import Degrees, GradientReduction, Kind, Layout
from contracts.stacks.reference.stack import Reference


class _Averages(Reference):
    """Changes the reduction that the reference gives for one kind of parameter."""

    kind: Kind

    def gradient_reduction(
        self, degrees: Degrees, world: int, layout: Layout, rank: int, kind: Kind
    ) -> GradientReduction:
        right = super().gradient_reduction(degrees, world, layout, rank, kind)
        return self.wrong(right, degrees, world, rank) if kind == self.kind else right

    def wrong(self, right: GradientReduction, degrees: Degrees, world: int, rank: int) -> GradientReduction:
        raise NotImplementedError


@mutant(of="TOPO-09", case="borrowed-cp2-tp2-ep4", says="divided by 4, expected 8", bugs=("DPS-08",))
class ScalesWithoutContext(_Averages):
    """Sums over dp · cp and scales by 1/dp: with cp 2 every gradient is twice too large."""

    kind = "dense"

    def wrong(self, right: GradientReduction, degrees: Degrees, world: int, rank: int) -> GradientReduction:
        return replace(right, divisor=right.divisor // degrees.cp)


@mutant(of="TOPO-09", case="borrowed-cp-without-dp", says="summed over [3], expected [1, 3, 5, 7]", bugs=("PG-04",))
class ReducesOnlyWithDp(_Averages):
    """Switches the reducer on by dp > 1: with cp 4 and dp 1 gradients are never reduced."""

    kind = "dense"

    def wrong(self, right: GradientReduction, degrees: Degrees, world: int, rank: int) -> GradientReduction:
        dp = world // (degrees.pp * degrees.cp * degrees.tp)
        return right if dp > 1 else GradientReduction(ranks=(rank,), divisor=1)


@mutant(of="TOPO-09", case="own-axis-pp3-tp2", says="summed over [1, 3, 5, 7, 9, 11], expected [9, 11]")
class AveragesOverStages(_Averages):
    """Reduces over world / tp ranks: gradients of equal shape from different stages are averaged."""

    kind = "dense"

    def wrong(self, right: GradientReduction, degrees: Degrees, world: int, rank: int) -> GradientReduction:
        ranks = tuple(range(rank % degrees.tp, world, degrees.tp))
        return GradientReduction(ranks=ranks, divisor=len(ranks))


@mutant(of="TOPO-09", case="own-axis-2x4", says="summed over [0, 1, 2, 3, 4, 5, 6, 7], expected [2, 6]")
class AveragesOverTensorRanks(_Averages):
    """Sums over a whole stage, TP ranks included: shards of different columns are added up."""

    kind = "dense"

    def wrong(self, right: GradientReduction, degrees: Degrees, world: int, rank: int) -> GradientReduction:
        stage = world // degrees.pp
        first = rank - rank % stage
        return GradientReduction(ranks=tuple(range(first, first + stage)), divisor=stage)


@mutant(of="TOPO-09a", case="cp2-tp2-ep4-etp1", says="divided by 4, expected 8", bugs=("DPS-02", "DPS-03", "DPS-04"))
class DividesByHolders(_Averages):
    """Over-correction: experts have their own mesh, so their gradient is averaged over that mesh, 1/edp."""

    kind = "expert"

    def wrong(self, right: GradientReduction, degrees: Degrees, world: int, rank: int) -> GradientReduction:
        return replace(right, divisor=len(right.ranks))


@mutant(of="TOPO-09a", case="etp-follows-tp", says="divided by 256, expected 16", bugs=("DPS-05",))
class DividesTwice(_Averages):
    """An expert's bucket is divided once more after it was divided as part of a mixed bucket."""

    kind = "expert"

    def wrong(self, right: GradientReduction, degrees: Degrees, world: int, rank: int) -> GradientReduction:
        return replace(right, divisor=right.divisor**2)


@mutant(of="TOPO-09a", case="one-holder", says="divided by 1, expected 4", bugs=("DPS-06",))
class NeverDividesExperts(_Averages):
    """Experts are marked as not reduced by data parallelism, and the mean is skipped along with the sum."""

    kind = "expert"

    def wrong(self, right: GradientReduction, degrees: Degrees, world: int, rank: int) -> GradientReduction:
        return replace(right, divisor=1)


@mutant(of="TOPO-09a", case="etp-above-tp", says="divided by 6, expected 12")
class CountsSendersByExpertAxes(_Averages):
    """Over-correction: divides by edp · ep, the ranks that send tokens, which is dp · cp only where etp equals tp."""

    kind = "expert"

    def wrong(self, right: GradientReduction, degrees: Degrees, world: int, rank: int) -> GradientReduction:
        return replace(right, divisor=len(right.ranks) * degrees.ep)


@mutant(
    of="TOPO-09a", case="last-stage", says="summed over [16, 18, 20, 22, 24, 26, 28, 30], expected [18, 22, 26, 30]"
)
class ReducesExpertsAsDense(_Averages):
    """Expert gradients go through the dense bucket: different experts are averaged into one another."""

    kind = "expert"

    def wrong(self, right: GradientReduction, degrees: Degrees, world: int, rank: int) -> GradientReduction:
        return super().gradient_reduction(degrees, world, "borrowed", rank, "dense")


@mutant(of="TOPO-09b", case="pp2-tp2-ep3", says="the dense gradient of rank 25 is divided by 9, expected 3")
class CountsExpertsAsReaders(_Averages):
    """Divides by world / (pp · tp), the readers of the borrowed layout, where EP ranks share one batch."""

    kind = "dense"

    def wrong(self, right: GradientReduction, degrees: Degrees, world: int, rank: int) -> GradientReduction:
        return replace(right, divisor=right.divisor * degrees.ep)


@mutant(of="TOPO-09b", case="tp4-ep2-etp1", says="the expert gradient of rank 13 is summed over [5, 13, 21]")
class ForgetsTensorReplicas(_Averages):
    """With etp 1 the TP ranks hold whole experts; their replicas are never summed and drift apart."""

    kind = "expert"

    def wrong(self, right: GradientReduction, degrees: Degrees, world: int, rank: int) -> GradientReduction:
        return super().gradient_reduction(degrees, world, "own-axis", rank, "dense")


@mutant(of="TOPO-09c", case="borrowed-pp3-tp2-ep3", says="rank 6 is not in its own expert sum over [0]")
class ForgetsTheStage(_Averages):
    """Enumerates the holders of an expert shard from rank 0 for every stage."""

    kind = "expert"

    def wrong(self, right: GradientReduction, degrees: Degrees, world: int, rank: int) -> GradientReduction:
        stage = world // degrees.pp
        return replace(right, ranks=tuple(member % stage for member in right.ranks))


@mutant(of="TOPO-09c", case="own-axis-tp3-ep2-etp1", says="rank 1 over")
class ReducesFromTensorRankZero(_Averages):
    """Only the first TP rank sums the replicas of an expert; the others sum their own dp group and disagree."""

    kind = "expert"

    def wrong(self, right: GradientReduction, degrees: Degrees, world: int, rank: int) -> GradientReduction:
        if rank % degrees.tp == 0:
            return right
        return super().gradient_reduction(degrees, world, "own-axis", rank, "dense")

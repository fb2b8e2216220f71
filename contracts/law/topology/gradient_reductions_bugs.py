"""Stacks that average gradients over the wrong ranks or divide by the wrong number."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.spec import Degrees, GradientReduction, Kind, Layout
from contracts.stacks.reference.stack import Reference


class _OfDense(Reference):
    """Changes the reduction that the reference gives for one kind of parameter."""

    kind: Kind = "dense"

    def gradient_reduction(
        self, degrees: Degrees, world: int, layout: Layout, rank: int, kind: Kind
    ) -> GradientReduction:
        right = super().gradient_reduction(degrees, world, layout, rank, kind)
        return self.wrong(right, degrees, world, rank) if kind == self.kind else right

    def wrong(self, right: GradientReduction, degrees: Degrees, world: int, rank: int) -> GradientReduction:
        raise NotImplementedError


class _OfExperts(_OfDense):
    kind = "expert"


@broken(_OfDense, "wrong", "TOPO-09[borrowed-cp2-tp2-ep4]: divided by 4, expected 8", bugs=("DPS-08",))
def scales_without_context(wrong, self, right, degrees, world, rank):
    """Sums over dp · cp and scales by 1/dp: with cp 2 every gradient is twice too large."""
    return replace(right, divisor=right.divisor // degrees.cp)


@broken(_OfDense, "wrong", "TOPO-09[borrowed-cp-without-dp]: summed over [3], expected [1, 3, 5, 7]", bugs=("PG-04",))
def reduces_only_with_dp(wrong, self, right, degrees, world, rank):
    """Switches the reducer on by dp > 1: with cp 4 and dp 1 gradients are never reduced."""
    dp = world // (degrees.pp * degrees.cp * degrees.tp)
    return right if dp > 1 else GradientReduction(ranks=(rank,), divisor=1)


@broken(_OfDense, "wrong", "TOPO-09[own-axis-pp3-tp2]: summed over [1, 3, 5, 7, 9, 11], expected [9, 11]")
def averages_over_stages(wrong, self, right, degrees, world, rank):
    """Reduces over world / tp ranks: gradients of equal shape from different stages are averaged."""
    ranks = tuple(range(rank % degrees.tp, world, degrees.tp))
    return GradientReduction(ranks=ranks, divisor=len(ranks))


@broken(_OfDense, "wrong", "TOPO-09[own-axis-2x4]: summed over [0, 1, 2, 3, 4, 5, 6, 7], expected [2, 6]")
def averages_over_tensor_ranks(wrong, self, right, degrees, world, rank):
    """Sums over a whole stage, TP ranks included: shards of different columns are added up."""
    stage = world // degrees.pp
    first = rank - rank % stage
    return GradientReduction(ranks=tuple(range(first, first + stage)), divisor=stage)


@broken(
    _OfExperts, "wrong", "TOPO-09a[cp2-tp2-ep4-etp1]: divided by 4, expected 8", bugs=("DPS-02", "DPS-03", "DPS-04")
)
def divides_by_holders(wrong, self, right, degrees, world, rank):
    """Over-correction: experts have their own mesh, so their gradient is averaged over that mesh, 1/edp."""
    return replace(right, divisor=len(right.ranks))


@broken(_OfExperts, "wrong", "TOPO-09a[etp-follows-tp]: divided by 256, expected 16", bugs=("DPS-05",))
def divides_twice(wrong, self, right, degrees, world, rank):
    """An expert's bucket is divided once more after it was divided as part of a mixed bucket."""
    return replace(right, divisor=right.divisor**2)


@broken(_OfExperts, "wrong", "TOPO-09a[one-holder]: divided by 1, expected 4", bugs=("DPS-06",))
def never_divides_experts(wrong, self, right, degrees, world, rank):
    """Experts are marked as not reduced by data parallelism, and the mean is skipped along with the sum."""
    return replace(right, divisor=1)


@broken(_OfExperts, "wrong", "TOPO-09a[etp-above-tp]: divided by 6, expected 12")
def counts_senders_by_expert_axes(wrong, self, right, degrees, world, rank):
    """Over-correction: divides by edp · ep, the ranks that send tokens, which is dp · cp only where etp equals tp."""
    return replace(right, divisor=len(right.ranks) * degrees.ep)


@broken(
    _OfExperts, "wrong", "TOPO-09a[last-stage]: summed over [16, 18, 20, 22, 24, 26, 28, 30], expected [18, 22, 26, 30]"
)
def reduces_experts_as_dense(wrong, self, right, degrees, world, rank):
    """Expert gradients go through the dense bucket: different experts are averaged into one another."""
    return Reference.gradient_reduction(self, degrees, world, "borrowed", rank, "dense")


@broken(_OfDense, "wrong", "TOPO-09b[pp2-tp2-ep3]: the dense gradient of rank 25 is divided by 9, expected 3")
def counts_experts_as_readers(wrong, self, right, degrees, world, rank):
    """Divides by world / (pp · tp), the readers of the borrowed layout, where EP ranks share one batch."""
    return replace(right, divisor=right.divisor * degrees.ep)


@broken(_OfExperts, "wrong", "TOPO-09b[tp4-ep2-etp1]: the expert gradient of rank 13 is summed over [5, 13, 21]")
def forgets_tensor_replicas(wrong, self, right, degrees, world, rank):
    """With etp 1 the TP ranks hold whole experts; their replicas are never summed and drift apart."""
    return Reference.gradient_reduction(self, degrees, world, "own-axis", rank, "dense")


@broken(_OfExperts, "wrong", "TOPO-09c[borrowed-pp3-tp2-ep3]: rank 6 is not in its own expert sum over [0]")
def forgets_the_stage(wrong, self, right, degrees, world, rank):
    """Enumerates the holders of an expert shard from rank 0 for every stage."""
    stage = world // degrees.pp
    return replace(right, ranks=tuple(member % stage for member in right.ranks))


@broken(_OfExperts, "wrong", "TOPO-09c[own-axis-tp3-ep2-etp1]: rank 1 over")
def reduces_from_tensor_rank_zero(wrong, self, right, degrees, world, rank):
    """Only the first TP rank sums the replicas of an expert; the others sum their own dp group and disagree."""
    if rank % degrees.tp == 0:
        return right
    return Reference.gradient_reduction(self, degrees, world, "own-axis", rank, "dense")

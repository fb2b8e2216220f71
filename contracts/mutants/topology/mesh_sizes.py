"""Stacks that compute the mesh wrongly in one place: sizes, data parallelism, idle ranks."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.errors import refuse
from contracts.spec.recipe import Recipe
from contracts.spec.topology import Degrees, Layout, Topology
from contracts.stacks.reference.stack import Reference


def _with_size(answer: Topology, axis: str, size: int) -> Topology:
    return replace(answer, sizes={**answer.sizes, axis: size})


@mutant(of="TOPO-01", case="own-axis-pp3-tp2-ep4", says="the world has 72")
class CountsReplicasOverEp(Reference):
    """Reports ep · dp as the size of the dp axis, as borrowed stacks do, on a mesh where EP has its own axis."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        answer = super().topology(degrees, world, layout)
        return _with_size(answer, "dp", answer.dp * degrees.ep)


@mutant(of="TOPO-01", case="borrowed-tp2-ep4-etp1-on-4", says="a legal input was refused", bugs=("PG-14",))
class MultipliesEpIntoTheModel(Reference):
    """The validator requires tp · pp · ep to divide the world, although EP overlaps data parallelism."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        if world % (degrees.tp * degrees.pp * degrees.ep):
            raise refuse("world", world, "must be a multiple of tp * pp * ep", "change a degree")
        return super().topology(degrees, world, layout)


@mutant(of="TOPO-01", case="borrowed-cp4-tp2-ep8-etp1-on-8", says="ep has size 4, asked for 8")
class ShrinksEpToDp(Reference):
    """Over-correction: silently shrinks EP to dp · cp, although EP may borrow TP ranks too."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        room = world // (degrees.pp * degrees.tp)
        return super().topology(replace(degrees, ep=min(degrees.ep, room)), world, layout)


@mutant(of="TOPO-01a", case="own-axis-pp2-tp2-on-10", says="expected a refusal")
class RoundsTheWorldDown(Reference):
    """dp = world // (pp · ep · tp): the ranks that are left over belong to no group."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        product = degrees.pp * degrees.tp * degrees.ep * degrees.cp
        return super().topology(degrees, world - world % product, layout)


@mutant(of="TOPO-01a", case="borrowed-tp2-ep4-on-4", says="expected a refusal")
class ChecksDenseAxesAlone(Reference):
    """The validator checks only tp · pp · cp; experts that do not fit are cut down instead of refused."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        tensor = degrees.etp or degrees.tp
        if layout == "borrowed" and world % (degrees.pp * tensor * degrees.ep):
            degrees = replace(degrees, ep=1, etp=0)
        return super().topology(degrees, world, layout)


@mutant(of="TOPO-01a", case="borrowed-dense-alone", says="the refusal does not name the world (8)")
class RefusesWithoutNumbers(Reference):
    """The refusal says which rule was broken but not by which numbers."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        try:
            return super().topology(degrees, world, layout)
        except ValueError:
            raise refuse("world", "as launched", "does not fit the axes", "change a degree") from None


@mutant(of="TOPO-01b", case="pp2-tp3-ep5-on-8", says="leaves out [10]")
class StopsAtTheFirstRefusal(Reference):
    """Raises on the first relation that fails: the second one costs another launch."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        dense = degrees.pp * degrees.cp * degrees.tp
        if world % dense:
            raise refuse("world", world, f"must be a multiple of pp * cp * tp ({dense})", "change a degree")
        return super().topology(degrees, world, layout)


@mutant(of="TOPO-02", case="pp2-tp2-on-4", says="dp is 2, expected 1", bugs=("DPS-01",))
class ForgetsPipeline(Reference):
    """The optimizer's DP size is not divided by pp: the H200 bring-up bug."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        return super().topology(replace(degrees, pp=1), world, layout)


@mutant(of="TOPO-02", case="pp2-tp2-on-8", says="dp is 1, expected 2")
class DividesByPipelineTwice(Reference):
    """Over-correction: pp is threaded into the optimizer's routing, which received a DP size without it already."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        answer = super().topology(degrees, world, layout)
        return replace(answer, dp=max(1, answer.dp // degrees.pp))


@mutant(of="TOPO-02", case="tp2-ep2-on-8", says="dp is 4, expected 2")
class ForgetsExperts(Reference):
    """Counts EP ranks as data-parallel ranks, though on its own axis they share one batch."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        answer = super().topology(degrees, world, layout)
        return replace(answer, dp=answer.dp * degrees.ep)


@mutant(of="TOPO-02a", case="pp2-tp2-ep4-on-64", says="dp is 4, expected 16")
class DividesByBorrowedExperts(Reference):
    """The rule of the own-axis layout, world / (pp · tp · ep), used where EP is borrowed."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        answer = super().topology(degrees, world, layout)
        return replace(answer, dp=world // (degrees.pp * degrees.tp * degrees.ep))


@mutant(of="TOPO-02a", case="pp3-cp2-tp2-ep4-on-96", says="dp is 16, expected 8")
class CountsContextAsData(Reference):
    """Counts CP ranks as readers of other data: the loader deals every sequence to cp ranks as cp sequences."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        answer = super().topology(degrees, world, layout)
        return replace(answer, dp=answer.dp * degrees.cp)


@mutant(of="TOPO-02b", case="pp2-tp2-ep4-follows-tp-on-64", says="expert dp is 8, expected 4", bugs=("EPD-04",))
class UnsetEtpMeansOne(Reference):
    """An unset expert TP degree means 1 to the mesh and "follow TP" to the recipe that left it unset."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        return super().topology(replace(degrees, etp=degrees.etp or 1), world, layout)


@mutant(of="TOPO-02b", case="pp3-cp2-tp2-ep4-on-96", says="expert dp is 2, expected 4")
class GivesExpertsContext(Reference):
    """Divides the expert replicas by cp, though CP ranks are folded into EP and expert DP."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        answer = super().topology(degrees, world, layout)
        return replace(answer, expert_dp=max(1, answer.expert_dp // degrees.cp))


@mutant(of="TOPO-02b", case="pp2-tp2-ep4-etp1-on-64", says="expert dp is 4, expected 8")
class ExpertsAlwaysFollowTp(Reference):
    """Over-correction: experts are split over TP even where the recipe says etp 1."""

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        return super().topology(replace(degrees, etp=degrees.tp), world, layout)


@mutant(of="TOPO-10", case="one-sequence-a-rank", says="a legal input was refused")
class WantsAccumulation(Reference):
    """Over-correction: demands more than one microbatch per step, so one sequence per rank counts as idle."""

    def divide(self, recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
        dp = super().divide(recipe, degrees, world, layout)
        if recipe.batch.total <= recipe.batch.micro * dp:
            raise refuse("batch.total", recipe.batch.total, f"must exceed batch.micro * dp ({dp})", "add sequences")
        return dp


@mutant(of="TOPO-10", case="borrowed-cp4-ep8", says="divide gives dp 16, expected 4")
class DealsSequencesToContext(Reference):
    """Gives CP ranks sequences of their own when it divides the batch."""

    def divide(self, recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
        return super().divide(recipe, degrees, world, layout) * degrees.cp


@mutant(of="TOPO-10a", case="sequence-4095-over-tp2", says="expected a refusal", bugs=("CMP-03",))
class LeavesTheLastShardShort(Reference):
    """Rounds a sequence up to its shards: the last rank holds fewer tokens, or none, and compiles another graph."""

    def divide(self, recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
        shards = degrees.cp * degrees.tp
        rounded = -(-recipe.seq_length // shards) * shards
        return super().divide(replace(recipe, seq_length=rounded), degrees, world, layout)


@mutant(of="TOPO-10a", case="batch-smaller-than-dp", says="expected a refusal")
class DealsShortBatches(Reference):
    """Checks the micro batch but never the global one: some ranks get no sequence of the step."""

    def divide(self, recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
        batch = replace(recipe.batch, total=recipe.batch.micro * world)
        return super().divide(replace(recipe, batch=batch), degrees, world, layout)


@mutant(of="TOPO-10a", case="experts-12-over-ep16", says="expected a refusal")
class LeavesRanksWithoutExperts(Reference):
    """Rounds the experts up to the EP degree: the last ranks of every EP group hold none."""

    def divide(self, recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
        moe = recipe.moe
        if moe is not None:
            moe = replace(moe, experts=-(-moe.experts // degrees.ep) * degrees.ep)
        return super().divide(replace(recipe, moe=moe), degrees, world, layout)


@mutant(of="TOPO-01b", case="pp2-tp3-ep5-on-8", says="names 2 of 6 and 10, expected one")
class DeclaresTheFirstRefusal(Reference):
    """Declares that it names the first misfit, and names both."""

    conventions = {"misfits": "first"}

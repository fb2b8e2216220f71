"""Stacks with one fault in a recipe: another model, an unchecked relation, a value edited in place."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.errors import Refused, refuse
from contracts.spec.launch import Lane, Launch, Reread
from contracts.spec.recipe import Optim, Recipe
from contracts.spec.topology import Degrees, Layout
from contracts.stacks.reference.stack import Reference


@mutant(of="REC-01", case="rope-theta", says="has rope_theta 10000, expected 500000")
class UsesTheUsualTheta(Reference):
    """The recipe does not state rope theta, and the launcher's default is 10000."""

    def preset(self, name: str, acknowledge: tuple[str, ...]) -> Recipe:
        return replace(super().preset(name, acknowledge), rope_theta=10_000)


@mutant(of="REC-01", case="kv-groups", says="has kv_groups 56, expected 8")
class HasNoGroups(Reference):
    """Grouped queries are off: 56 heads with 56 keys and values, seven times the KV cache, under the same name."""

    def preset(self, name: str, acknowledge: tuple[str, ...]) -> Recipe:
        return replace(super().preset(name, acknowledge), kv_groups=56)


class Divides(Reference):
    """A stack that changes what it is asked to divide before it checks; how, says `wrong`."""

    def divide(self, recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
        recipe, degrees = self.wrong(recipe, degrees)
        return super().divide(recipe, degrees, world, layout)

    def wrong(self, recipe: Recipe, degrees: Degrees) -> tuple[Recipe, Degrees]:
        return recipe, degrees


@mutant(of="REC-02", case="kv-12-over-tp8", says="was accepted, expected a refusal", bugs=("ROP-18",))
class ChecksHeadsAlone(Divides):
    """TP is checked against the heads only, not the KV groups, and fails in the middle of a forward pass."""

    def wrong(self, recipe: Recipe, degrees: Degrees) -> tuple[Recipe, Degrees]:
        return replace(recipe, kv_groups=recipe.heads), degrees


@mutant(of="REC-02", case="kv-8-over-tp12-though-replicated", says="was accepted, expected a refusal")
class ReplicatesAnyNumber(Divides):
    """Over-correction: declared replication disables the check, even where TP is not a multiple of the groups."""

    def wrong(self, recipe: Recipe, degrees: Degrees) -> tuple[Recipe, Degrees]:
        return (replace(recipe, kv_groups=recipe.heads) if recipe.replicate_kv else recipe), degrees


@mutant(of="REC-02", case="sequence-4032-over-cp5-tp2", says="was accepted, expected a refusal", bugs=("CMP-03",))
class LeavesOneRankWithoutTokens(Divides):
    """The sequence is padded up to what the ranks need, so the last rank gets only padding, or nothing."""

    def wrong(self, recipe: Recipe, degrees: Degrees) -> tuple[Recipe, Degrees]:
        shards = degrees.cp * degrees.tp
        return replace(recipe, seq_length=-(-recipe.seq_length // shards) * shards), degrees


@mutant(of="REC-02", case="ssm-groups-without-m", says="was accepted, expected a refusal")
class ForgetsThatRHasGroups(Divides):
    """SSM groups are checked only where the pattern has an M, but an R block has them too."""

    def wrong(self, recipe: Recipe, degrees: Degrees) -> tuple[Recipe, Degrees]:
        skips = "M" not in recipe.pattern
        return (replace(recipe, replicate_ssm_groups=True, mamba=replace(recipe.mamba, groups=1)) if skips else recipe,
                degrees)  # fmt: skip


@mutant(of="REC-02", case="experts-12-over-ep8", says="was accepted, expected a refusal", bugs=("ARG-26",))
class ChecksTheWrongDegree(Divides):
    """The number of experts is checked against tp instead of ep."""

    def wrong(self, recipe: Recipe, degrees: Degrees) -> tuple[Recipe, Degrees]:
        return recipe, replace(degrees, ep=degrees.tp)


@mutant(of="REC-02a", case="kv-9-of-56", says="was accepted, expected a refusal", bugs=("ARG-27",))
class ValidatesUnderAssert(Reference):
    """The relations between fields are asserts, which `python -O` removes: 9 groups of 56 heads start to train."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        kept = {key: value for key, value in lane.overrides.items() if key != "kv_groups"}
        return super().launch(recipe, replace(lane, overrides=kept))


@mutant(of="REC-02a", case="top-17-of-16", says="was accepted, expected a refusal")
class ClampsTopK(Reference):
    """A top-k above the number of experts is lowered to it: every token goes to every expert, and routing learns
    nothing.
    """

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        experts = recipe.moe.experts if recipe.moe else 0
        asked = dict(lane.overrides)
        if "moe.top_k" in asked:
            asked["moe.top_k"] = str(min(int(asked["moe.top_k"]), experts))
        return super().launch(recipe, replace(lane, overrides=asked))


@mutant(of="REC-02b", case="declared-replication-of-kv", says="a legal input was refused")
class RefusesReplication(Divides):
    """Over-correction of ROP-18: TP above the KV groups is refused even where replication is declared."""

    def wrong(self, recipe: Recipe, degrees: Degrees) -> tuple[Recipe, Degrees]:
        return replace(recipe, replicate_kv=False), degrees


@mutant(of="REC-02b", case="latent-attention-has-no-kv-groups", says="a legal input was refused")
class ChecksGroupsThatDoNotExist(Divides):
    """Over-correction: KV groups are checked under latent attention, which has none."""

    def wrong(self, recipe: Recipe, degrees: Degrees) -> tuple[Recipe, Degrees]:
        return replace(recipe, mla=None), degrees


class RefusesFirst(Reference):
    """What a stack does that raises at the first fault it finds."""

    def divide(self, recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
        try:
            return super().divide(recipe, degrees, world, layout)
        except Refused as refused:
            raise Refused(refused.refusals[:1]) from None


@mutant(of="REC-02c", case="tensor-expert-sequence", says="the refusal leaves out ep or moe.experts, seq_length")
class StopsAtTheFirstAxis(RefusesFirst):
    """Each refusal names one fault, so each fault costs a start: tp, then ep, then the sequence."""


@mutant(of="REC-02c", case="pipeline-batch", says="the refusal leaves out batch.total")
class ChecksTheBatchLater(Reference):
    """The batch is checked only when the loader is built, after the pipeline's refusal has been fixed."""

    def divide(self, recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
        try:
            return super().divide(recipe, degrees, world, layout)
        except Refused as refused:
            kept = [refusal for refusal in refused.refusals if refusal.field != "batch.total"]
            raise Refused(kept or refused.refusals) from None


@mutant(of="REC-02d", case="three-relations", says="the refusal leaves out")
class StopsAtTheFirstField(Reference):
    """Each of the recipe's rules raises on its own, so a refusal names one fault."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        try:
            return super().launch(recipe, lane)
        except Refused as refused:
            raise Refused(refused.refusals[:1]) from None


@mutant(of="REC-03", case="native", says="changed the recipe")
class EditsTheRecipe(Reference):
    """The launch writes an override into its recipe, and the next lane starts from it."""

    def preset(self, name: str, acknowledge: tuple[str, ...]) -> Recipe:
        return replace(super().preset(name, acknowledge))  # a copy: the presets outlive this mutant

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        if "optim.lr" in lane.overrides:
            object.__setattr__(recipe, "optim", Optim(lr=float(lane.overrides["optim.lr"])))
        return super().launch(recipe, lane)


@mutant(of="REC-03", case="sparse", says="after a launch")
class RemembersTheLastLaunch(Reference):
    """The resolver stores what was last launched under a name, including overrides."""

    def __init__(self) -> None:
        self.seed: int | None = None

    def preset(self, name: str, acknowledge: tuple[str, ...]) -> Recipe:
        recipe = super().preset(name, acknowledge)
        return recipe if self.seed is None else replace(recipe, seed=self.seed)

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        self.seed = int(lane.overrides.get("seed", recipe.seed))
        return super().launch(recipe, lane)


@mutant(of="REC-03a", case="shape", says="the trainer reads norm_eps 1e-06 as 1e-05", bugs=("PRV-06",))
class LosesAFieldOfTheShape(Reference):
    """One field of the shape is not written: a checkpoint rebuilds another model without an error."""

    def read_back(self, argv: tuple[str, ...]) -> Reread:
        read = super().read_back(argv)
        return replace(read, recipe=replace(read.recipe, norm_eps=1e-5))


@mutant(of="REC-03a", case="sparse", says="the trainer reads dsa", bugs=("ARG-10",))
class KeepsTheFirstOfAList(Reference):
    """Only the first value of a list arrives, because the reader expects a single word."""

    def read_back(self, argv: tuple[str, ...]) -> Reread:
        read = super().read_back(argv)
        dsa = read.recipe.dsa
        return replace(read, recipe=replace(read.recipe, dsa=dsa and replace(dsa, a_ranks=dsa.a_ranks[:1])))


@mutant(of="REC-03a", case="text", says="a legal input was refused")
class TakesNoBlanks(Reference):
    """The argv is split at blanks on its way, so a path with a blank becomes two words."""

    def read_back(self, argv: tuple[str, ...]) -> Reread:
        words = " ".join(argv).split(" ")
        if len(words) != len(argv):
            raise refuse("argv", words, "has words that belong to no flag", "quote them")
        return super().read_back(argv)

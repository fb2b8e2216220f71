"""Stacks with one fault in a recipe: another model, an unchecked relation, a value edited in place."""

from dataclasses import replace

from contracts.contract import mutant
from contracts.law._bugs.broken import broken, with_attributes
from contracts.spec import Degrees, Lane, Launch, Layout, Optim, Recipe, Refused, refuse
from contracts.stacks.reference.stack import Reference


@broken(Reference, "preset", "REC-01[rope-theta]: has rope_theta 10000, expected 500000")
def uses_the_usual_theta(preset, self, name, acknowledge):
    """The recipe does not state rope theta, and the launcher's default is 10000."""
    return replace(preset(self, name, acknowledge), rope_theta=10_000)


@broken(Reference, "preset", "REC-01[kv-groups]: has kv_groups 56, expected 8")
def has_no_groups(preset, self, name, acknowledge):
    """Grouped queries are off: 56 heads with 56 keys and values, seven times the KV cache, under the same name."""
    return replace(preset(self, name, acknowledge), kv_groups=56)


class Divides(Reference):
    """A stack that changes what it is asked to divide before it checks; how, says `wrong`."""

    def divide(self, recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
        recipe, degrees = self.wrong(recipe, degrees)
        return super().divide(recipe, degrees, world, layout)

    def wrong(self, recipe: Recipe, degrees: Degrees) -> tuple[Recipe, Degrees]:
        return recipe, degrees


@broken(Divides, "wrong", "REC-02[kv-12-over-tp8]: was accepted, expected a refusal", bugs=("ROP-18",))
def checks_heads_alone(wrong, self, recipe, degrees):
    """TP is checked against the heads only, not the KV groups, and fails in the middle of a forward pass."""
    return replace(recipe, kv_groups=recipe.heads), degrees


@broken(Divides, "wrong", "REC-02[kv-8-over-tp12-though-replicated]: was accepted, expected a refusal")
def replicates_any_number(wrong, self, recipe, degrees):
    """Over-correction: declared replication disables the check, even where TP is not a multiple of the groups."""
    return (replace(recipe, kv_groups=recipe.heads) if recipe.replicate_kv else recipe), degrees


@broken(Divides, "wrong", "REC-02[sequence-4032-over-cp5-tp2]: was accepted, expected a refusal", bugs=("CMP-03",))
def leaves_one_rank_without_tokens(wrong, self, recipe, degrees):
    """The sequence is padded up to what the ranks need, so the last rank gets only padding, or nothing."""
    shards = degrees.cp * degrees.tp
    return replace(recipe, seq_length=-(-recipe.seq_length // shards) * shards), degrees


@broken(Divides, "wrong", "REC-02[ssm-groups-without-m]: was accepted, expected a refusal")
def forgets_that_r_has_groups(wrong, self, recipe, degrees):
    """SSM groups are checked only where the pattern has an M, but an R block has them too."""
    skips = "M" not in recipe.pattern
    return (replace(recipe, replicate_ssm_groups=True, mamba=replace(recipe.mamba, groups=1)) if skips else recipe,
            degrees)  # fmt: skip


@broken(Divides, "wrong", "REC-02[experts-12-over-ep8]: was accepted, expected a refusal", bugs=("ARG-26",))
def checks_the_wrong_degree(wrong, self, recipe, degrees):
    """The number of experts is checked against tp instead of ep."""
    return recipe, replace(degrees, ep=degrees.tp)


@broken(Reference, "launch", "REC-02a[kv-9-of-56]: was accepted, expected a refusal", bugs=("ARG-27",))
def validates_under_assert(launch, self, recipe, lane):
    """The relations between fields are asserts, which `python -O` removes: 9 groups of 56 heads start to train."""
    kept = {key: value for key, value in lane.overrides.items() if key != "kv_groups"}
    return launch(self, recipe, replace(lane, overrides=kept))


@broken(Reference, "launch", "REC-02a[top-17-of-16]: was accepted, expected a refusal")
def clamps_top_k(launch, self, recipe, lane):
    """A top-k above the number of experts is lowered to it: every token goes to every expert, and routing learns
    nothing.
    """
    experts = recipe.moe.experts if recipe.moe else 0
    asked = dict(lane.overrides)
    if "moe.top_k" in asked:
        asked["moe.top_k"] = str(min(int(asked["moe.top_k"]), experts))
    return launch(self, recipe, replace(lane, overrides=asked))


@broken(Divides, "wrong", "REC-02b[declared-replication-of-kv]: a legal input was refused")
def refuses_replication(wrong, self, recipe, degrees):
    """Over-correction of ROP-18: TP above the KV groups is refused even where replication is declared."""
    return replace(recipe, replicate_kv=False), degrees


@broken(Divides, "wrong", "REC-02b[latent-attention-has-no-kv-groups]: a legal input was refused")
def checks_groups_that_do_not_exist(wrong, self, recipe, degrees):
    """Over-correction: KV groups are checked under latent attention, which has none."""
    return replace(recipe, mla=None), degrees


class RefusesFirst(Reference):
    """What a stack does that raises at the first fault it finds."""

    def divide(self, recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
        try:
            return super().divide(recipe, degrees, world, layout)
        except Refused as refused:
            raise Refused(refused.refusals[:1]) from None


with_attributes(
    "StopsAtTheFirstAxis",
    "Each refusal names one fault, so each fault costs a start: tp, then ep, then the sequence.",
    "REC-02c[tensor-expert-sequence]: the refusal leaves out ep or moe.experts, seq_length",
    owner=RefusesFirst,
)


@broken(Reference, "divide", "REC-02c[pipeline-batch]: the refusal leaves out batch.total")
def checks_the_batch_later(divide, self, recipe, degrees, world, layout):
    """The batch is checked only when the loader is built, after the pipeline's refusal has been fixed."""
    try:
        return divide(self, recipe, degrees, world, layout)
    except Refused as refused:
        kept = [refusal for refusal in refused.refusals if refusal.field != "batch.total"]
        raise Refused(kept or refused.refusals) from None


@broken(Reference, "launch", "REC-02d[three-relations]: the refusal leaves out")
def stops_at_the_first_field(launch, self, recipe, lane):
    """Each of the recipe's rules raises on its own, so a refusal names one fault."""
    try:
        return launch(self, recipe, lane)
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


@broken(Reference, "read_back", "REC-03a[shape]: the trainer reads norm_eps 1e-06 as 1e-05", bugs=("PRV-06",))
def loses_a_field_of_the_shape(read_back, self, argv):
    """One field of the shape is not written: a checkpoint rebuilds another model without an error."""
    read = read_back(self, argv)
    return replace(read, recipe=replace(read.recipe, norm_eps=1e-5))


@broken(Reference, "read_back", "REC-03a[sparse]: the trainer reads dsa", bugs=("ARG-10",))
def keeps_the_first_of_a_list(read_back, self, argv):
    """Only the first value of a list arrives, because the reader expects a single word."""
    read = read_back(self, argv)
    dsa = read.recipe.dsa
    return replace(read, recipe=replace(read.recipe, dsa=dsa and replace(dsa, a_ranks=dsa.a_ranks[:1])))


@broken(Reference, "read_back", "REC-03a[text]: a legal input was refused")
def takes_no_blanks(read_back, self, argv):
    """The argv is split at blanks on its way, so a path with a blank becomes two words."""
    words = " ".join(argv).split(" ")
    if len(words) != len(argv):
        raise refuse("argv", words, "has words that belong to no flag", "quote them")
    return read_back(self, argv)

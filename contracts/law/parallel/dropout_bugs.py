"""Ranks that drop the same elements of other tokens, or other elements of what they hold alike."""

import re

from contracts.law._bugs.numeric import ParallelTrainer, broken, parallelize, rng_state


@broken(
    ParallelTrainer,
    "stream",
    "PAR-18a[dp2]: token 0 of step 1 and token 16 of step 1 have the same gradient",
    bugs=("ACK-03", "DAT-09"),
)
def seeds_all_ranks_alike(stream, self):
    """Every rank is seeded with the seed of the recipe."""
    return ""


@broken(ParallelTrainer, "stream", "PAR-18a[tp2-sp]: token 0 of step 1 and token 4 of step 1 have", bugs=("ACK-02",))
def forgets_that_sequences_are_cut(stream, self):
    """Tensor-parallel ranks draw the same numbers, also if each has its own part of the sequence."""
    return str(self.mesh.place("rows").index(self.mesh.rank))


@broken(ParallelTrainer, "stream", "PAR-18b[tp2]: after step 1, rank 0 and rank 1 hold different values of")
def seeds_by_rank(stream, self):
    """Over-correction: every rank has a seed of its own, also if it holds the same residual stream as others."""
    return str(self.mesh.rank)


@broken(ParallelTrainer, "resume", "PAR-18b[dp2-to-tp2]: after step 3, rank 0 and rank 1 hold different values of",
        bugs=("RSM-23",))  # fmt: skip
def seeds_by_rank_after_a_load(resume, self, folder):
    """What the first start does right, a load onto another layout does by the number of the rank."""
    resume(self, folder)
    if self.recipe.dropout:
        rng_state.seed_rank_stream(self.recipe.seed, self.number, str(self.mesh.rank))


@broken(ParallelTrainer, "stream", "PAR-18c[pp2]: layer 0 in step 1 drops the same elements of a token as layer 2")
def seeds_all_stages_alike(stream, self):
    """The seed is made of the ranks that read other tokens, and stages read the same."""
    return "/".join(part for part in _axes(stream(self)) if not part.startswith("pp"))


def _axes(whose):
    """The axes of a stream's name, each with its place."""
    return re.findall(r"[a-z]+\d+", whose)


@broken(ParallelTrainer, "resume", "PAR-18d[dp2-to-tp2]: after the load layer 0 in step 3 drops the same elements")
def begins_the_masks_again(resume, self, folder):
    """A load on another layout seeds as the run was seeded."""
    resume(self, folder)
    if self.recipe.dropout:
        rng_state.seed_rank_stream(self.recipe.seed, 0, self.stream())


@broken(parallelize, "checkpoint", "PAR-18e[fsdp2]: recomputed, the gradient of",
        "PAR-18e[tp2-sp]: recomputed, the gradient of", bugs=("ACK-01",))  # fmt: skip
def wraps_without_the_generators(checkpoint, *given, **named):
    """What wraps a layer on ranks saves the time of keeping the generators' states."""
    return checkpoint(*given, **named, preserve_rng_state=False)

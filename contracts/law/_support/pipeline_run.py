"""What the checks on pipelines share: models cut into stages, and how they run.

The oracle is the same stack on one rank, which every rank runs alone, with the same whole weights and whole batches.
"""

from dataclasses import replace

from contracts.law._support import training_run
from contracts.law._support.step_comparison import on_one_rank_and_many
from contracts.law._support.training_run import LETTERS, ROWS_OF_16, large_expert_weights
from contracts.spec import Degrees, Execution, Moe, Mtp, Observed, Recipe, Session, Step, Tokens, Training
from contracts.spec.ladder import stepped_down

STAGED = replace(LETTERS, name="staged", pattern="AEMRE", depth=5, seq_length=16, batch=replace(LETTERS.batch, total=4))
HALVES = replace(STAGED, pattern="AE|MRE")
"""Two unequal stages, each with experts; layer 0 is the only attention layer."""
QUARTERS = replace(STAGED, pattern="A|E|MR|E")
BIASED = replace(
    HALVES,
    name="staged-biased",
    moe=Moe(experts=14, top_k=3, expert_hidden=20, score="sigmoid", selection_bias=True, bias_rate=0.25, aux_loss=0.3),
)
AHEAD = replace(HALVES, mtp=Mtp(depth=2, loss_weight=0.4))
TIED = replace(HALVES, untied_embeddings=False, norm_eps=1e-2)
TIED_AHEAD_QUARTERS = replace(QUARTERS, untied_embeddings=False, mtp=Mtp(depth=1, loss_weight=0.4))
PLAIN = replace(stepped_down(STAGED, "dense"), depth=4, pattern="AE|AE")
"""A plain transformer in two stages."""

TWO = Degrees(pp=2)
IN_TWO = Execution(world=2, degrees=TWO, microbatches=4)
INTERLEAVED = replace(IN_TWO, schedule="interleaved")
IN_FOUR = Execution(world=4, degrees=Degrees(pp=4), microbatches=4)
BESIDE_DP = Execution(world=4, degrees=TWO, microbatches=2)
BESIDE_TP = Execution(world=4, degrees=Degrees(pp=2, tp=2, sp=True), microbatches=4)
BESIDE_EP = Execution(world=4, degrees=Degrees(pp=2, ep=2), microbatches=4)

LOSS = 1e-10
"""How far a loss may be off, relative: sums over stages in float64 are in another order."""

Cell = tuple[Recipe, Execution, int]


def cell(recipe: Recipe, execution: Execution) -> Cell:
    """A case: what is trained, how, and on how many ranks."""
    return recipe, execution, execution.world


def batches(steps: int, recipe: Recipe = STAGED) -> tuple[Tokens, ...]:
    return training_run.batches(steps, "stages", STAGED.vocab, ROWS_OF_16, recipe=recipe)


def one_rank_and_many(
    stack: Training, recipe: Recipe, execution: Execution, given: tuple[Tokens, ...], *observe: Observed
) -> list[tuple[Step, Step]]:
    """For each step, in float64 and from the same whole weights, the step on one rank and the step on all ranks."""
    session = Session(
        recipe=recipe, steps=len(given), execution=replace(execution, precision="float64"), batches=given,
        weights=large_expert_weights(stack, recipe), observe=frozenset(observe),
    )  # fmt: skip
    return on_one_rank_and_many(stack, session)

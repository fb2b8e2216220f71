"""What the checks on pipelines share: models cut into stages, and how they run.

The oracle is the same stack on one rank, which every rank runs by itself, with the same whole weights and whole
batches.
"""

from dataclasses import replace

from contracts.law._support import small_models, training_run
from contracts.law._support.step_comparison import on_one_rank_and_many
from contracts.law._support.training_run import LETTERS, ROWS_OF_16, large_expert_weights
from contracts.law._support.transformer_layouts import STAGES
from contracts.spec import Degrees, Execution, Moe, Mtp, Observed, Recipe, Session, Step, Tokens, Training
from contracts.spec.ladder import stepped_down
from contracts.spec.messages import Message, Messages, Messaging

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
    rows = ROWS_OF_16 * (recipe.batch.total // 4)
    return training_run.batches(steps, "stages", STAGED.vocab, rows, recipe=recipe)


def one_rank_and_many(
    stack: Training, recipe: Recipe, execution: Execution, given: tuple[Tokens, ...], *observe: Observed
) -> list[tuple[Step, Step]]:
    """For each step, in float64 and from the same whole weights, the step on one rank and the step on all ranks."""
    session = Session(
        recipe=recipe, steps=len(given), execution=replace(execution, precision="float64"), batches=given,
        weights=large_expert_weights(stack, recipe), observe=frozenset(observe),
    )  # fmt: skip
    return on_one_rank_and_many(stack, session)


SENT: dict[str, Cell] = {
    "two-stages": cell(HALVES, IN_TWO),
    "tied": cell(TIED, IN_TWO),
    "interleaved": cell(QUARTERS, INTERLEAVED),
    "four-stages": cell(TIED_AHEAD_QUARTERS, IN_FOUR),
    "two-stages@dense": cell(PLAIN, IN_TWO),
    "tied@dense": cell(replace(PLAIN, untied_embeddings=False), IN_TWO),
    "interleaved@dense": cell(replace(PLAIN, pattern="A|E|A|E"), INTERLEAVED),
    "four-stages@dense": cell(replace(PLAIN, pattern="A|E|A|E", untied_embeddings=False), IN_FOUR),
}
BATCHED = {name: SENT[name] for name in SENT if name != "interleaved@dense"}
"""A stack that overlaps the messages of interleaved stages with work sends them one by one."""
OF_TRANSFORMERS: dict[str, Cell] = {
    f"transformer-{name}": STAGES[name] for name in ("1f1b", "interleaved", "beside-fsdp2", "beside-tp2-sp")
}
"""The same of transformers with experts, in float32."""


def messages_seen(stack: Messaging, recipe: Recipe, execution: Execution) -> Messages:
    """The messages of two steps; in the first, stages may exchange shapes."""
    if execution.precision == "float32":
        return stack.messages(Session(recipe=recipe, steps=2, execution=execution, batches=small_models.batches(2)))
    precise = replace(execution, precision="float64")
    return stack.messages(Session(recipe=recipe, steps=2, execution=precise, batches=batches(2, recipe)))


def message_text(message: Message) -> str:
    way = "to" if message.sends else "from"
    return f"{'a send' if message.sends else 'a receive'} of {shape_and_dtype(message)} {way} rank {message.peer}"


def shape_and_dtype(message: Message) -> str:
    """A single number is 1, whether it has a dimension or none: torch 2.11 opens connections with both."""
    return f"{'x'.join(map(str, message.shape)) or 1} {message.dtype}"

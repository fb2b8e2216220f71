"""The messages between pipeline stages, as a rank issued them, and how they are shown."""

from dataclasses import replace

from contracts.law._support import small_models
from contracts.law._support.pipeline_run import (
    HALVES,
    IN_FOUR,
    IN_TWO,
    INTERLEAVED,
    PLAIN,
    QUARTERS,
    TIED,
    TIED_AHEAD_QUARTERS,
    Cell,
    batches,
    cell,
)
from contracts.law._support.transformer_layouts import STAGES
from contracts.spec import Execution, Recipe, Session
from contracts.spec.messages import Message, Messages, Messaging

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

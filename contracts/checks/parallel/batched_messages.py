"""Messages between pipeline stages are issued in batches."""

from __future__ import annotations

from contracts.checks._support.pipeline_messages import SENT, messages_seen, shown
from contracts.contract import contract
from contracts.instruments.ranks import here
from contracts.spec.messages import Messaging
from contracts.spec.recipe import Recipe
from contracts.spec.training import Execution


@contract("PAR-09", asks="messages", cases=SENT, source="bringup", tier="dist")
def stages_send_in_batches(stack: Messaging, recipe: Recipe, execution: Execution, world: int) -> None:
    """Every message between stages is issued by a call that takes a batch, in the first step as in later ones, and
    nothing warns of point-to-point messages.

    A message by itself makes NCCL open a communicator for two ranks while others wait; the bring-up hung there, and
    torch's schedules send batches of one direction so.
    """
    seen = messages_seen(stack, recipe, execution)
    single = [each for each in seen.issued if not each.batched]
    words = f"rank {here().rank} issues {len(single)} of {len(seen.issued)} messages by themselves"
    assert not single, f"{words}, the first {shown(single[0])}"
    warned = [each for each in seen.warnings if "p2p" in each.lower() or "point-to-point" in each.lower()]
    assert not warned, f"rank {here().rank} is warned: {warned[0]}"

"""Pipeline stages issue their point-to-point messages in batches."""

from contracts.contract import contract
from contracts.instruments.ranks import here
from contracts.law._support.pipeline_messages import BATCHED, message_text, messages_seen
from contracts.spec import Execution, Recipe
from contracts.spec.messages import Messaging


@contract("PAR-09", asks="messages", cases=BATCHED, needs=(), sheds=("packed",), float32=True, source="bringup",
          tier="dist")  # fmt: skip
def stages_send_in_batches(stack: Messaging, recipe: Recipe, execution: Execution, world: int) -> None:
    """Pipeline stages issue every point-to-point message through a batched call, in the first step as in later ones,
    and no warning about point-to-point messages appears.

    An unbatched message makes NCCL open a communicator for two ranks while others wait, and the bring-up hung there.
    torch's pipeline schedules turn a batch in one direction into plain calls.
    """
    seen = messages_seen(stack, recipe, execution)
    single = [each for each in seen.issued if not each.batched]
    words = f"rank {here().rank} issues {len(single)} of {len(seen.issued)} messages outside a batch"
    assert not single, f"{words}, the first {message_text(single[0])}"
    warned = [each for each in seen.warnings if "p2p" in each.lower() or "point-to-point" in each.lower()]
    assert not warned, f"rank {here().rank} is warned: {warned[0]}"

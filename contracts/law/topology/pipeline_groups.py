"""The process groups of a pipeline: none is made twice for the same ranks."""

from collections import Counter

from contracts.contract import contract
from contracts.instruments.ranks import here
from contracts.law._support.pipeline_messages import messages_seen
from contracts.law._support.pipeline_run import AHEAD, BESIDE_DP, HALVES, IN_TWO, Cell, cell
from contracts.spec import Execution, Recipe
from contracts.spec.messages import Messaging

COVERED: dict[str, Cell] = {"the-world": cell(HALVES, IN_TWO), "two-of-four": cell(AHEAD, BESIDE_DP)}
"""Which ranks one pipeline covers: all of them, or two of four."""


@contract("TOPO-07f", asks="messages", cases=COVERED, source="bringup", tier="dist")
def a_pipeline_makes_no_second_group(stack: Messaging, recipe: Recipe, execution: Execution, world: int) -> None:
    """A run has one process group for each set of members: the pipeline uses the group that already covers its ranks.

    The bring-up made a PP group beside the DP group of the same ranks, and sometimes hung in `new_group`.
    """
    seen = messages_seen(stack, recipe, execution)
    made = Counter(frozenset(group) for group in seen.held) - Counter(frozenset(group) for group in seen.before)
    whole = frozenset(range(world))
    assert whole not in made, f"rank {here().rank} makes a group of all {world} ranks besides the default group"
    for members, count in made.items():
        assert count == 1, f"rank {here().rank} makes {count} groups of {sorted(members)}"

"""What a run on several ranks leaves behind when it is refused after its process groups were created."""

from collections import Counter
from contextlib import suppress
from dataclasses import replace

from contracts import instruments
from contracts.contract import contract
from contracts.instruments.ranks import gathered, held_groups, here, torch_distributed
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import SPREAD, batches, borrowed, own_axis
from contracts.law._support.refusals import refusal_of
from contracts.law._support.training_run import large_expert_weights
from contracts.spec import Execution, Group, Session, Training

REFUSED: dict[str, tuple[Execution, int]] = {
    "tp2-sp-beside-dp2": (own_axis(4, tp=2, sp=True), 4),
    "ep2-fsdp2": (own_axis(4, ep=2, fsdp=True), 4),
    "borrowed-tp2-sp-ep2-etp1-fsdp": (borrowed(4, tp=2, ep=2, etp=1, sp=True, fsdp=True), 4),
    "pp2-beside-dp2": (replace(own_axis(4, pp=2), microbatches=2), 4),
}
STRANGE = "no.such.weight"


@contract("TOPO-07g", asks=("built", "train"), cases=REFUSED, source="F04; GATE-05", tier="dist")
def a_refused_run_leaves_no_group_behind(stack: Training, execution: Execution, world: int) -> None:
    """After a run that is refused once its process groups exist, exactly the groups exist that existed before, and the
    next run takes its step.

    A caller that catches the refusal and tries another setting would otherwise keep the first run's communicators for
    good.
    """
    execution = in_a_layout_of(stack, execution)
    recipe = replace(SPREAD, depth=6, pattern="AEM") if execution.degrees.pp > 1 else SPREAD
    legal = Session(
        recipe=recipe, steps=1, execution=execution, batches=batches(1), weights=large_expert_weights(stack, recipe)
    )
    scalar = instruments.numerics.array(instruments.fixtures.normal("strange", (1,)))
    _, dist = torch_distributed()
    mine = dist.new_group([0, 1])  # another component's group, which must stay
    try:
        before = held_groups()
        refusal = refusal_of(stack.train, replace(legal, weights={**legal.weights, STRANGE: scalar}))
        words = _left(before, held_groups())
        problem = next(filter(None, gathered(words)), "")
        assert not problem, f"after the refusal of {STRANGE}, {problem}"
        assert STRANGE in str(refusal), f"the refusal does not name {STRANGE}: {refusal}"
        stack.train(legal)
    finally:
        with suppress(ValueError):  # a run that destroyed it has failed above
            dist.destroy_process_group(mine)


def _left(before: tuple[Group, ...], after: tuple[Group, ...]) -> str:
    """Which groups a rank has gained or lost."""
    found, left = Counter(before), Counter(after)
    more, gone = list((left - found).elements()), list((found - left).elements())
    said = [f"rank {here().rank} is left with {len(more)} groups, as {list(more[0])}"] if more else []
    said += [f"rank {here().rank} has lost its group {list(gone[0])}"] if gone else []
    return "; ".join(said)

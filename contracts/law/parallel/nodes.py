"""How ranks are spread over nodes: it changes where a rank runs, and no number."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments.ranks import backend_of
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import SPREAD, batches, nodes_of, own_axis, with_rungs
from contracts.law._support.step_comparison import gradient_differences, label_difference, on_one_rank
from contracts.law._support.training_run import large_expert_weights
from contracts.spec import Execution, NotOffered, Recipe, Session, Training

NODES: dict[str, tuple[Recipe, Execution, int, int]] = {  # ranks of a node
    "dp2": (SPREAD, own_axis(2), 1, 2),
    "tp2": (SPREAD, own_axis(2, tp=2), 1, 2),
    "tp2-fsdp2": (SPREAD, own_axis(4, tp=2, fsdp=True), 2, 4),
}


@contract("PAR-12", asks=("built", "train"), cases=with_rungs(NODES), needs=(), sheds=("packed",), float32=True,
          source="Megatron-LM#2571", tier="dist")  # fmt: skip
def the_rank_is_that_of_the_world(stack: Training, recipe: Recipe, execution: Execution, size: int, world: int) -> None:
    """Ranks on several nodes take the step of one rank: each acts by its global rank, not by its local rank on its
    node.

    On one node the two are the same. A rank that takes LOCAL_RANK or the devices of its node for its place reads
    another rank's data, or waits for a world that is not there.
    """
    if backend_of("cuda") == "nccl":
        raise NotOffered("has one device a rank of a node, and these nodes are made up", "device")
    execution = in_a_layout_of(stack, execution)
    session = Session(
        recipe=recipe, steps=1, execution=replace(execution, precision="float64"), batches=batches(1, recipe),
        weights=large_expert_weights(stack, recipe), observe=frozenset({"gradients"}),
    )  # fmt: skip
    with nodes_of(size):
        (many,) = stack.train(session).steps
    (one,) = on_one_rank(stack, replace(session, execution=Execution(precision="float64"))).steps
    words = label_difference(one, many) or gradient_differences(one, many)
    assert not words, f"on nodes of {size}: {words}"

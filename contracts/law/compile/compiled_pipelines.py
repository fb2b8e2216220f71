"""Compiled lanes against eager training on one rank: pipeline stages, and experts on several ranks."""

from dataclasses import replace
from typing import Protocol

from contracts.contract import contract
from contracts.instruments import graphs
from contracts.instruments.ranks import gathered, here
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import borrowed, own_axis
from contracts.law._support.pipeline_run import LOSS, STAGED, Cell, batches, cell, one_rank_and_many
from contracts.law._support.step_comparison import loss_difference, tensor_differences
from contracts.spec import EXACT, Compiling, Execution, Moe, Recipe, Training


class Stack(Training, Compiling, Protocol):
    """A stack that trains, and says what it compiles."""


DEPTH_4 = replace(
    STAGED, name="staged-short", pattern="AEME", depth=4,
    moe=Moe(experts=4, top_k=2, expert_hidden=20, shared_hidden=0, aux_loss=0.3, z_loss=0.05),
)  # fmt: skip
"""Few experts: the compiler writes out each of them."""
ROUTED = replace(DEPTH_4, name="staged-routed", pattern="AE", depth=2)
"""One layer whose experts lie on several ranks: every break in it is met anew in each function around it."""
BIASED = replace(
    ROUTED, name="staged-routed-biased",
    moe=Moe(
        experts=4, top_k=2, expert_hidden=20, shared_hidden=0, score="sigmoid", selection_bias=True, bias_rate=0.25,
        aux_loss=0.3,
    ),
)  # fmt: skip
"""A buffer that each step changes, and the next one reads."""
QUARTERS = replace(DEPTH_4, pattern="A|E|M|E")
WINDOWED = replace(ROUTED, name="staged-windowed", moe=None, activation="swiglu")
"""What only an attention and an MLP layer need, for steps of several microbatches."""


def _compiled(recipe: Recipe, execution: Execution) -> Cell:
    return cell(recipe, replace(execution, compile="blocks", backend="aot_eager"))


def _staged(world: int, microbatches: int, **degrees: int) -> Execution:
    return replace(own_axis(world, **degrees), microbatches=microbatches)  # type: ignore[arg-type]  # sp is a bool


LANES: dict[str, Cell] = {
    "pp2": _compiled(DEPTH_4, _staged(2, 4, pp=2)),
    "pp2-interleaved": _compiled(QUARTERS, replace(_staged(2, 2, pp=2), schedule="interleaved")),
    "pp2-tp2-sp": _compiled(DEPTH_4, _staged(4, 4, pp=2, tp=2, sp=True)),
    "pp2-ep2": _compiled(ROUTED, _staged(4, 2, pp=2, ep=2)),
    "dp2-selection-bias": _compiled(BIASED, own_axis(2)),
    "borrowed-ep2-selection-bias": _compiled(BIASED, borrowed(2, ep=2)),
    "dp2-accumulated": _compiled(WINDOWED, _staged(2, 2)),
    "fsdp2-accumulated": _compiled(WINDOWED, replace(_staged(2, 2), fsdp=True)),
    "pp2-dp2-fsdp": _compiled(DEPTH_4, replace(_staged(4, 2, pp=2), fsdp=True)),
    "borrowed-tp2-sp-ep2-etp1-fsdp": _compiled(ROUTED, borrowed(4, tp=2, ep=2, etp=1, sp=True, fsdp=True)),
    "tp2-sp-ep2-fsdp2": _compiled(ROUTED, own_axis(8, tp=2, ep=2, sp=True, fsdp=True)),
}


@contract("COMP-07d", asks=("built", "train"), cases=LANES, source="bringup; pytorch 2.13", tier="dist", slow=True)
def a_compiled_lane_steps_as_one_eager_rank_does(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """Compiled block by block, PP + TP + SP at depth 4 and TP + SP + EP + FSDP2 each take three steps that match one
    eager rank: losses, every gradient by name, and the weights and buffers after the third step.

    Between eager code (an embedding, a stage boundary) and compiled code a gradient can silently end. The loss of the
    step is right, and the embedding never moves. A graph may hold a buffer as it was when the graph was made, or
    whether the gradients of that microbatch were to be reduced.
    """
    execution = in_a_layout_of(stack, execution)
    graphs.reset_compiler()  # what is cached names groups of worlds that are no more
    steps = one_rank_and_many(stack, recipe, execution, batches(3), "gradients", "weights", "buffers")
    every = gathered(graphs.compiled_count())
    assert min(every) > 0, f"rank {every.index(0)} compiled nothing"
    for one, many in steps:
        words = loss_difference(one, many, bound=LOSS) or tensor_differences(
            one, many, "compiled, the gradient of", many.gradients, one.gradients
        )
        assert not words, words
    words = tensor_differences(one, many, "compiled, the weight", many.weights, one.weights)
    words = words or tensor_differences(one, many, "compiled, the buffer", many.buffers, one.buffers, EXACT)
    assert not words, words


APART: dict[str, Cell] = {
    "borrowed-ep2": _compiled(ROUTED, borrowed(2, ep=2)),
    "pp2-ep2": _compiled(replace(ROUTED, pattern="E|E"), _staged(4, 2, pp=2, ep=2)),  # experts on both stages
}


@contract(
    "COMP-03d", asks=("built", "train", "allowed_breaks"), cases=APART, source="bringup: regional compile", tier="dist",
    slow=True,
)  # fmt: skip
def what_experts_hand_back_is_outside_the_graphs(
    stack: Stack, recipe: Recipe, execution: Execution, world: int
) -> None:
    """With experts on several ranks, also inside pipeline stages, graphs break only at declared places, and at every
    place that is declared for this case and not for one rank.

    What the routers of other ranks decide stays outside the graphs. A declared break that never occurs permits the next
    break of its name.
    """
    execution = in_a_layout_of(stack, execution)
    graphs.reset_compiler()
    one_rank_and_many(stack, recipe, execution, batches(1))
    found = graphs.graph_breaks()
    allowed = {each.site: each for each in stack.allowed_breaks(recipe, execution)}
    for each in found:
        place = f"{each.site} {each.reason}"
        site = next((site for site in allowed if site in place), None)
        assert site is not None, f"an undeclared graph break on rank {here().rank}: {place[:200]}"
        most = allowed[site].budget
        assert each.count <= most, f"{each.count} breaks at {site}, declared are at most {most}"
    alone = {each.site for each in stack.allowed_breaks(recipe, Execution(compile="blocks"))}
    met = {site for site in allowed for each in found if site in f"{each.site} {each.reason}"}
    inside = sorted(allowed.keys() - alone - met)
    assert allowed.keys() - alone, "no graph break is declared for experts on several ranks"
    assert not inside, (
        f"{', '.join(inside)} is declared to be outside the graphs, but is inside them on rank {here().rank}"
    )

"""Parallel layouts, eager and compiled: every rank compiles the same graphs, and the compiler changes no gradient."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import graphs
from contracts.instruments.ranks import gathered, here
from contracts.law._support.context_parallel import RECURS, SCANS, last_label
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import SPREAD, batches, borrowed, one_rank_and_many, own_axis
from contracts.law._support.step_comparison import gradient_differences, loss_and_norm, loss_difference
from contracts.law._support.training_run import drawn_weights, large_expert_weights
from contracts.spec import Compiling, Execution, Moe, Recipe, Session, Step, Training, Wrap

COMPILED: dict[str, tuple[Execution, int]] = {
    name: (replace(execution, compile="blocks", backend="aot_eager"), execution.world)
    for name, execution in {
        "tp2": own_axis(2, tp=2),
        "borrowed-tp2-sp-ep2-etp1": borrowed(2, tp=2, ep=2, etp=1, sp=True),
        "borrowed-tp2-sp-ep2-etp1-fsdp": borrowed(4, tp=2, ep=2, etp=1, sp=True, fsdp=True),
    }.items()
}
ALIKE = {name: COMPILED[name] for name in ("tp2",)}
SHORT = replace(
    SPREAD, name="spread-short", pattern="AEM", depth=3,
    moe=Moe(experts=4, top_k=2, expert_hidden=20, shared_hidden=0, aux_loss=0.3, z_loss=0.05),
)  # fmt: skip
"""Few experts: the compiler writes out each of them."""


@contract("COMP-07", asks=("built", "train"), cases=COMPILED, source="bringup", tier="dist", slow=True)
def a_compiled_lane_is_the_eager_lane(stack: Training, execution: Execution, world: int) -> None:
    """A compiled step on several ranks has the losses and gradients of the eager step on the same ranks.

    An in-place all-reduce passes its gradient through in eager, and sums it when compiled. An asynchronous tensor that
    enters compiled code before it is waited for gets no gradient. Neither changes the loss of the step.
    """
    execution = in_a_layout_of(stack, execution)
    graphs.reset_compiler()  # what is cached names groups of worlds that are no more
    eager, compiled = (_step(stack, each) for each in (replace(execution, compile="none"), execution))
    words = gradient_differences(eager, compiled, what="compiled, the gradient of")
    assert not words, words
    loss, want = compiled.losses["total"], eager.losses["total"]
    assert abs(loss - want) <= 1e-11 * want, (
        f"{loss_and_norm(eager, compiled)}: compiled it is {loss:.12g}, eager {want:.12g}"
    )


@contract("COMP-06", asks=("built", "train"), cases=ALIKE, source="modal; CMP-04", tier="dist", slow=True)
def ranks_compile_the_same_graphs(stack: Training, execution: Execution, world: int) -> None:
    """Every rank compiles the same number of graphs, and a rank whose compiler cache is cold neither stalls the others
    nor changes the step.

    Ranks that compile differently add in a different order; where their collectives move, they hang.
    """
    execution = in_a_layout_of(stack, execution)
    graphs.reset_compiler()
    warm = _step(stack, execution)
    every = gathered(graphs.compiled_count())
    assert every[0] > 0, "nothing was compiled"
    for rank, count in enumerate(every):
        assert count == every[0], f"{every[0]} graphs were compiled on rank 0 and {count} on rank {rank}"
    if here().rank == world - 1:
        graphs.reset_compiler()
    cold = _step(stack, execution)
    words = gradient_differences(warm, cold, what="with a cold cache on one rank, the gradient of")
    assert not words, words


TINY = replace(SHORT, name="spread-tiny", pattern="AE", depth=2, moe=None)
STEADY: dict[str, tuple[Execution, int]] = {
    "dp2": (replace(own_axis(2), compile="blocks", backend="eager"), 2),
}


@contract("COMP-06h", asks=("built", "train"), cases=STEADY, source="pytorch#155558; F04", tier="dist")
def no_rank_compiles_anew(stack: Training, execution: Execution, world: int) -> None:
    """In three steps with batches of one shape, all ranks compile the same number of graphs, and none after the first
    step.

    A rank whose guard fails compiles again while the others wait for it in the next collective. The numbers are right,
    so nothing but the count shows it.
    """
    execution = in_a_layout_of(stack, execution)
    counted = []
    for steps in (1, 3):
        graphs.reset_compiler()
        session = Session(
            recipe=TINY, steps=steps, execution=replace(execution, precision="float32"), batches=batches(steps),
        )  # fmt: skip
        stack.train(session)
        counted.append(graphs.compiled_count())
    every = gathered(counted)
    assert every[0][0] > 0, "nothing was compiled"
    for rank, (first, three) in enumerate(every):
        assert first == every[0][0], f"{every[0][0]} graphs were compiled on rank 0 and {first} on rank {rank}"
        assert three == first, f"rank {rank} compiled {first} graphs in the first step and {three} in three"


def _step(stack: Training, execution: Execution) -> Step:
    (step,) = stack.train(
        Session(
            recipe=SHORT,
            steps=1,
            execution=replace(execution, precision="float64"),
            batches=batches(1),
            weights=large_expert_weights(stack, SHORT),
            observe=frozenset({"gradients"}),
        )
    ).steps
    return step


EVERYTHING: tuple[Wrap, ...] = (
    "tensor_parallel", "expert_parallel", "activation_checkpoint", "compile", "fully_shard",
)  # fmt: skip


WRAPPED: dict[str, tuple[Execution, int, tuple[Wrap, ...]]] = {
    "everything": (
        replace(borrowed(4, tp=2, ep=2, etp=1, sp=True, fsdp=True), recompute=True, compile="blocks"), 4, EVERYTHING,
    ),
    "everything-over-cut-rows": (
        replace(borrowed(4, cp=2, tp=2, ep=2, etp=1, sp=True, fsdp=True), recompute=True, compile="blocks"), 4,
        (*EVERYTHING[:2], "context_parallel", *EVERYTHING[2:]),
    ),
    "tp2-recompute-compile": (
        replace(own_axis(2, tp=2, sp=True), recompute=True, compile="blocks"), 2,
        ("tensor_parallel", "activation_checkpoint", "compile"),
    ),
    "ep2-compile-fsdp2": (
        replace(borrowed(2, ep=2, fsdp=True), compile="blocks"), 2, ("expert_parallel", "compile", "fully_shard"),
    ),
}  # fmt: skip


@contract("COMP-05", asks="wrapping", cases=WRAPPED, source="bringup; torchtitan", tier="dist")
def a_model_is_wrapped_in_one_order(
    stack: Compiling, execution: Execution, world: int, expected: tuple[Wrap, ...]
) -> None:
    """A model is wrapped from the inside out: tensor parallel, expert parallel, context parallel, activation
    checkpointing, compile, FSDP2.

    Recomputation around compiled code recomputes graphs. FSDP2 inside compiled code breaks the graph in every layer,
    and its hooks gather what tensor parallel has not yet sharded.
    """
    execution = in_a_layout_of(stack, execution)
    found = stack.wrapping(SPREAD, execution)
    assert found == expected, f"wrapped in the order {', '.join(found)}, expected {', '.join(expected)}"


ROWS: dict[str, tuple[Recipe, Execution, int]] = {
    "cp2-recurrence": (RECURS, replace(borrowed(2, cp=2), compile="blocks"), 2),
    "cp2-scan": (SCANS, replace(borrowed(2, cp=2), compile="blocks"), 2),
}


@contract("COMP-06g", asks=("built", "train"), cases=ROWS, source="modal; CMP-04", tier="dist", slow=True)
def ranks_of_a_row_compile_the_same_graphs(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """All context-parallel ranks compile the same number of graphs, including the first, which receives no state, and
    the last, which sends none. A compiled step that passes state from rank to rank equals one rank's.

    Ranks that break a layer in different places hang when one recompiles and the other does not.
    """
    graphs.reset_compiler()
    weights = drawn_weights(stack.built(recipe, "nemo_native").parameters)
    given = (last_label(16),)
    ((alone, many),) = one_rank_and_many(stack, recipe, execution, given, "gradients", weights=weights)
    every = gathered(graphs.compiled_count())
    assert every[0] > 0, "nothing was compiled"
    for rank, count in enumerate(every):
        assert count == every[0], f"{every[0]} graphs were compiled on rank 0 and {count} on rank {rank}"
    words = loss_difference(alone, many) or gradient_differences(alone, many)
    assert not words, words

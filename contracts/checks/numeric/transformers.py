"""A step of a transformer with experts, on several ranks and on one: what every stack of this kind can be asked.

The promises are those of `layouts`, `expert_layouts`, `pipeline` and `resharding`, over recipes of attention and
experts in float32, so that stacks without our other layers are judged by them too; one has a scan beside them. Losses
and norms see few faults of this kind; gradients by name of the first step see most.
"""

from __future__ import annotations

from dataclasses import replace

from contracts import instruments
from contracts.checks.numeric._folders import shared_folder
from contracts.checks.numeric._replicas import replicas_apart
from contracts.checks.numeric._shared import found_first, shown, state_unlike
from contracts.checks.numeric._transformers import (
    DENSE,
    GROUPED_EXPERTS,
    HYBRID_EXPERTS,
    IN_HALVES,
    IN_QUARTERS,
    LATENT_EXPERTS,
    Cell,
    apart,
    both,
    cell,
    entries,
    figures_apart,
    gradients_apart,
    laid_out,
    moved_apart,
    session,
    told_counts,
)
from contracts.contract import contract
from contracts.instruments.ranks import here
from contracts.spec.recipe import Moe, Recipe
from contracts.spec.tolerance import FLOAT32_MOMENTS
from contracts.spec.training import Execution, Observed, Training

L, G, H = LATENT_EXPERTS, GROUPED_EXPERTS, HYBRID_EXPERTS
CELLS: dict[str, Cell] = {
    "dense-dp2": cell(DENSE, 2),
    "dense-fsdp2": cell(DENSE, 2, fsdp=True),
    "dense-tp2-sp": cell(DENSE, 2, tp=2, sp=True),
    "dp2": cell(L, 2),
    "fsdp2": cell(G, 2, fsdp=True),
    "hsdp-2x2": cell(L, 4, fsdp=True, replicas=2),
    "tp2-sp": cell(L, 2, tp=2, sp=True),
    "tp2-sp-grouped": cell(G, 2, tp=2, sp=True),
    "tp2": cell(G, 2, tp=2),
    "tp2-sp-fsdp2": cell(L, 4, tp=2, sp=True, fsdp=True),
    "ep2": cell(L, 2, layout="own-axis", ep=2),
    "ep4": cell(G, 4, layout="own-axis", ep=4),
    "ep2-fsdp2": cell(L, 4, layout="own-axis", ep=2, fsdp=True),
    "tp2-sp-ep2-etp1": cell(L, 4, layout="own-axis", tp=2, ep=2, etp=1, sp=True),
    "borrowed-ep2": cell(L, 2, ep=2),
    "borrowed-ep2-fsdp": cell(L, 2, ep=2, fsdp=True),
    "borrowed-ep2-fsdp4": cell(G, 4, ep=2, fsdp=True),
    "borrowed-ep4-fsdp": cell(L, 4, ep=4, fsdp=True),
    "borrowed-hsdp-2x2-ep2": cell(L, 4, ep=2, fsdp=True, replicas=2),
    "borrowed-ep2-dp4": cell(L, 4, ep=2),
    "borrowed-ep4": cell(L, 4, ep=4),
    "borrowed-tp2-sp-ep4-etp1": cell(G, 4, tp=2, ep=4, etp=1, sp=True),
    "borrowed-tp2-sp-ep2-etp1": cell(G, 2, tp=2, ep=2, etp=1, sp=True),
    "borrowed-tp2-sp-ep2-etp1-fsdp": cell(G, 4, tp=2, ep=2, etp=1, sp=True, fsdp=True),
    "borrowed-tp2-sp-ep4-etp1-fsdp": cell(L, 4, tp=2, ep=4, etp=1, sp=True, fsdp=True),
    "borrowed-tp2-sp-ep2-etp2-fsdp": cell(G, 4, tp=2, ep=2, etp=2, sp=True, fsdp=True),
    "hybrid-dp2": cell(H, 2),
    "hybrid-tp2-sp": cell(H, 2, tp=2, sp=True),
    "hybrid-borrowed-tp2-sp-ep2-etp1": cell(H, 2, tp=2, ep=2, etp=1, sp=True),
}  # fmt: skip


def some(*names: str) -> dict[str, Cell]:
    return {name: CELLS[name] for name in names}


@contract("PAR-01e", asks=("built", "train"), cases=CELLS, source="F01", tier="dist")
def every_gradient_of_a_transformer_is_that_of_one_rank(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """Loss, labels that count and every gradient by name are those of the run on one rank, over data, tensor and
    expert parallel and their compositions."""
    ((alone, many),) = both(stack, recipe, execution, 1, "gradients")
    words = figures_apart(alone, many) or gradients_apart(alone, many)
    assert not words, words


STEPPED = some("dense-dp2", "dense-fsdp2", "dp2", "fsdp2", "hsdp-2x2", "tp2-sp", "ep2", "tp2-sp-ep2-etp1",
               "borrowed-ep2", "borrowed-ep4", "borrowed-tp2-sp-ep4-etp1", "borrowed-ep2-fsdp",
               "borrowed-tp2-sp-ep4-etp1-fsdp", "hybrid-tp2-sp")  # fmt: skip


@contract("OPT-04e", asks=("built", "train"), cases=STEPPED, source="F01", tier="dist")
def one_update_of_a_transformer_is_that_of_one_rank(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """After one step the optimizer's moments are those of one rank, and every weight moved as far and whither it does
    there: what is sharded is clipped, averaged and decayed as what is whole."""
    asked = session(stack, recipe, execution, 1)
    ((alone, many),) = both(stack, recipe, execution, 1, "weights", "optimizer")
    for entry in ("exp_avg", "exp_avg_sq"):
        got, want = entries(many.optimizer, entry), entries(alone.optimizer, entry)
        words = apart(alone, many, f"{entry} of", got, want, FLOAT32_MOMENTS)
        assert not words, words
    words = moved_apart(asked.weights, many.weights, alone.weights, WAY)
    assert not words, f"{words} (rank {here().rank})"


WAY = 5e-3
"""Of the way of one update or of three, by L2: Adam makes steps of the signs of gradients that are rounding. 5e-4 was
seen at most, in two stacks; half a decay is 1e-2."""


@contract("PAR-02e", asks=("built", "train"), cases=STEPPED, source="F02", tier="dist")
def a_transformer_goes_the_way_of_one_rank(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Over three steps weights go the way that they go on one rank, and every rank of the world holds the same bits.

    An update that is right once can leave behind what is wrong at the next: a momentum of one shard, a bias that each
    rank moved by its own counts.
    """
    asked = session(stack, recipe, execution, 3)
    alone, many = both(stack, recipe, execution, 3, "weights", "buffers", at=frozenset({3}))[-1]
    words = moved_apart(asked.weights, many.weights, alone.weights, WAY)
    assert not words, f"{words} (rank {here().rank})"
    words = replicas_apart({**many.weights, **many.buffers})
    assert not words, words


@contract("PAR-03e", asks=("built", "train"), cases=STEPPED, source="F03", tier="dist")
def the_norm_of_a_transformer_is_that_of_one_rank(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """The norm is that of every gradient, each parameter once, whatever meshes they lie on, and all are clipped by the
    one number that follows from it."""
    clipped = replace(recipe, optim=replace(recipe.optim, clip=0.05))
    ((alone, many),) = both(stack, clipped, execution, 1)
    for what in ("grad_norm", "clip_coef"):
        found, want = getattr(many, what), getattr(alone, what)
        assert abs(found - want) <= 2e-6 * abs(want), f"{what} is {found:.8g}, {want:.8g} on one rank"


WINDOWS: dict[str, Cell] = {
    "fsdp2": cell(L, 2, fsdp=True, microbatches=2),
    "tp2-sp": cell(G, 2, tp=2, sp=True, microbatches=4),
    "ep2": cell(L, 2, layout="own-axis", ep=2, microbatches=2),
    "borrowed-ep2-fsdp": cell(L, 2, ep=2, fsdp=True, microbatches=2),
}


@contract("PAR-05e", asks=("built", "train"), cases=WINDOWS, source="F19", tier="dist")
def a_window_of_a_transformer_is_the_batch(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """A window of microbatches on several ranks, whose labels are unequally many, is the whole batch at once on one."""
    ((alone, many),) = both(stack, recipe, execution, 1, "gradients")
    words = figures_apart(alone, many) or gradients_apart(alone, many)
    assert not words, words


HALVES, QUARTERS = replace(L, **IN_HALVES), replace(G, **IN_QUARTERS)  # type: ignore[arg-type]  # a table of both
STAGES: dict[str, Cell] = {
    "1f1b": cell(HALVES, 2, pp=2, microbatches=4),
    "interleaved": cell(QUARTERS, 2, pp=2, microbatches=4, interleaved=True),
    "beside-fsdp2": cell(HALVES, 4, pp=2, fsdp=True, microbatches=2),
    "hybrid-1f1b": cell(replace(H, pattern="AE|ME"), 2, pp=2, microbatches=4),
    "beside-tp2-sp": cell(replace(G, **IN_HALVES), 4, pp=2, tp=2, sp=True, microbatches=4),  # type: ignore[arg-type]
    "beside-ep2": cell(HALVES, 4, layout="own-axis", pp=2, ep=2, microbatches=2),
    "beside-borrowed-ep2-fsdp": cell(HALVES, 4, pp=2, ep=2, fsdp=True, microbatches=2),
}


@contract("PAR-08h", asks=("built", "train"), cases=STAGES, source="bringup F20", tier="dist")
def stages_of_a_transformer_are_one_rank(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Cut into stages, beside the other axes too, a transformer has the loss, the gradients by name, the norm and the
    selection biases of one rank."""
    ((alone, many),) = both(stack, recipe, execution, 1, "gradients", "buffers")
    words = figures_apart(alone, many) or gradients_apart(alone, many)
    assert not words, words
    assert abs(many.grad_norm - alone.grad_norm) <= 2e-6 * alone.grad_norm, (
        f"the norm is {many.grad_norm:.8g}, {alone.grad_norm:.8g} on one rank"
    )
    words = apart(alone, many, "the buffer", many.buffers, alone.buffers)
    assert not words, words


BIASED = some("dp2", "hsdp-2x2", "tp2-sp", "ep2", "borrowed-ep2", "borrowed-ep2-fsdp", "borrowed-tp2-sp-ep4-etp1-fsdp")


@contract("MOE-06e", asks=("built", "train"), cases=BIASED, source="F18; arXiv 2408.15664", tier="dist")
def a_bias_of_a_transformer_moves_by_all_counts(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """Over three steps a router's bias is that of one rank, in every layer; where counts are told, each assignment of
    the whole batch is counted once."""
    assert recipe.moe is not None
    for alone, many in both(stack, recipe, execution, 3, "buffers"):
        for name, counts in instruments.numerics.tensors(told_counts(many)).items():
            found, want = int(counts.sum()), 4 * recipe.seq_length * recipe.moe.top_k
            assert found == want, f"{name} has {found} assignments, expected {want} (step {many.number})"
        words = apart(alone, many, "the buffer", many.buffers, alone.buffers)
        assert not words, words


def onto(saves: Cell, *loads: Cell) -> tuple[Recipe, Execution, int, tuple[Execution, ...]]:
    """Recipe, the layout that saves, ranks, and the layouts that load."""
    return (*saves, tuple(execution for _, execution, _ in loads))


SAVED = {
    name: onto(*some(name, *others).values())
    for name, others in {
        "fsdp2": ("tp2-sp-grouped", "borrowed-tp2-sp-ep2-etp1"),
        "ep2": ("fsdp2", "tp2-sp"),
        "borrowed-ep2-fsdp": ("fsdp2", "tp2-sp"),
        "borrowed-tp2-sp-ep4-etp1-fsdp": ("hsdp-2x2", "borrowed-ep4-fsdp"),
        "tp2-sp": ("dp2",),
        "borrowed-ep2": ("borrowed-tp2-sp-ep2-etp1",),
        "borrowed-tp2-sp-ep4-etp1": ("borrowed-ep4", "borrowed-ep2-dp4"),
        "hybrid-tp2-sp": ("hybrid-dp2",),
    }.items()
} | {
    "dp2-to-borrowed-ep2": onto(CELLS["dp2"], CELLS["borrowed-ep2"]),
    "borrowed-ep2-to-tp2-sp": onto(CELLS["borrowed-ep2"], CELLS["tp2-sp"]),
    "tp2-sp-to-etp1": onto(CELLS["tp2-sp"], cell(L, 2, tp=2, etp=1, sp=True)),
    "1f1b": onto(STAGES["1f1b"], CELLS["dp2"], cell(L, 1)),
    "interleaved": onto(STAGES["interleaved"], CELLS["tp2-sp-grouped"]),
    "hybrid-1f1b": onto(STAGES["hybrid-1f1b"], CELLS["hybrid-tp2-sp"]),
    "tp2-sp-to-interleaved": onto(cell(QUARTERS, 2, tp=2, sp=True), STAGES["interleaved"]),
}
STATE: tuple[Observed, ...] = ("weights", "optimizer", "buffers")


@contract("CKPT-01h", asks=("built", "train"), cases=STEPPED, source="F07", tier="dist")
def a_transformer_resumed_twice_is_uninterrupted(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """A run that saves and loads twice on its way holds wherever it saves, to the bit, the weights, moments and biases
    of the run that was not interrupted."""
    ends = (1, 2, 4)
    asked = replace(session(stack, recipe, execution, ends[-1], *STATE), at=frozenset(ends))
    whole = stack.train(asked)
    start = 0
    with shared_folder() as at:
        for end in ends:
            given = asked if start == 0 else replace(asked, weights={}, buffers={}, load=str(at))
            part = replace(given, steps=end - start, batches=asked.batches[start:end], save=str(at),
                           save_at=frozenset({end}))  # fmt: skip
            run = stack.train(part)
            words = "" if run.start == start else f"the run began after step {run.start}, expected {start}"
            for got, want in zip(run.steps, whole.steps[start:end], strict=True):
                unlike = state_unlike(got, want)
                words = words or (f"step {want.number}: {unlike}" if unlike else "")
            words = found_first(words)
            assert not words, f"begun after step {start}, {words}"
            start = end


@contract("CKPT-02h", asks=("built", "train"), cases=SAVED, source="F07", tier="dist")
def another_layout_loads_a_transformer_by_its_names(
    stack: Training, recipe: Recipe, execution: Execution, world: int, loads: tuple[Execution, ...]
) -> None:
    """What one layout saved another one loads, whole and to the bit: every weight, moment and bias under its name."""
    asked = session(stack, recipe, execution, 2, *STATE)
    others = [laid_out(stack, each) for each in loads]
    with shared_folder() as at:
        saved = stack.train(replace(asked, save=str(at), save_at=frozenset({2}))).steps[-1]
        for layout in others:
            run = stack.train(
                replace(asked, steps=0, batches=(), weights={}, buffers={}, execution=layout, load=str(at),
                        at=frozenset({0}))
            )  # fmt: skip
            words = "" if run.start == 2 else f"the run goes on after step {run.start}, expected 2"
            words = words or ("nothing is told of what was loaded" if run.loaded is None else "")
            words = found_first(words or (state_unlike(run.loaded, saved) if run.loaded else ""))
            assert not words, f"saved on {shown(asked.execution)}, loaded on {shown(layout)}, {words}"


FEW = Moe(experts=4, top_k=2, expert_hidden=24, shared_hidden=0, aux_loss=0.0)
COMPILED: dict[str, Cell] = {
    "fsdp2": cell(replace(G, moe=FEW), 2, fsdp=True, compiled=True),
    "borrowed-tp2-sp-ep2-etp1": cell(replace(G, moe=FEW), 2, tp=2, ep=2, etp=1, sp=True, compiled=True),
}


@contract("COMP-07c", asks=("built", "train"), cases=COMPILED, source="bringup", tier="dist", slow=True)
def a_compiled_transformer_is_the_eager_one(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Compiled block by block, a step on several ranks has the loss and the gradients of the eager step on one."""
    instruments.graphs.forget()  # what is cached names groups of worlds that are no more
    ((alone, many),) = both(stack, recipe, execution, 1, "gradients")
    words = figures_apart(alone, many) or apart(
        alone, many, "compiled, the gradient of", many.gradients, alone.gradients
    )
    assert not words, words


RULED = some("dense-dp2", "dense-fsdp2", "fsdp2", "borrowed-tp2-sp-ep4-etp1-fsdp")


@contract("OPT-01h", asks=("built", "train"), cases=RULED, source="F09", tier="dist")
def the_table_of_a_transformer_says_how_it_moves(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """Every parameter stands once in the optimizer's table, has a gradient, and moves in the first step as the table
    says: by Adam's rule from its clipped gradient, less its own decay.

    An expert that no group took stands still, and the loss falls as well without it.
    """
    import torch

    rows = {row.name: row for row in stack.built(recipe, "nemo_native").parameters}
    asked = session(stack, recipe, execution, 1, "gradients", "weights")
    (step,) = stack.train(asked).steps
    unequal = sorted(rows.keys() ^ step.gradients.keys())
    assert not unequal, f"{', '.join(unequal[:3])} stands in one of the table and the gradients alone"
    numerics = instruments.numerics
    before, after = (numerics.tensors(each) for each in (asked.weights, step.weights))
    gradients = numerics.tensors(step.gradients)
    for name, row in sorted(rows.items()):
        grad = gradients[name].double() * step.clip_coef
        lr = step.lr * row.lr_scale
        want = -lr * (grad / (grad.abs() + 1e-8) + row.weight_decay * before[name].double())
        assert torch.isfinite(want).all(), f"the gradient of {name} is not finite"
        off = numerics.distances(after[name].double() - before[name].double(), want)["L2"]
        rounding = numerics.floor(after[name].dtype, numerics.typical_size(before[name]))
        words = f"{name} moved otherwise than by {row.optimizer} with decay {row.weight_decay:g}: {off.relative:.1e}"
        assert off.times(WAY, rounding) <= 1, words

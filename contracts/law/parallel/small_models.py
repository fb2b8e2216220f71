"""A step of a transformer with experts, on several ranks and on one: what every stack of this kind can be asked.

The contracts come from `parallel.layouts`, `moe.expert_parallel`, `parallel.pipeline` and `checkpoint.resharding`,
over recipes of attention and experts in float32, so that they also judge stacks without our other layers; one recipe
has a scan as well. Losses and norms show few bugs of this kind; the gradients of the first step, by name, show most.
"""

import math
from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.label_weights import WINDOW
from contracts.law._support.small_models import Cell, cell, loss_difference, one_rank_and_many, session
from contracts.law._support.step_comparison import (
    clip_difference,
    gradient_differences,
    replica_differences,
    state_differences,
    update_difference,
)
from contracts.law._support.transformer_layouts import (
    BY_MUON,
    CELLS,
    MET,
    MUON_BIASED,
    STAGES,
    STEPPED,
    UPDATE,
    G,
    L,
    cells_named,
    needs_of,
)
from contracts.spec import FLOAT32, FLOAT32_DEEP, FLOAT32_SCAN, FLOAT32_TRANSFORMER, Execution, Recipe, Training
from contracts.spec.violations import require_none


@contract("PAR-01e", asks=("built", "train"), cases=CELLS, needs=needs_of(CELLS), source="F01", conventions=WINDOW,
          tier="dist")  # fmt: skip
def every_gradient_of_a_transformer_is_that_of_one_rank(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """For a transformer with experts, losses, label counts and every gradient by name equal those of one rank, over
    data, tensor and expert parallel and their combinations.
    """
    ((alone, many),) = one_rank_and_many(stack, recipe, execution, 1, "gradients")
    require_none(loss_difference(alone, many), gradient_differences(alone, many, tolerance=FLOAT32_TRANSFORMER))


@contract("PAR-02e", asks=("built", "train"), cases=STEPPED, needs=needs_of(STEPPED), source="F02", conventions=WINDOW,
          tier="dist")  # fmt: skip
def a_transformer_goes_the_way_of_one_rank(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """For a transformer with experts, weights move over three steps as they do on one rank, and replicas are
    bit-identical on every rank.

    A correct first update can leave wrong state behind: a momentum of one shard, or a bias that each rank moved by its
    own counts.
    """
    asked = session(stack, recipe, execution, 3)
    alone, many = one_rank_and_many(stack, recipe, execution, 3, "weights", "buffers", at=frozenset({3}))[-1]
    require_none(
        update_difference(asked.weights, many.weights, alone.weights, UPDATE),
        replica_differences({**many.weights, **many.buffers}),
    )


OF_NORM = 2e-6
"""Relative; a sum of squares in float32, over ranks."""


@contract("PAR-03e", asks=("built", "train"), cases=STEPPED, needs=needs_of(STEPPED), source="F03", conventions=WINDOW,
          tier="dist")  # fmt: skip
def the_norm_of_a_transformer_is_that_of_one_rank(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """For a transformer with experts, the gradient norm counts every parameter once, whatever meshes the parameters lie
    on, and one clip coefficient derived from it scales all gradients.
    """
    clipped = replace(recipe, optim=replace(recipe.optim, clip=0.05))
    ((alone, many),) = one_rank_and_many(stack, clipped, execution, 1)
    require_none(*(clip_difference(alone, many, what, bound=OF_NORM) for what in ("grad_norm", "clip_coef")))


TOLD = cells_named("fsdp2", "tp2-sp-etp1", "borrowed-tp2-sp-ep2-etp1", "borrowed-ep2-fsdp") | BY_MUON
TOLD["muon-biased-bf16"] = cell(MUON_BIASED, 2, tp=2, ep=2, etp=1, sp=True)


@contract("PAR-03h", asks=("built", "train"), cases=TOLD, needs=needs_of(TOLD), source="F03; Megatron-LM#6099",
          tier="dist")  # fmt: skip
def the_reported_norm_is_that_of_the_gradients(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """On several ranks, the gradient norm that a step reports is the norm of the step's own gradients, every parameter
    counted once.

    It holds whatever the gradients are: if another fault makes them wrong, a parameter that is left out shows all the
    same.
    """
    (step,) = stack.train(session(stack, recipe, execution, 1, "gradients")).steps
    squares = [float(each.double().square().sum()) for each in numerics.tensors(step.gradients).values()]
    norm = math.sqrt(sum(squares))
    assert norm, "the step has no gradient"
    words = f"the norm is {step.grad_norm:.9g}, that of the gradients {norm:.9g}"
    assert abs(step.grad_norm - norm) <= OF_NORM * norm, words


WINDOWS: dict[str, Cell] = {
    "fsdp2": cell(L, 2, fsdp=True, microbatches=2),
    "tp2-sp": cell(G, 2, tp=2, sp=True, microbatches=4),
    "ep2": cell(L, 2, layout="own-axis", ep=2, microbatches=2),
    "borrowed-ep2-fsdp": cell(L, 2, ep=2, fsdp=True, microbatches=2),
}


@contract("PAR-05e", asks=("built", "train"), cases=WINDOWS, source="F19", conventions=WINDOW,
          tier="dist")  # fmt: skip
def a_window_of_a_transformer_is_the_batch(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """For a transformer with experts, gradient accumulation on several ranks, over microbatches with unequal numbers of
    labels, gives the losses and gradients of the whole batch at once on one rank.
    """
    ((alone, many),) = one_rank_and_many(stack, recipe, execution, 1, "gradients")
    require_none(loss_difference(alone, many), gradient_differences(alone, many, tolerance=FLOAT32_TRANSFORMER))


@contract("PAR-08h", asks=("built", "train"), cases=STAGES, source="bringup F20", conventions=WINDOW,
          tier="dist")  # fmt: skip
def stages_of_a_transformer_are_one_rank(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """A transformer with experts, cut into pipeline stages, by themselves or with other axes, has the losses, gradients
    by name, gradient norm and selection biases of one rank.
    """
    require_one_rank(stack, recipe, execution)


@contract("PAR-14", asks=("built", "train"), cases=MET, source="F01; TST-13", conventions=WINDOW,
          tier="dist")  # fmt: skip
def axes_that_meet_are_one_rank(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """With recomputation, and with as many parallel axes at once as fit on four ranks, a transformer with experts has
    the losses, gradients by name, gradient norm and selection biases of one rank.

    Two axes that are right by themselves and in every pair can still be wrong beside a third: a group that is made for
    two of them, a divisor that counts one twice, a collective that a second pass through a layer issues once more.
    """
    require_one_rank(stack, recipe, execution)


DEEP = 8  # blocks, through which a rounding grows


def require_one_rank(stack: Training, recipe: Recipe, execution: Execution) -> None:
    ((alone, many),) = one_rank_and_many(stack, recipe, execution, 1, "gradients", "buffers")
    deep, scans = recipe.depth >= DEEP, bool({"M", "R"} & {*recipe.pattern})
    tolerance = FLOAT32_DEEP if deep else FLOAT32_TRANSFORMER
    of_norm = 2e-5 if deep else FLOAT32_SCAN.bound if scans else FLOAT32.bound  # 2.9e-6 seen on CUDA with a scan
    require_none(
        loss_difference(alone, many),
        gradient_differences(alone, many, tolerance=tolerance),
        clip_difference(alone, many, "grad_norm", bound=of_norm),
        state_differences(alone, many, "buffers", tolerance=tolerance),
    )

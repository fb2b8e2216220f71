"""In which dtype ranks reduce gradients, and whether the loss scale is removed from them."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics, traffic
from contracts.instruments.ranks import here
from contracts.law._support.late import Tensor, torch
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import SPREAD, batches, borrowed, own_axis, with_rungs
from contracts.law._support.small_models import DENSE, GROUPED_EXPERTS, IN_HALVES, cell, session
from contracts.law._support.step_comparison import (
    gradient_differences,
    loss_difference,
    on_one_rank,
    on_one_rank_and_many,
)
from contracts.law._support.training_run import large_expert_weights
from contracts.spec import FLOAT32_SCAN, Execution, Moe, Recipe, Session, Training

HALF = replace(SPREAD, name="spread-half", dtype="bf16")
MIXED: dict[str, tuple[Recipe, Execution, int]] = {
    name: (HALF, execution, execution.world)
    for name, execution in {
        "dp2": own_axis(2),
        "fsdp2": own_axis(2, fsdp=True),
        "borrowed-ep2": borrowed(2, ep=2),
        "hsdp-2x2": own_axis(4, fsdp=True, replicas=2),
    }.items()
}
TRAINED: dict[str, tuple[Recipe, Execution, int]] = {name: MIXED[name] for name in ("dp2", "fsdp2", "hsdp-2x2")} | {
    "fsdp2-recomputed": (HALF, replace(own_axis(2, fsdp=True), recompute=True), 2),
    "ep2": (HALF, own_axis(2, ep=2), 2),
}


@contract("PAR-10", asks=("built", "train"), cases=with_rungs(MIXED), needs=(), sheds=("packed",), source="hub; F09",
          tier="dist")  # fmt: skip
def mixed_precision_reduces_in_float32(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Under bfloat16, gradients are reduced in float32, parameters keep their declared dtype, and the loss scale is
    removed from gradients exactly once.

    In a bfloat16 sum over many ranks, small gradients vanish beside large ones. bfloat16 itself changes a gradient norm
    by a few percent here; a loss scale that is left in multiplies it.
    """
    execution = in_a_layout_of(stack, execution)
    weights = large_expert_weights(stack, recipe)
    session = Session(
        recipe=recipe, steps=1, execution=execution, batches=batches(1, recipe), weights=weights,
        observe=frozenset({"gradients", "weights"}),
    )  # fmt: skip
    with traffic.watched() as watch:
        (step,) = stack.train(session).steps
    assert not watch.diverged, watch.diverged
    reductions = watch.of("all_reduce", "reduce_scatter")
    assert reductions, f"rank {here().rank} of {world} reduces nothing"
    for each in reductions:
        low = [dtype for dtype in each.dtypes if dtype in ("bfloat16", "float16")]
        assert not low, f"{each.said()} over {list(each.members)} reduces in {low[0]}"
    for row in stack.built(recipe, execution.mode).parameters:
        found = step.weights[row.name].dtype
        assert found == row.dtype, f"{row.name} is held in {found}, declared {row.dtype}"
    single = replace(session, recipe=replace(recipe, dtype="fp32"), execution=Execution(precision="float32"))
    (alone,) = on_one_rank(stack, single).steps
    assert alone.grad_norm, "on one rank in float32 the norm of the gradient is 0"
    ratio = step.grad_norm / alone.grad_norm
    assert 0.8 < ratio < 1.25, f"the norm of the gradient is {ratio:.3g} times that in float32"


@contract("PAR-10a", asks=("built", "train"), cases=with_rungs(TRAINED, "mamba"), needs=("mamba",), sheds=("packed",),
          source="DeepSpeed#5170; Automodel#2484; F01",
          tier="dist")  # fmt: skip
def mixed_precision_gradients_are_those_of_one_rank(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """Under bfloat16, losses and every gradient by name on several data-parallel ranks equal, to float32 accuracy,
    those of one rank that takes the ranks' shares as its microbatches. So do ranks that share experts and tokens, and
    one rank with the whole batch.

    The same rows are then rounded in the same places, and only float32 sums differ. A parameter that is rounded when it
    is gathered, or a float32 gradient that was not reduced because its 16-bit copy was, is off by a visible fraction.
    """
    execution = in_a_layout_of(stack, execution)
    session = Session(
        recipe=recipe, steps=1, execution=execution, batches=batches(1, recipe),
        weights=large_expert_weights(stack, recipe),
        observe=frozenset({"gradients"}),
    )  # fmt: skip
    ((one, many),) = on_one_rank_and_many(stack, session, microbatches=world // execution.degrees.ep, bound=1e-5)
    words = loss_difference(one, many, bound=1e-5) or gradient_differences(one, many, tolerance=FLOAT32_SCAN)
    assert not words, words


DENSE_HALF = replace(DENSE, name="dense-half", dtype="bf16")
DENSE_FP16 = replace(DENSE, name="dense-fp16", dtype="fp16")
ALL_CHOSEN = replace(
    GROUPED_EXPERTS, name="all-chosen", dtype="bf16",
    moe=Moe(experts=4, top_k=4, expert_hidden=24, shared_hidden=0, aux_loss=0.0),
)  # fmt: skip
"""Each token goes to all experts: by rounded scores it might choose others than on one rank."""
ALIKE: dict[str, tuple[Recipe, Execution, int]] = {
    "tp2-sp": cell(DENSE_HALF, 2, tp=2, sp=True),
    "tp2-sp-fsdp-of-one": cell(DENSE_HALF, 2, tp=2, sp=True, fsdp=True),
    "tp2": cell(DENSE_HALF, 2, tp=2),
    "cp2": cell(DENSE_HALF, 2, cp=2),
    "ep2": cell(ALL_CHOSEN, 2, layout="own-axis", ep=2),
    "borrowed-ep2": cell(ALL_CHOSEN, 2, ep=2),
    "pp2": cell(replace(DENSE_HALF, **IN_HALVES), 2, pp=2, microbatches=2),  # type: ignore[arg-type]  # a table of both
    "interleaved": cell(replace(DENSE_HALF, pattern="A|E|A|E"), 2, pp=2, microbatches=2, interleaved=True),
    "fp16-tp2-sp": cell(DENSE_FP16, 2, tp=2, sp=True),
    "fp16-cp2": cell(DENSE_FP16, 2, cp=2, microbatches=2),
    "fp16-fsdp2": cell(DENSE_FP16, 2, fsdp=True, microbatches=2),
    "fp16-borrowed-ep2": cell(replace(ALL_CHOSEN, dtype="fp16"), 2, ep=2),
    "tp2-sp-beside-dp2": cell(DENSE_HALF, 4, tp=2, sp=True),
    "cp2-beside-tp2-sp": cell(DENSE_HALF, 4, cp=2, tp=2, sp=True),
}
IN_HALF = 2e-1
"""Relative L2 error of a gradient in bfloat16 against float32: 8e-2 was seen, and 0.7 where a part is lost."""


@contract("PAR-10b", asks=("built", "train"), cases=ALIKE, tier="dist", source="pytorch #190626; F01; F09",
          needs={"": (), **dict.fromkeys(("ep2", "borrowed-ep2", "fp16-borrowed-ep2"), ("experts",))})  # fmt: skip
def what_ranks_hold_alike_is_summed_in_float32(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """Under bfloat16 and float16, every gradient on tensor-, context-, expert- and pipeline-parallel ranks equals one
    rank's float32 gradient to the accuracy of bfloat16. Gradients of norms, which are replicated, are summed over ranks
    in float32.

    Under sequence parallel each rank has a part of a norm's gradient. If the parts are added in the dtype of the
    activations, because the reduction that float32 was asked for is another one, what is left has 8 bits, or 11: nearly
    every element is a number of that dtype, and a float32 sum of parts hardly ever is. Under float16 the output
    projection is small, so that nothing overflows; a loss scale that an axis takes out twice, or never, shows.
    """
    asked = session(stack, recipe, execution, 1, "gradients")
    rows = stack.built(recipe, execution.mode).parameters
    if recipe.dtype == "fp16":
        quiet = {row.name for row in rows if row.role == "head"}
        given = {name: each * (2**-6 if name in quiet else 1) for name, each in numerics.tensors(asked.weights).items()}
        asked = replace(asked, weights=numerics.arrays(given))
    single = Execution(precision="float32", layout=asked.execution.layout)
    (one,) = on_one_rank(stack, replace(asked, recipe=replace(recipe, dtype="fp32"), execution=single)).steps
    (many,) = stack.train(asked).steps
    got, want = (numerics.tensors(step.gradients) for step in (many, one))
    held = exact = 0
    for row in rows:
        assert row.name in got, f"no gradient of {row.name} is reported"
        off = numerics.distances(got[row.name].double(), want[row.name].double())["L2"].relative
        assert off <= IN_HALF, f"the gradient of {row.name} is off by {off:.1e} of that on one rank, over {IN_HALF:.0e}"
        if row.role == "norm":
            held += got[row.name].numel()
            exact += _of_bits(got[row.name], 11 if recipe.dtype == "fp16" else 8)
    half = "float16" if recipe.dtype == "fp16" else "bfloat16"
    words = f"{exact} of {held} elements of the gradients of norms are numbers of {half}"
    if _have_parts(execution):
        assert exact < held / 2, f"{words}: the parts of {world} ranks were not added in float32"


def _of_bits(grad: Tensor, bits: int) -> int:
    """How many elements have a mantissa of so few bits, whatever power of two they were multiplied by."""
    mantissa = torch.frexp(grad).mantissa * 2**bits
    return int((mantissa == mantissa.round()).sum())


def _have_parts(execution: Execution) -> bool:
    """Whether ranks have different tokens of what passes a norm, so that its gradient is a sum over them."""
    degrees = execution.degrees
    alike = degrees.tp * degrees.pp * (degrees.ep if execution.layout == "own-axis" else 1)
    return degrees.sp or execution.world > alike

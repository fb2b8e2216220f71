"""The gradients that a step gives a router for its balance loss and its z loss, whatever the balance loss is over."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.late import Tensor
from contracts.law._support.small_models import LOSS, Cell, cell, one_rank_and_many
from contracts.law._support.step_comparison import gradient_differences
from contracts.law._support.step_comparison import loss_difference as losses_off
from contracts.law._support.training_run import LETTERS, Rows, batch, large_expert_weights, run
from contracts.law._support.transformer_layouts import G, H, L
from contracts.spec import FLOAT32_STEPS, FLOAT32_TRANSFORMER, FLOAT64_SCAN, Execution, Moe, Recipe, Training, within
from contracts.spec.violations import require_none

PAPERS = "arXiv 2412.19437, eq. 17-20; arXiv 2101.03961, eq. 4; arXiv 2501.11873; arXiv 2202.08906, eq. 5"


def _loud(recipe: Recipe, aux: float = 30.0, z: float = 5.0) -> Recipe:
    """Losses of a router that outweigh the task loss."""
    return replace(recipe, name=f"{recipe.name}-loud", moe=replace(recipe.moe or Moe(), aux_loss=aux, z_loss=z))


_G, _L, _H = _loud(G), _loud(L), _loud(H)
_IN_GROUPS = _loud(replace(G, name="groups", moe=replace(L.moe or Moe(), top_k=4, groups=(4, 2))))
LAYOUTS: dict[str, Cell] = {
    "dp2": cell(_G, 2),
    "dp2-balance-alone": cell(_loud(G, z=0.0), 2),
    "fsdp2": cell(_G, 2, fsdp=True),
    "tp2-sp": cell(_G, 2, tp=2, sp=True),
    "tp2-sp-z-alone": cell(_loud(G, aux=0.0), 2, tp=2, sp=True),
    "tp2-sp-etp1": cell(_G, 2, tp=2, etp=1, sp=True),
    "cp2": cell(_G, 2, cp=2),
    "ep2": cell(_G, 2, layout="own-axis", ep=2),
    "borrowed-ep2": cell(_G, 2, ep=2),
    "borrowed-ep2-fsdp": cell(_G, 2, ep=2, fsdp=True),
    "borrowed-tp2-sp-ep2-etp1": cell(_G, 2, tp=2, ep=2, etp=1, sp=True),
    "sigmoid-dp2": cell(_L, 2),
    "groups-tp2-sp-etp1": cell(_IN_GROUPS, 2, tp=2, etp=1, sp=True),
    "groups-cp2": cell(_IN_GROUPS, 2, cp=2),
    "groups-borrowed-ep2": cell(_IN_GROUPS, 2, ep=2),
    "hybrid-dp2": cell(_H, 2),
    "hybrid-tp2-sp": cell(_H, 2, tp=2, sp=True),
    "1f1b": cell(replace(_G, pattern="AE|AE"), 2, pp=2, microbatches=4),
    "tp2-sp-dp2": cell(_G, 4, tp=2, sp=True),
}


@contract("MOE-05i", asks=("built", "train"), cases=LAYOUTS, conventions=("balance-over",), source=PAPERS + "; F01",
          tier="dist")  # fmt: skip
def what_a_router_learns_does_not_depend_on_the_layout(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """The balance loss, the z loss and their gradients equal one rank's, over data, tensor, context and expert parallel
    and their combinations, whether the stack balances each sequence, each microbatch or the global batch.

    These losses outweigh the task loss here. If a stack declares a balance loss over a microbatch, the one rank has
    the microbatches of all of them. The loss that is reported is summed elsewhere than the one that is differentiated,
    and shows no gradient that is multiplied by TP, or covers only one rank's tokens.
    """
    ((alone, many),) = one_rank_and_many(stack, recipe, execution, 1, "gradients")
    told = [name for name in ("aux", "z", "total") if name in alone.losses]
    require_none(
        losses_off(alone, many, *told, bound=LOSS),
        gradient_differences(alone, many, "router", tolerance=FLOAT32_TRANSFORMER),
        gradient_differences(alone, many, tolerance=FLOAT32_TRANSFORMER),
    )


MANY: Rows = tuple(((13,), masked) for masked in (0, 2, 0, 1, 0))
FEW: Rows = tuple(((13,), masked) for masked in (12, 13, 11, 12, 12))
SPREAD = replace(LETTERS, moe=replace(LETTERS.moe or Moe(), shared_hidden=0))
WEIGHED: dict[str, tuple[Recipe, int]] = {
    "balance": (_loud(SPREAD, z=0.0), 1),
    "z": (_loud(SPREAD, aux=0.0), 1),
    "balance-in-five": (_loud(SPREAD, z=0.0), 5),
    "z-in-five": (_loud(SPREAD, aux=0.0), 5),
}
LOSSES = {
    "balance": ("experts", "balance-loss"),
    "z": ("experts", "z-loss"),
    "balance-in-five": ("experts", "balance-loss", "microbatches"),
    "z-in-five": ("experts", "z-loss", "microbatches"),
}


@contract("MOE-05j", asks=("built", "train"), cases=WEIGHED, needs=LOSSES, source=PAPERS + "; F19")
def a_balance_loss_does_not_depend_on_labels(stack: Training, recipe: Recipe, microbatches: int) -> None:
    """The balance loss and the z loss give the same gradients however many positions have a label.

    Both are means over sequences or tokens. A stack that sums all losses and divides the sum by the labels of the step
    multiplies them where labels are few: in a batch of prompts, or of padding. The check takes the gradient of a step
    with the loss less that without it, once with 57 labels and once with one.
    """
    weights = large_expert_weights(stack, recipe)
    plain = replace(recipe, name=f"{recipe.name}-plain", moe=replace(recipe.moe or Moe(), aux_loss=0.0, z_loss=0.0))
    added: list[dict[str, Tensor]] = []
    scale = 0.0
    for rows in (MANY, FEW):
        given = (replace(batch("labels", rows=rows, recipe=recipe), documents=None),)
        with_, without = (
            numerics.tensors(
                run(stack, each, given, "gradients", weights=weights, microbatches=microbatches).steps[0].gradients
            )
            for each in (recipe, plain)
        )
        added.append({name: each - without[name] for name, each in with_.items()})
        scale = max(scale, *(float(each.abs().max()) for each in with_.values()))
    many, few = added
    bound = within(FLOAT64_SCAN.bound, FLOAT32_STEPS.bound)
    moved = [name for name, each in many.items() if "router" in name and float(each.abs().max()) > bound * scale]
    assert moved, "the loss adds nothing to the gradient of any router"
    for name in sorted(few, key=lambda each: ("router" not in each, each)):
        off = float((few[name] - many[name]).abs().max())
        size = float(many[name].abs().max())
        if not off <= bound * max(size, scale):
            got = float((few[name] * many[name]).sum() / many[name].square().sum())
            raise AssertionError(
                f"what the loss adds to the gradient of {name} is {got:.4g} times as much where few positions have a "
                f"label"
            )

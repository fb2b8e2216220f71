"""What a rank holds after a step of NAM56R at true size, against the budget, byte by byte.

The model is built, sharded and stepped as in training, without its memory; the budget knows only the recipe and the
degrees. Parameters, gradients and optimizer state are compared separately, and within each experts and the rest.
"""

from dataclasses import replace
from typing import Protocol

from contracts.contract import contract
from contracts.law._support.full_size import LETTERS, WHOLE
from contracts.law._support.layouts import needs_layout
from contracts.law._support.multi_rank_run import borrowed, own_axis
from contracts.law._support.small_model import ROOMY
from contracts.spec import Batch, Execution, Holding, Recipe, Rehearsing
from contracts.spec.capacity import Capacity, Sharding, Spread, StageBudget


class Stack(Capacity, Rehearsing, Protocol):
    """What these checks ask of a stack."""


EIGHT_LETTERS = replace(LETTERS, name="nam56r-two-of-each", depth=8)
UNEQUAL = replace(LETTERS, name="nam56r-unequal-stages", pattern="A|EMR")
PLANS: dict[str, tuple[Recipe, Execution, int]] = {  # recipe, execution, rank
    "dp8": (LETTERS, own_axis(8), 3),
    "fsdp8": (LETTERS, own_axis(8, fsdp=True), 5),
    "hsdp-2x8": (LETTERS, own_axis(16, fsdp=True, replicas=2), 9),
    "tp2-sp-ep2-fsdp2": (LETTERS, own_axis(8, tp=2, sp=True, ep=2, etp=1, fsdp=True), 6),
    "borrowed-tp2-sp-ep4-fsdp4": (LETTERS, borrowed(8, tp=2, sp=True, ep=4, etp=1, fsdp=True), 7),
    "borrowed-tp2-sp-ep2-etp2-fsdp": (LETTERS, borrowed(8, tp=2, sp=True, ep=2, etp=2, fsdp=True), 1),
    "borrowed-cp2-fsdp4": (LETTERS, borrowed(8, cp=2, fsdp=True), 3),
    "pp2-fsdp2": (EIGHT_LETTERS, replace(own_axis(4, pp=2, fsdp=True), microbatches=2), 1),
    "pp2-tp2-sp": (EIGHT_LETTERS, replace(own_axis(4, pp=2, tp=2, sp=True), microbatches=2), 0),
    "pp2-tp2-sp-last": (EIGHT_LETTERS, replace(own_axis(4, pp=2, tp=2, sp=True), microbatches=2), 3),
    "pp2-unequal": (UNEQUAL, replace(own_axis(2, pp=2), microbatches=2), 0),
    "muon-fsdp8": (replace(LETTERS, optim=replace(LETTERS.optim, rule="muon")), own_axis(8, fsdp=True), 0),
    "muon-borrowed-tp2-sp-ep4": (
        replace(LETTERS, optim=replace(LETTERS.optim, rule="muon")),
        borrowed(8, tp=2, sp=True, ep=4, etp=1, fsdp=True), 2,
    ),
}  # fmt: skip
PARTS = {"weights": "weight", "gradients": "gradient", "optimizer": "state"}
SIXTEEN_BITS = 0.85
"""A budget may count 18 bytes per bfloat16 parameter, with a weight beside its master. A stack that keeps only the
master holds 16 of them: 4 of the 6 bytes of weight and master. Under Muon it holds 12 of 14."""


@contract("MEM-01b", asks=("rehearse", "budget"), cases=PLANS, source="hub: memory budget anatomy")
def a_rank_holds_what_the_budget_said(stack: Stack, recipe: Recipe, execution: Execution, rank: int) -> None:
    """In float32, a rank of a true-size model holds the bytes of weights, gradients and optimizer state that its
    stage's budget predicts, for experts and for everything else.

    A plan is believed until the first out-of-memory error on 64 nodes. Experts that every rank keeps, unsharded
    optimizer state and moments of a rule that has none cost several gigabytes each, and no loss shows them.
    """
    _judge(stack, replace(recipe, dtype="fp32"), execution, rank)


FULL: dict[str, tuple[Recipe, Execution, int]] = {
    "fsdp8": (WHOLE, own_axis(8, fsdp=True), 0),
    "tp2-sp-ep2-fsdp2": (WHOLE, own_axis(8, tp=2, sp=True, ep=2, etp=1, fsdp=True), 7),
    "pp2-tp2-sp": (WHOLE, replace(own_axis(4, pp=2, tp=2, sp=True), microbatches=2), 2),
}


@contract("MEM-01h", asks=("rehearse", "budget"), cases=FULL, source="hub: memory budget anatomy", slow=True)
def a_rank_of_nam56r_holds_what_the_budget_said(stack: Stack, recipe: Recipe, execution: Execution, rank: int) -> None:
    """At full depth, a rank holds the bytes that its stage's budget predicts: exactly in float32, and in bfloat16 with
    or without a 16-bit weight beside each master weight.
    """
    _judge(stack, replace(recipe, dtype="fp32"), execution, rank)
    found, stage = _held(stack, recipe, execution, rank), _stage(stack, recipe, execution, rank)
    held = sum(each.weight + each.gradient + each.state for each in found[0] + found[1])
    said = sum(line.bytes for line in stage.lines if line.part in PARTS)
    assert SIXTEEN_BITS * said <= held <= said, f"in bfloat16 a rank holds {held} bytes of state, predicted {said}"


def _judge(stack: Stack, recipe: Recipe, execution: Execution, rank: int) -> None:
    stage = _stage(stack, recipe, execution, rank)
    dense, experts = _held(stack, recipe, execution, rank)
    for part, field in PARTS.items():
        for what, tensors, shares in (("experts", experts, ("ep",)), ("all else", dense, ("replicated", "tp"))):
            held = sum(getattr(each, field) for each in tensors)
            said = sum(line.bytes for line in stage.lines if line.part == part and line.share in shares)
            words = f"rank {rank} holds {held} bytes of {part} of {what}, predicted {said}"
            assert abs(held - said) <= 4 * len(shares), words  # a share is rounded up to whole bytes


def _held(stack: Stack, recipe: Recipe, execution: Execution, rank: int) -> tuple[list[Holding], list[Holding]]:
    """What the rank holds: of everything but experts, and of experts."""
    needs_layout(stack, execution.layout)
    found = stack.rehearse(_with_one_sequence_each(recipe, execution), execution, rank, "balanced")
    experts = [each for name, each in found.held.items() if name in found.experts]
    return [each for name, each in found.held.items() if name not in found.experts], experts


def _stage(stack: Stack, recipe: Recipe, execution: Execution, rank: int) -> StageBudget:
    sharding: Sharding = "full" if execution.fsdp else "none"
    spread = Spread(
        degrees=execution.degrees, world=execution.world // execution.replicas, layout=execution.layout,
        sharding=sharding,
    )  # fmt: skip
    budget = stack.budget(_with_one_sequence_each(recipe, execution), spread, ROOMY)
    return budget.stages[rank * execution.degrees.pp // execution.world]


def _with_one_sequence_each(recipe: Recipe, execution: Execution) -> Recipe:
    """The recipe with one sequence per microbatch and rank."""
    return replace(recipe, batch=Batch(micro=1, total=execution.world * execution.microbatches))

"""What the checks on pipelines share: models cut into stages, how they run, and the comparison with one rank.

The oracle is the same stack on one rank, which every rank runs alone, with the same whole weights and whole batches.
"""

from __future__ import annotations

from dataclasses import replace

from contracts import instruments
from contracts.checks._support.single_rank_run import on_one_rank
from contracts.checks._support.training_run import LETTERS, batch, table, uneven
from contracts.spec.array import Arrays
from contracts.spec.recipe import Moe, Mtp, Recipe
from contracts.spec.tolerance import FLOAT64_SCAN
from contracts.spec.topology import Degrees
from contracts.spec.training import Execution, Observed, Session, Step, Tokens, Trained, Training

STAGED = replace(LETTERS, name="staged", pattern="AEMRE", depth=5, seq_length=16, batch=replace(LETTERS.batch, total=4))
HALVES = replace(STAGED, pattern="AE|MRE")
"""Two unequal stages, each with experts; layer 0 is the only attention layer."""
QUARTERS = replace(STAGED, pattern="A|E|MR|E")
BIASED = replace(
    HALVES,
    name="staged-biased",
    moe=Moe(experts=14, top_k=3, expert_hidden=20, score="sigmoid", selection_bias=True, bias_rate=0.25, aux_loss=0.3),
)
AHEAD = replace(HALVES, mtp=Mtp(depth=2, loss_weight=0.4))
TIED = replace(HALVES, untied_embeddings=False)
TIED_AHEAD_QUARTERS = replace(QUARTERS, untied_embeddings=False, mtp=Mtp(depth=1, loss_weight=0.4))

TWO = Degrees(pp=2)
IN_TWO = Execution(world=2, degrees=TWO, microbatches=4)
INTERLEAVED = replace(IN_TWO, schedule="interleaved")
IN_FOUR = Execution(world=4, degrees=Degrees(pp=4), microbatches=4)
BESIDE_DP = Execution(world=4, degrees=TWO, microbatches=2)
BESIDE_TP = Execution(world=4, degrees=Degrees(pp=2, tp=2, sp=True), microbatches=4)
BESIDE_EP = Execution(world=4, degrees=Degrees(pp=2, ep=2), microbatches=4)

ROWS_16: tuple[tuple[tuple[int, ...], int], ...] = (((16,), 13), ((4, 12), 0), ((1, 5, 10), 6), ((13, 3), 0))
"""Documents of each row of 16 tokens, and how many labels are masked: 2, 14, 7, 14 count."""

Flow = tuple[Recipe, Execution, int]


def flow(recipe: Recipe, execution: Execution) -> Flow:
    """A case: what is trained, how, and on how many ranks."""
    return recipe, execution, execution.world


def given(steps: int) -> tuple[Tokens, ...]:
    return tuple(batch(f"stages {step}", STAGED.vocab, ROWS_16) for step in range(steps))


def heavy(stack: Training, recipe: Recipe) -> Arrays:
    """Weights with larger experts and routers, so that their errors show."""
    tensors = instruments.numerics.tensors(uneven(table(stack, recipe)))
    scaled = {
        name: 2 * each if ".experts." in name or "router.weight" in name else each for name, each in tensors.items()
    }
    return instruments.numerics.arrays(scaled)


def both(
    stack: Training, recipe: Recipe, execution: Execution, batches: tuple[Tokens, ...], *observe: Observed
) -> tuple[Trained, Trained]:
    """A run on one rank and the run on all ranks, from the same whole weights, in float64."""
    session = Session(
        recipe=recipe, steps=len(batches), execution=Execution(precision="float64"), batches=batches,
        weights=heavy(stack, recipe), observe=frozenset(observe),
    )  # fmt: skip
    many = replace(session, execution=replace(execution, precision="float64"))
    return on_one_rank(stack, session), stack.train(many)


def losses_apart(many: Step, one: Step) -> str:
    """The first loss on which the runs differ, in words."""
    for name, want in one.losses.items():
        found = many.losses.get(name, float("nan"))
        if not abs(found - want) <= 1e-10 * max(1.0, abs(want)):
            return f"{told(many, one)}: {name} is {found:.10g}, on one rank {want:.10g} (step {one.number})"
    return ""


def unlike(many: Step, one: Step, what: str, got: Arrays, want: Arrays) -> str:
    """In which tensors the two runs differ, and what loss and norm alone show; empty when they agree."""
    words = instruments.numerics.named_apart(what, got, want, FLOAT64_SCAN)
    return f"{told(many, one)}: {words} (step {one.number})" if words else ""


def gradients_unlike(many: Step, one: Step, what: str = "the gradient of") -> str:
    """`unlike` for the gradients. The scale comes from all gradients, because a single one may cancel to rounding."""
    words = instruments.numerics.gradients_apart(what, many.gradients, one.gradients, FLOAT64_SCAN)
    return f"{told(many, one)}: {words} (step {one.number})" if words else ""


def told(many: Step, one: Step) -> str:
    """What the loss and the gradient's norm alone show."""
    loss = _seen("loss", many.losses.get("total", float("nan")), one.losses["total"])
    return f"{loss}, {_seen('norm', many.grad_norm, one.grad_norm)}"


def _seen(name: str, got: float, want: float) -> str:
    """Whether a curve would show the difference; at best it shows a relative one of 1e-4."""
    return f"{name} agrees" if abs(got - want) <= 1e-4 * abs(want) else f"{name} is {got:.6g} and not {want:.6g}"

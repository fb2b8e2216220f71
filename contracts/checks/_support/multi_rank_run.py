"""Two runs from the same whole weights and batches, on one rank and on several, and how they differ.

Experts and routers get larger weights, so that their errors are not lost beside the residual stream.
"""

from __future__ import annotations

from dataclasses import replace

from contracts import instruments
from contracts.checks._support.layouts import needs_layout
from contracts.checks._support.single_rank_run import on_one_rank
from contracts.checks._support.training_run import LETTERS, batch, table, uneven
from contracts.spec.array import Array, Arrays
from contracts.spec.recipe import Moe, Recipe
from contracts.spec.tolerance import EXACT, FLOAT64_SCAN, Tolerance
from contracts.spec.topology import Degrees
from contracts.spec.training import Execution, Observed, Session, Step, Tokens, Training

SPREAD = replace(
    LETTERS,
    name="spread",
    pattern="AEMRE",
    depth=5,
    seq_length=16,
    vocab=67,
    moe=Moe(experts=16, top_k=3, expert_hidden=20, shared_hidden=28, aux_loss=0.3, z_loss=0.05),
    batch=replace(LETTERS.batch, total=4),
)
BIASED = replace(
    SPREAD,
    name="spread-biased",
    moe=Moe(
        experts=16, top_k=3, expert_hidden=20, score="sigmoid", selection_bias=True, bias_rate=0.25, aux_loss=0.3,
        z_loss=0.05,
    ),
)  # fmt: skip
ROWS = (((16,), 13), ((4, 12), 0), ((1, 5, 10), 6), ((13, 3), 0))
"""Documents of each row, and how many of its labels are masked; 2, 14, 8 and 14 labels count."""


def own(world: int, *, fsdp: bool = False, replicas: int = 1, **degrees: int) -> Execution:
    return Execution(world=world, degrees=Degrees(**degrees), fsdp=fsdp, replicas=replicas)  # type: ignore[arg-type]  # sp


def borrowed(world: int, *, fsdp: bool = False, replicas: int = 1, **degrees: int) -> Execution:
    return replace(own(world, fsdp=fsdp, replicas=replicas, **degrees), layout="borrowed")


def batches(steps: int) -> tuple[Tokens, ...]:
    return tuple(batch(f"spread {step}", SPREAD.vocab, ROWS) for step in range(steps))


def heavy(stack: Training, recipe: Recipe) -> Arrays:
    """Drawn weights, with those of experts and routers doubled."""
    drawn = instruments.numerics.tensors(uneven(table(stack, recipe)))
    strong = (".experts.", "router.weight")
    return instruments.numerics.arrays(
        {name: each * (2 if any(part in name for part in strong) else 1) for name, each in drawn.items()}
    )


def both(
    stack: Training,
    recipe: Recipe,
    execution: Execution,
    given: tuple[Tokens, ...],
    *observe: Observed,
    weights: Arrays | None = None,
    buffers: Arrays | None = None,
    steps: int = 0,
    at: frozenset[int] = frozenset(),
) -> list[tuple[Step, Step]]:
    """For each step, in float64, the step on one rank and the step on all ranks. With no batches given, `steps` steps
    run over the stack's own data. `observe` applies to the steps `at`, or to every step where `at` is empty.
    """
    needs_layout(stack, execution.layout)
    session = Session(
        recipe=recipe,
        steps=len(given) or steps,
        batches=given,
        weights=heavy(stack, recipe) if weights is None else weights,
        buffers=buffers or {},
        observe=frozenset(observe),
        at=at,
    )
    alone = replace(session, execution=Execution(mode=execution.mode, precision="float64"))
    many = replace(session, execution=replace(execution, precision="float64"))
    return list(zip(on_one_rank(stack, alone).steps, stack.train(many).steps, strict=True))


def told(alone: Step, many: Step) -> str:
    """What the loss and the gradient's norm show, as precisely as a curve does."""
    found = []
    pairs = (("loss", many.losses.get("total", float("nan")), alone.losses["total"]),
             ("norm", many.grad_norm, alone.grad_norm))  # fmt: skip
    for name, got, want in pairs:
        alike = abs(got - want) <= 1e-4 * abs(want)
        found.append(f"{name} agrees" if alike else f"{name} is {got:.5g} and not {want:.5g}")
    return ", ".join(found)


def apart(alone: Step, many: Step, what: str, got: Arrays, want: Arrays, tolerance: Tolerance = FLOAT64_SCAN) -> str:
    """In which tensors two steps differ, after what the loss and the norm show; empty when they agree."""
    words = instruments.numerics.named_apart(what, got, want, tolerance)
    return f"{told(alone, many)}: {words} (step {alone.number})" if words else ""


def gradients_apart(
    alone: Step, many: Step, *parts: str, what: str = "the gradient of", tolerance: Tolerance = FLOAT64_SCAN
) -> str:
    """`apart` for the gradients, or for those whose names contain one of `parts`. The scale comes from all gradients,
    because a single one may cancel to rounding.
    """
    got, want = (some(step.gradients, *(parts or ("",))) for step in (many, alone))
    words = instruments.numerics.named_apart(
        what, got, want, tolerance, scale=instruments.numerics.scale_of(alone.gradients)
    )
    return f"{told(alone, many)}: {words} (step {alone.number})" if words else ""


def losses_apart(alone: Step, many: Step, *names: str) -> str:
    """The first loss on which two steps differ; all losses are compared when none is named."""
    for name in names or alone.losses:
        found, want = many.losses.get(name, float("nan")), alone.losses[name]
        if not abs(found - want) <= 1e-11 * max(1.0, abs(want)):
            return f"{told(alone, many)}: {name} is {found:.10g}, {want:.10g} on one rank (step {alone.number})"
    return ""


def some(arrays: Arrays, *parts: str) -> dict[str, Array]:
    """The tensors whose names contain one of `parts`."""
    return {name: each for name, each in arrays.items() if any(part in name for part in parts)}


def biases_apart(alone: Step, many: Step, assignments: int) -> str:
    """How a router's counts of a step, or the biases updated from them, are wrong; empty when they are right."""
    for name, counts in instruments.numerics.tensors(some(many.seen, ".counts")).items():
        if int(counts.sum()) != assignments:
            return f"{name} has {int(counts.sum())} assignments, expected {assignments}"
    words = instruments.numerics.named_apart("the buffer", many.buffers, alone.buffers, EXACT)
    return f"{told(alone, many)}: {words}" if words else ""

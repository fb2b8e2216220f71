"""What the checks on transformers with experts share: recipes that many stacks can run, layouts, runs in float32.

Recipes are pairs of attention and experts, and one with a scan, without packed documents and auxiliary losses: that is
what stacks have in common. Every size divides by 4 and by 16 bytes, because grouped products of real stacks want it.

The oracle is the same stack on one rank. Every stack offers float32, so bounds are wider than in `parallel.layouts`,
and the gradients of the first step, from the same whole weights, say the most: Adam turns rounding into signs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from contracts import instruments
from contracts.checks._support.layouts import needs_layout
from contracts.checks._support.single_rank_run import on_one_rank
from contracts.checks._support.training_run import table, uneven
from contracts.instruments.ranks import here
from contracts.spec.array import Array, Arrays
from contracts.spec.recipe import Batch, Mamba, Mla, Moe, Optim, Recipe
from contracts.spec.records import Violation
from contracts.spec.tolerance import FLOAT32_TRANSFORMER, Tolerance
from contracts.spec.topology import Degrees, Layout
from contracts.spec.training import Execution, Observed, Session, Step, Tokens, Training
from contracts.spec.violations import compared

GROUPED_EXPERTS = Recipe(
    name="grouped-experts",
    family="small",
    pattern="AE",
    depth=4,
    hidden=32,
    ffn_hidden=48,
    heads=8,
    kv_groups=4,
    seq_length=16,
    vocab=64,
    rope_theta=10_000,
    activation="swiglu",
    moe=Moe(experts=16, top_k=3, expert_hidden=24, shared_hidden=0, aux_loss=0.0),
    optim=Optim(lr=1e-3, min_lr=1e-3, schedule="constant", warmup=1, steps=8, weight_decay=0.1, clip=0.5),
    batch=Batch(micro=1, total=4),
    dtype="fp32",
    hbm_gb=2,
)
"""Grouped-query attention with a QK norm, gates by a softmax over the chosen experts, no shared expert."""
LATENT_EXPERTS = replace(
    GROUPED_EXPERTS,
    name="latent-experts",
    kv_groups=8,
    qk_norm=False,
    mla=Mla(q_lora=24, kv_lora=16, qk_head=8, qk_rope=4, v_head=12),
    moe=Moe(
        experts=16, top_k=3, expert_hidden=24, shared_hidden=48, score="sigmoid", selection_bias=True, aux_loss=0.0,
        route_scale=1.5, bias_rate=0.25,
    ),
)  # fmt: skip
"""Latent attention, sigmoid gates with a selection bias, a shared expert."""

DENSE = replace(GROUPED_EXPERTS, name="dense", moe=None)
"""The same with an MLP in place of the experts: a plain transformer."""

HYBRID_EXPERTS = replace(
    GROUPED_EXPERTS, name="hybrid-experts", pattern="AEME", mamba=Mamba(heads=8, head_dim=8, state=8, groups=4)
)
"""The same with a scan in place of every second attention: a hybrid of three blocks that several stacks have."""

IN_HALVES = {"pattern": "AE|AE", "depth": 4}
IN_QUARTERS = {"pattern": "AE|AE|AE|AE", "depth": 8}
MASKED = (13, 0, 6, 3)
"""How many labels at the beginning of each row do not count; 2, 15, 9 and 12 labels do."""
IDLE = (tuple(range(8)), (12, 13, 14, 15))
"""Experts that a selection bias keeps idle, in the first routed layer and in the second: under ep2, one rank has no
work in the first."""

Cell = tuple[Recipe, Execution, int]


def cell(recipe: Recipe, world: int, *, layout: Layout = "borrowed", fsdp: bool = False, replicas: int = 1,
         microbatches: int = 1, interleaved: bool = False, compiled: bool = False, **degrees: int) -> Cell:  # fmt: skip
    """A recipe, on how many ranks, how; `degrees` are those of the axes."""
    execution = Execution(
        world=world, degrees=Degrees(**degrees), layout=layout, fsdp=fsdp, replicas=replicas,  # type: ignore[arg-type]  # sp
        microbatches=microbatches, schedule="interleaved" if interleaved else "1f1b", precision="float32",
        compile="blocks" if compiled else "none", backend="aot_eager",
    )  # fmt: skip
    return recipe, execution, world


def laid_out(stack: Training, execution: Execution) -> Execution:
    """The execution in the layout of the stack: without expert parallel, the two layouts have the same ranks.

    Raises:
        NotOffered: when there is expert parallel and the stack does not build the layout.
    """
    if execution.degrees.ep == 1 and execution.layout not in stack.layouts:
        return replace(execution, layout=min(stack.layouts, default=execution.layout))
    needs_layout(stack, execution.layout)
    return execution


def batches(steps: int) -> tuple[Tokens, ...]:
    """Whole rows, one document each, with unequal numbers of labels that count."""
    found = []
    for step in range(steps):
        tokens_BT = instruments.fixtures.integers(f"transformers {step}", (4, 16), GROUPED_EXPERTS.vocab)
        labels_BT = tokens_BT.roll(-1, 1)
        labels_BT[:, -1] = -100
        for row, masked in enumerate(MASKED):
            labels_BT[row, :masked] = -100
        found.append(Tokens(tokens=instruments.numerics.array(tokens_BT), labels=instruments.numerics.array(labels_BT)))
    return tuple(found)


def heavy(stack: Training, recipe: Recipe) -> Arrays:
    """Drawn weights in float32, with those of experts and routers doubled: a residual stream hides dead experts."""
    drawn = instruments.numerics.tensors(uneven(table(stack, recipe)))
    strong = (".experts.", "router.weight")
    return instruments.numerics.arrays(
        {name: (each * (2 if any(part in name for part in strong) else 1)).float() for name, each in drawn.items()}
    )


def idling(stack: Training, recipe: Recipe) -> Arrays:
    """Selection biases that keep some experts from being chosen, where the recipe has biases."""
    import torch

    found = {}
    named = sorted(
        (name, shape) for name, shape in stack.built(recipe, "nemo_native").buffers.items() if "bias" in name
    )
    for index, (name, shape) in enumerate(named):
        bias_E = torch.zeros(shape)
        bias_E[list(IDLE[index % len(IDLE)])] = -4.0  # sigmoids lie in 0 … 1
        found[name] = instruments.numerics.array(bias_E)
    return found


def session(stack: Training, recipe: Recipe, execution: Execution, steps: int, *observe: Observed) -> Session:
    """Steps from drawn weights; routers with biases start with idle experts."""
    return Session(
        recipe=recipe, steps=steps, execution=laid_out(stack, execution), batches=batches(steps),
        weights=heavy(stack, recipe), buffers=idling(stack, recipe), observe=frozenset(observe),
    )  # fmt: skip


def both(
    stack: Training,
    recipe: Recipe,
    execution: Execution,
    steps: int,
    *observe: Observed,
    at: frozenset[int] = frozenset(),
) -> list[tuple[Step, Step]]:
    """For each step, the step on one rank and the step on all ranks; `observe` applies to the steps `at`, where some
    are named.
    """
    asked = replace(session(stack, recipe, execution, steps, *observe), at=at)
    alone = replace(asked, execution=Execution(precision="float32", layout=asked.execution.layout))
    return list(zip(on_one_rank(stack, alone).steps, stack.train(asked).steps, strict=True))


def told(alone: Step, many: Step) -> str:
    """What the loss and the gradient's norm show, as precisely as a curve does."""
    pairs = (("loss", many.losses.get("total", float("nan")), alone.losses["total"]),
             ("norm", many.grad_norm, alone.grad_norm))  # fmt: skip
    found = []
    for name, got, want in pairs:
        alike = abs(got - want) <= 1e-4 * abs(want)
        found.append(f"{name} agrees" if alike else f"{name} is {got:.5g} and not {want:.5g}")
    return ", ".join(found)


def apart(
    alone: Step, many: Step, what: str, got: Arrays, want: Arrays, tolerance: Tolerance = FLOAT32_TRANSFORMER
) -> str:
    """In which tensors two steps differ, after what the loss and the norm show; empty when they agree."""
    words = instruments.numerics.named_apart(what, got, want, tolerance)
    return f"{told(alone, many)}: {words} (step {alone.number}, rank {here().rank})" if words else ""


def gradients_apart(alone: Step, many: Step, tolerance: Tolerance = FLOAT32_TRANSFORMER) -> str:
    """`apart` for the gradients. The scale comes from all gradients, because a single one may cancel to rounding."""
    words = instruments.numerics.gradients_apart("the gradient of", many.gradients, alone.gradients, tolerance)
    return f"{told(alone, many)}: {words} (step {alone.number}, rank {here().rank})" if words else ""


def figures_apart(alone: Step, many: Step) -> str:
    """In which losses and counts two steps differ, in words."""
    where = f"(step {alone.number}, rank {here().rank})"
    if many.tokens != alone.tokens:
        return f"{many.tokens} labels count, {alone.tokens} on one rank {where}"
    for name, want in alone.losses.items():
        found = many.losses.get(name, float("nan"))
        if not abs(found - want) <= LOSS * max(1.0, abs(want)):
            return f"{told(alone, many)}: {name} is {found:.8g}, {want:.8g} on one rank {where}"
    return ""


LOSS = 2e-6
"""Relative; means over some 40 labels in float32, summed in another order."""


def entries(arrays: Arrays, entry: str) -> dict[str, Array]:
    """The optimizer's state of one kind: `exp_avg` of every parameter, by the parameter's name."""
    return {name.removesuffix(f"/{entry}"): each for name, each in arrays.items() if name.endswith(f"/{entry}")}


def moved_apart(before: Arrays, got: Arrays, want: Arrays, bound: float) -> str:
    """Where weights moved differently, by the L2 distance between the movements over the length of the expected one.

    L2 only: Adam turns the rounding of a gradient near zero into a full step of either sign, so that single elements
    may be off by two steps in a run without a bug.
    """
    numerics = instruments.numerics
    start, found, right = (numerics.tensors(each) for each in (before, got, want))
    parts = []
    for name in sorted(right):
        if name not in found:
            parts.append(Violation(words=f"no weight {name} is told", tensor=name))
            continue
        move, expected = (side[name].double() - start[name].double() for side in (found, right))
        apart = numerics.distances(move, expected)["L2"]
        rounding = numerics.floor(found[name].dtype, numerics.typical_size(start[name]))  # of a weight, where it lands
        if not apart.times(bound, rounding) <= 1:
            words = f"{name} moved otherwise: off by {apart.relative:.1e} of its way, over {bound:.0e}"
            parts.append(Violation(words=words, tensor=name))
    return compared(parts[0].words, parts) if parts else ""


def told_counts(step: Step) -> Mapping[str, Array]:
    """Assignments that the routers report, by layer; a stack that keeps no count reports none."""
    return {name: each for name, each in step.seen.items() if name.endswith(".counts")}

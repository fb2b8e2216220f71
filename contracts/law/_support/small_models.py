"""What the checks on transformers with experts share: recipes that many stacks can run, layouts, runs in float32.

Recipes are pairs of attention and experts, and one with a scan, without packed documents and auxiliary losses: that is
what stacks have in common. Every size divides by 4 and by 16 bytes, because grouped products of real stacks want it.

The oracle is the same stack on one rank. Every stack offers float32, so bounds are wider than in `parallel.layouts`,
and the gradients of the first step, from the same whole weights, say the most: Adam turns rounding into signs.
"""

from dataclasses import replace

from contracts.instruments import fixtures, numerics
from contracts.law._support import step_comparison
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.step_comparison import on_one_rank_and_many
from contracts.law._support.training_run import IDLE, large_expert_weights, selection_biases
from contracts.spec import (
    Array,
    Arrays,
    Batch,
    Degrees,
    Execution,
    Layout,
    Mamba,
    Mla,
    Moe,
    Mtp,
    Observed,
    Optim,
    Recipe,
    Session,
    Step,
    Tokens,
    Training,
)

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
    optim=Optim(lr=1e-3, min_lr=1e-3, schedule="constant", warmup=0, steps=8, weight_decay=0.1, clip=0.5),
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

BIASED_DENSE = replace(DENSE, name="dense-biased", qk_norm=False, biases=("attention", "mlp"))
BIASED_EXPERTS = replace(GROUPED_EXPERTS, name="experts-biased", biases=("attention", "experts", "router"))
"""With a bias in every linear layer, as GPT-2 and gpt-oss have it."""

HALF_EXPERTS = replace(GROUPED_EXPERTS, name="grouped-experts-bf16", dtype="bf16")
"""The first, as it is trained: in bfloat16, with what the optimizer has in float32."""

AHEAD_EXPERTS = replace(GROUPED_EXPERTS, name="experts-ahead", mtp=Mtp(depth=2, loss_weight=0.4))
"""The first under two dense heads of multi-token prediction."""

IN_HALVES = {"pattern": "AE|AE", "depth": 4}
IN_QUARTERS = {"pattern": "AE|AE|AE|AE", "depth": 8}
MASKED = (13, 0, 6, 3)
"""How many labels at the beginning of each row do not count; 2, 15, 9 and 12 labels do."""
ALIKE = (6, 6, 6, 6)
"""The same where prediction heads stand after stages: stages ask for microbatches, and what those weigh is another
question to heads (PAR-05a; PAR-08a asks both at once)."""

Cell = tuple[Recipe, Execution, int]


def cell(recipe: Recipe, world: int, *, layout: Layout = "borrowed", fsdp: bool = False, replicas: int = 1,
         microbatches: int = 1, interleaved: bool = False, compiled: bool = False, recomputed: bool = False,
         **degrees: int) -> Cell:  # fmt: skip
    """A recipe, on how many ranks, how; `degrees` belong to the axes."""
    execution = Execution(
        world=world, degrees=Degrees(**degrees), layout=layout, fsdp=fsdp, replicas=replicas,  # type: ignore[arg-type]  # sp
        microbatches=microbatches, schedule="interleaved" if interleaved else "1f1b",
        precision="float32" if recipe.dtype == "fp32" else "declared",
        compile="blocks" if compiled else "none", backend="aot_eager", recompute=recomputed,
    )  # fmt: skip
    return recipe, execution, world


def batches(steps: int, hidden: tuple[int, ...] = MASKED) -> tuple[Tokens, ...]:
    """Whole rows, one document each, whose first labels do not count: of each row as many as `hidden` says."""
    found = []
    for step in range(steps):
        tokens_BT = fixtures.integers(f"transformers {step}", (4, 16), GROUPED_EXPERTS.vocab)
        labels_BT = tokens_BT.roll(-1, 1)
        labels_BT[:, -1] = -100
        for row, masked in enumerate(hidden):
            labels_BT[row, :masked] = -100
        found.append(Tokens(tokens=numerics.array(tokens_BT), labels=numerics.array(labels_BT)))
    return tuple(found)


def session(stack: Training, recipe: Recipe, execution: Execution, steps: int, *observe: Observed) -> Session:
    """Steps from drawn weights; routers with biases start with idle experts."""
    hidden = ALIKE if recipe.mtp is not None and execution.degrees.pp > 1 else MASKED
    return Session(
        recipe=recipe, steps=steps, execution=in_a_layout_of(stack, execution), batches=batches(steps, hidden),
        weights=large_expert_weights(stack, recipe, "float32"),
        buffers=selection_biases(stack, recipe, IDLE, -4.0, dtype="float32"), observe=frozenset(observe),
    )  # fmt: skip


def one_rank_and_many(
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
    return on_one_rank_and_many(stack, asked, layout=asked.execution.layout)


LOSS = 2e-6
"""Relative; means over some 40 labels in float32, summed in another order."""


def loss_difference(one: Step, many: Step) -> str:
    """In which label counts and losses two steps differ in float32."""
    return step_comparison.label_difference(one, many) or step_comparison.loss_difference(one, many, bound=LOSS)


def optimizer_entries(arrays: Arrays, entry: str) -> dict[str, Array]:
    """The optimizer's state of one kind: `exp_avg` of every parameter, by the parameter's name."""
    return {name.removesuffix(f"/{entry}"): each for name, each in arrays.items() if name.endswith(f"/{entry}")}

"""What a model holds on a rank: its parameters, cut over the axes, and the bytes that go with them.

Expected counts cover matrices, worked out by hand; the second number of each pair leaves room for a stack's norms,
biases and convolutions.
"""

from collections.abc import Mapping
from dataclasses import replace

from contracts.contract import contract
from contracts.law._support.layouts import needs_layout
from contracts.law._support.small_model import ROOMY, SMALL, any_layout, bytes_of, only_stage, within
from contracts.spec import Batch, Degrees, Dtype, Layout, Mamba, Mla, Moe, Recipe
from contracts.spec.capacity import Capacity, Sharding, Spread

# A, two blocks: query and output 2 · 96 · 96 = 18 432, key and value 2 · 96 · (4 · 8) = 6 144, together 24 576 each.
_A = (49_152, 50_200)
# E, two blocks: router 96 · 12 = 1 152, experts 12 · 2 · 96 · 40 = 92 160, shared 2 · 96 · 56 = 10 752: 104 064 each.
_E = (208_128, 212_200)
# M, one block: in 96 · (2 · 192 + 2 · 2 · 16 + 8) = 43 776, out 192 · 96 = 18 432.
_M = (62_208, 66_800)
_V = (96_000, 98_304)  # 1000 · 96; a vocabulary padded to 1024 is legal

COUNTED: dict[str, tuple[Recipe, Mapping[str, tuple[int, int]], tuple[int, int]]] = {
    # families, and the parameters of experts that a token does not visit: 2 blocks · 10 of 12 experts · 2 · 96 · 40
    "gqa-moe-tail": (SMALL, {"A": _A, "E": _E, "M": _M, "R": (0, 0), "embedding": _V, "head": _V}, (153_600, 156_400)),
    # three matrices an expert: experts 12 · 3 · 96 · 40 = 138 240, shared 3 · 96 · 56 = 16 128, router 1 152
    "swiglu": (replace(SMALL, activation="swiglu"), {"E": (311_040, 317_000), "A": _A}, (230_400, 235_500)),
    # 2 blocks · 2 · 96 · 200; without experts every parameter is active
    "dense": (replace(SMALL, moe=None), {"E": (76_800, 78_000)}, (0, 0)),
    "no-shared-expert": (
        replace(SMALL, moe=Moe(experts=12, top_k=3, expert_hidden=40, shared_hidden=0)),
        {"E": (186_624, 190_400)},
        (138_240, 140_800),
    ),
    "tied": (replace(SMALL, untied_embeddings=False), {"embedding": _V, "head": (0, 0)}, (153_600, 156_400)),
    # down 96 · (24 + 16 + 4) = 4 224, up 12 · (24 · 12 + 16 · 18) = 6 912, out 12 · 10 · 96 = 11 520: 22 656 a block
    "mla": (
        replace(SMALL, mla=Mla(q_lora=24, kv_lora=16, qk_head=8, qk_rope=4, v_head=10)),
        {"A": (45_312, 46_500)},
        (153_600, 156_400),
    ),
    # a pattern of 4 at depth 6: A E M E A E; 3 E blocks
    "pattern-of-four": (
        replace(SMALL, pattern="AEME", depth=6),
        {"A": _A, "E": (312_192, 318_300), "M": _M},
        (230_400, 234_600),
    ),
}


@contract("MEM-02a", asks="count_parameters", cases=COUNTED, source="hub: memory budget anatomy; F17")
def parameters_are_counted_by_family(
    stack: Capacity, recipe: Recipe, families: Mapping[str, tuple[int, int]], idle: tuple[int, int]
) -> None:
    """Parameters are counted block by block over the tiled pattern, a tied tensor once, and experts that a token does
    not visit as inactive.

    The budget's weights, gradients and optimizer are multiples of this number. A dense estimate forgets eleven of
    twelve experts; a count by whole periods loses the tail of the pattern; a tied output projection counted twice, or
    subtracted twice, changes a small model by a tenth.
    """
    counted = stack.count_parameters(recipe)
    for family, (low, high) in families.items():
        within(counted.families.get(family, 0), low, high, f"parameters of {family}")
    added = sum(counted.families.values())
    assert counted.total == added, f"total is {counted.total}, the families add up to {added}"
    within(counted.total - counted.active, *idle, "parameters that a token does not visit")


_WIDE = replace(SMALL, depth=6)  # A E M A E M, which divides into two or three stages
SPREAD = {  # recipe, plan; TP is no larger than the KV groups and SSM groups, so nothing is copied
    "own-axis-tp2-ep3": (SMALL, Spread(degrees=Degrees(tp=2, ep=3, etp=1), world=12, layout="own-axis")),
    "own-axis-pp2-tp2-ep3": (_WIDE, Spread(degrees=Degrees(pp=2, tp=2, ep=3, etp=1), world=24, layout="own-axis")),
    "borrowed-tp2-ep4-etp2": (SMALL, Spread(degrees=Degrees(tp=2, ep=4), world=8, layout="borrowed")),
    "borrowed-pp3-cp2-ep6": (_WIDE, Spread(degrees=Degrees(pp=3, cp=2, ep=6), world=36, layout="borrowed")),
    "borrowed-unequal-stages": (
        replace(SMALL, pattern="AE|MAE"),
        Spread(degrees=Degrees(pp=2, tp=2, ep=2, etp=1), world=8, layout="borrowed"),
    ),
}


@contract("MEM-02b", asks=("budget", "count_parameters"), cases=SPREAD, source="hub: memory budget anatomy")
def the_shares_of_all_ranks_add_up_to_the_model(stack: Capacity, recipe: Recipe, spread: Spread) -> None:
    """Summed over stages and over the ranks that share a stage's tensors, the parameters of a budget equal those of the
    model, each tensor once.

    Tensors that TP and EP do not cut stay whole on every rank. Dividing the total by tp · ep promises memory that is
    not there; counting the embedding on every stage asks for memory that is not needed.
    """
    needs_layout(stack, spread.layout)
    degrees = spread.degrees
    times = {"replicated": 1, "tp": degrees.tp, "ep": degrees.ep * (degrees.etp or degrees.tp)}
    budget = stack.budget(recipe, spread, ROOMY)
    unknown = {share for stage in budget.stages for share in stage.parameters} - times.keys()
    assert not unknown, f"shares {sorted(unknown)} are unknown; known are {', '.join(times)}"
    everywhere = sum(held * times[share] for stage in budget.stages for share, held in stage.parameters.items())
    total = stack.count_parameters(recipe).total
    assert everywhere == total, f"the ranks hold {everywhere} parameters of a model of {total} ({degrees})"


EXPERTS = {  # plan → routed experts on one rank: 2 blocks · 12 / ep experts · 2 · 96 · 40 / etp, with room for biases
    "own-axis-ep3": (Spread(degrees=Degrees(ep=3), world=6, layout="own-axis"), 61_440, 62_400),
    "own-axis-tp2-ep4-etp1": (Spread(degrees=Degrees(tp=2, ep=4, etp=1), world=16, layout="own-axis"), 46_080, 46_800),
    "borrowed-tp4-ep2-etp1": (Spread(degrees=Degrees(tp=4, ep=2, etp=1), world=8, layout="borrowed"), 92_160, 93_600),
    "borrowed-ep6-follows-tp": (Spread(degrees=Degrees(tp=2, ep=6), world=24, layout="borrowed"), 15_360, 15_760),
}


@contract("MEM-02c", asks="budget", cases=EXPERTS, source="hub: memory budget anatomy; bringup")
def ep_cuts_routed_experts_and_nothing_else(stack: Capacity, spread: Spread, low: int, high: int) -> None:
    """A rank holds experts / ep routed experts, which only expert tensor parallel cuts further.

    The shared expert and the router stay with the dense parameters. With etp 1, a TP rank holds whole experts.
    """
    needs_layout(stack, spread.layout)
    recipe = replace(SMALL, replicate_ssm_groups=True)
    stage = only_stage(stack.budget(recipe, spread, ROOMY))
    within(stage.parameters.get("ep", 0), low, high, f"the ep share of a rank ({spread.degrees})")


DOUBLED = {  # sharding → how weights, gradients and optimizer state change when the world doubles
    "own-axis-full": ("own-axis", "full", (2, 2, 2)),
    "own-axis-optimizer": ("own-axis", "optimizer", (1, 1, 2)),
    "own-axis-none": ("own-axis", "none", (1, 1, 1)),
    "borrowed-full": ("borrowed", "full", (2, 2, 2)),
    "borrowed-optimizer": ("borrowed", "optimizer", (1, 1, 2)),
}


@contract("MEM-02d", asks="budget", cases=DOUBLED, source="playbook: FSDP2; hub: memory budget anatomy")
def data_parallelism_cuts_what_its_sharding_says(
    stack: Capacity, layout: Layout, sharding: Sharding, factors: tuple[int, int, int]
) -> None:
    """Doubling the data-parallel ranks halves exactly the bytes that are sharded over them, for dense parameters and
    experts alike, and no activations.

    FSDP2 cuts weights, gradients and optimizer state; a distributed optimizer cuts only its state; DDP cuts nothing.
    Eight cards of 141 GB are not one card of a terabyte: activations stay where they are.
    """
    base = Spread(degrees=Degrees(ep=3), world=6, layout=layout, sharding=sharding)
    needs_layout(stack, base.layout)
    few = only_stage(stack.budget(SMALL, base, ROOMY))
    many = only_stage(stack.budget(SMALL, replace(base, world=12), ROOMY))
    for part, factor in zip(("weights", "gradients", "optimizer"), factors, strict=True):
        before, after = bytes_of(few, part), bytes_of(many, part)
        near = abs(after * factor - before) <= 0.02 * before + 64  # a shard is padded to whole rows and elements
        assert near, f"{part} go from {before} to {after} bytes when the world doubles, expected 1/{factor} of them"
    before, after = bytes_of(few, "activations"), bytes_of(many, "activations")
    assert before == after, f"activations go from {before} to {after} bytes when the world doubles"


# AdamW in bytes per parameter, at d = 4 data ranks. Low: bf16 weights and gradients, no master, 2 + 2 + 8. High:
# Megatron-Core's bf16 with float32 gradients and a master, 2 + 4 + 12. float32 leaves no choice: 4 + 4 + 8.
STATES = {
    "bf16-whole": ("bf16", "none", (12.0, 18.0)),
    "bf16-distributed-optimizer": ("bf16", "optimizer", (6.0, 9.0)),
    "bf16-fully-sharded": ("bf16", "full", (3.0, 4.5)),
    "fp16-whole": ("fp16", "none", (12.0, 20.0)),  # 2 + 2 + 8; float32 master weights and main gradients add 8
    "fp32-whole": ("fp32", "none", (16.0, 16.0)),
    "fp32-distributed-optimizer": ("fp32", "optimizer", (10.0, 10.0)),
    "fp32-fully-sharded": ("fp32", "full", (4.0, 4.0)),
}


@contract("MEM-02e", asks=("budget", "count_parameters"), cases=STATES, source="Megatron-Core: distributed optimizer")
def training_a_parameter_takes_more_than_its_weight(
    stack: Capacity, dtype: Dtype, sharding: Sharding, per_parameter: tuple[float, float]
) -> None:
    """Before sharding, weights, gradients and AdamW state take 12 to 18 bytes per bf16 parameter and 16 per float32
    parameter.

    A 4B model takes 8 GB to load and 72 GB to train. A budget of two bytes per parameter fits everything.
    """
    recipe = replace(SMALL, dtype=dtype, batch=Batch(micro=1, total=4))
    layout = any_layout(stack)
    spread = Spread(degrees=Degrees(), world=4, layout=layout, sharding=sharding)
    stage = only_stage(stack.budget(recipe, spread, ROOMY))
    state = bytes_of(stage, "weights", "gradients", "optimizer")
    low, high = per_parameter
    each = state / stack.count_parameters(recipe).total
    within(round(each, 2), low, high, f"bytes of training state a {dtype} parameter, sharding {sharding},")


# The sources' example: one sequence of 4096 tokens, hidden 1536, 52 layers at bf16 take 10 … 20 GB (hub, 34 · B · T · D
# · L bytes = 11.1 GB). A small vocabulary keeps the logits small.
LONG = Recipe(
    name="long", family="test", pattern="AME", depth=52, hidden=1536, ffn_hidden=6144, heads=24, kv_groups=8,
    seq_length=4096, vocab=256, mamba=Mamba(heads=24, groups=8), batch=Batch(micro=1, total=16),
)  # fmt: skip
KEPT = {"micro-batch-1": (1, 10e9, 20e9), "micro-batch-4": (4, 40e9, 80e9)}


@contract("MEM-02f", asks="budget", cases=KEPT, source="hub: why a 4B–8B model fills an H200")
def activations_grow_with_the_micro_batch(stack: Capacity, micro: int, low: float, high: float) -> None:
    """A microbatch of one sequence keeps about 34 bytes per token, hidden element and layer for its backward pass, and
    a microbatch of four sequences four times as much.

    In one production lane, 100 of 120 GB were activations; a plan with only weights fails at step 1.
    """
    layout = any_layout(stack)
    recipe = replace(LONG, batch=Batch(micro=micro, total=16))
    stage = only_stage(stack.budget(recipe, Spread(degrees=Degrees(), world=2, layout=layout), ROOMY))
    within(bytes_of(stage, "activations"), low, high, f"bytes of activations of {micro} sequences")


# 4096 · 1536 · 2 B · 52 inputs are 654 MB; the block being recomputed adds 34 · 4096 · 1536 B = 214 MB.
RECOMPUTED = {"micro-batch-1": (1, 650e6, 1400e6), "micro-batch-4": (4, 2600e6, 5600e6)}


@contract("MEM-02n", asks="budget", cases=RECOMPUTED, source="arXiv 2205.05198 section 5; hub")
def recomputing_every_block_keeps_its_input(stack: Capacity, micro: int, low: float, high: float) -> None:
    """With full recomputation, every layer keeps its input, and one layer at a time holds what its backward pass needs.

    The block under recomputation is as large as ever: a plan that counts only inputs runs out of memory by one layer.
    """
    layout = any_layout(stack)
    recipe = replace(LONG, recompute="full", batch=Batch(micro=micro, total=16))
    stage = only_stage(stack.budget(recipe, Spread(degrees=Degrees(), world=2, layout=layout), ROOMY))
    within(bytes_of(stage, "activations"), low, high, f"bytes of activations of {micro} recomputed sequences")


CUT = replace(LONG, pattern="|".join(["AMEAMEAMEAMEA"] * 4))
PIPELINED = {  # pp, microbatches of a step → the first stage's share of the activations without a pipeline
    "as-many-as-stages": (LONG, 4, 4, 0.95, 4.2),
    "more-than-stages": (LONG, 4, 16, 0.95, 4.2 * 4),  # a schedule that keeps all 16 costs four times as much
    "two-for-four-stages": (LONG, 4, 2, 0.45, 0.6),
    "two-chunks-a-stage": (CUT, 2, 2, 0.95, 1.05),  # both chunks of both microbatches
}


@contract("MEM-02g", asks="budget", cases=PIPELINED, source="bringup F20")
def a_first_stage_holds_the_passes_in_flight(
    stack: Capacity, long: Recipe, pp: int, microbatches: int, low: float, high: float
) -> None:
    """The first of pp pipeline stages holds the activations of 1 / pp of the layers for up to pp microbatches, so a
    pipeline saves no activations there unless the step has fewer microbatches than stages. A stage of several chunks
    holds them of each chunk.

    Dividing activations by pp is the usual mistake. It shows on the first stage only, and only once the pipeline is
    full.
    """
    layout = any_layout(stack)
    batch = Batch(micro=1, total=microbatches)
    alone = Spread(degrees=Degrees(), world=1, layout=layout)
    whole = only_stage(stack.budget(replace(LONG, batch=batch), alone, ROOMY))
    staged = stack.budget(replace(long, batch=batch), replace(alone, degrees=Degrees(pp=pp), world=pp), ROOMY)
    ratio = bytes_of(staged.stages[0], "activations") / bytes_of(whole, "activations")
    what = f"activations of stage 0 of {pp} with {microbatches} micro batches, as a part of those without a pipeline,"
    within(round(ratio, 3), low, high, what)


_ROUTED = replace(LONG, pattern="AE", depth=2, moe=Moe(experts=64, top_k=6, expert_hidden=256, shared_hidden=0))
# 4096 tokens to 6 of 64 experts are 24 576 rows of 1536 bf16 elements: 75.5 MB one way. At capacity factor 1.25 an
# expert has ⌈1.25 · 4096 · 6 / 64⌉ = 480 slots, 64 · 480 rows both ways 188.7 MB. Router logits: 4096 · 64 · 4 B =
# 1.05 MB.
ROUTED = {
    "ep1": (Spread(degrees=Degrees(), world=2, layout="own-axis"), 76.5e6, 400e6),
    "ep4-shares-one-batch": (Spread(degrees=Degrees(ep=4), world=8, layout="own-axis"), 19.9e6, 120e6),
    # each rank of the EP group sends its own tokens, so a rank receives as much as it sends
    "ep4-brings-its-own": (Spread(degrees=Degrees(ep=4), world=8, layout="borrowed"), 76.5e6, 400e6),
}


@contract("MEM-02h", asks="budget", cases=ROUTED, source="hub: H200 memory geometry")
def routing_buffers_hold_every_token_sent(stack: Capacity, spread: Spread, low: float, high: float) -> None:
    """Routing buffers hold at least the rows that arrive at a rank's experts, and the router's float32 logits.

    If EP is carved out of data parallelism, a larger EP group means fewer experts per rank and more senders, so the
    buffers do not shrink.
    """
    needs_layout(stack, spread.layout)
    stage = only_stage(stack.budget(_ROUTED, spread, ROOMY))
    within(bytes_of(stage, "routing"), low, high, f"bytes of routing buffers ({spread.degrees}, {spread.layout})")

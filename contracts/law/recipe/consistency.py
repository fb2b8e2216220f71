"""The recipe: what NAM56R is, which relations hold between its fields, and that nothing edits it in place."""

from copy import deepcopy
from dataclasses import replace

from contracts.contract import contract
from contracts.law._support.answers import names_field, refusal_of
from contracts.law._support.layouts import needs_layout, numbers_in
from contracts.spec import (
    Batch,
    Checkpoint,
    Data,
    Degrees,
    Dsa,
    Fp8,
    Lane,
    Layout,
    Mamba,
    Mhc,
    Mla,
    Mode,
    Moe,
    Mtp,
    Optim,
    Recipe,
    Regime,
    Stack,
)

FLAGSHIP = "nam56r_h200_bf16_v1"

IDENTITY = {
    "pattern": ("pattern", "AEMEAEMEAEMR"),
    "depth": ("depth", 52),
    "hidden": ("hidden", 3584),
    "ffn": ("ffn_hidden", 18944),
    "heads": ("heads", 56),
    "kv-groups": ("kv_groups", 8),
    "sequence": ("seq_length", 4096),
    "rope-theta": ("rope_theta", 500_000),
    "experts": ("moe.experts", 16),
    "top-k": ("moe.top_k", 4),
    "expert-hidden": ("moe.expert_hidden", 896),
    "shared-expert": ("moe.shared_hidden", 1024),
}


@contract("REC-01", asks="preset", cases=IDENTITY, source="naming: the declared recipe")
def nam56r_is_what_was_declared(stack: Stack, field: str, expected: object) -> None:
    """NAM56R: AEMEAEMEAEMR, depth 52, hidden 3584, FFN 18944, 56 heads in 8 KV groups, sequence 4096, rope theta
    500000; 16 routed experts, top-k 4, expert hidden 896, shared expert 1024.

    Without these numbers every statement about memory or convergence may be about another model.
    """
    found: object = stack.preset(FLAGSHIP, ())
    for name in field.split("."):
        found = getattr(found, name)
    assert found == expected, f"{FLAGSHIP} has {field} {found!r}, expected {expected!r}"


def _recipe(**changes: object) -> Recipe:
    """Heads 24 in 12 KV groups, 36 SSM heads in 12 groups, 12 experts, AEM at 12: no two sizes are the same."""
    small = Recipe(
        name="divides", family="nam56r", pattern="AEM", depth=12, hidden=1536, ffn_hidden=3840, heads=24, kv_groups=12,
        seq_length=4032, moe=Moe(experts=12, top_k=3, expert_hidden=480, shared_hidden=0),
        mamba=Mamba(heads=36, groups=12), batch=Batch(micro=3, total=72),
    )  # fmt: skip
    return replace(small, **changes)  # type: ignore[arg-type]  # a table of fields


# recipe, degrees, world, layout, fields of which one is named, the numbers that do not fit
INDIVISIBLE = {
    "heads-24-over-tp16": (
        _recipe(mla=Mla(), mamba=Mamba(heads=48, groups=48)), Degrees(tp=16), 16, "own-axis", ("tp", "heads"), {16, 24},
    ),
    "kv-12-over-tp8": (
        _recipe(mamba=Mamba(heads=48, groups=24)), Degrees(tp=8), 8, "borrowed", ("tp", "kv_groups"), {8, 12},
    ),
    "kv-2-over-tp4": (_recipe(kv_groups=2), Degrees(tp=4), 8, "own-axis", ("tp", "kv_groups"), {4, 2}),
    "kv-8-over-tp12-though-replicated": (
        _recipe(kv_groups=8, replicate_kv=True), Degrees(tp=12), 12, "borrowed", ("tp", "kv_groups"), {12, 8},
    ),
    "ssm-groups-4-over-tp12": (_recipe(mamba=Mamba(heads=36, groups=4)), Degrees(tp=12), 12, "own-axis",
                               ("tp", "mamba.groups"), {12, 4}),
    "ssm-groups-without-m": (
        _recipe(pattern="AER", mamba=Mamba(heads=36, groups=4)), Degrees(tp=6), 6, "borrowed",
        ("tp", "mamba.groups"), {6, 4},
    ),
    "experts-12-over-ep8": (_recipe(), Degrees(ep=8), 8, "borrowed", ("ep", "moe.experts", "experts"), {8, 12}),
    "ep-without-experts": (_recipe(moe=None), Degrees(ep=2), 8, "own-axis", ("ep", "moe", "moe.experts"), {2}),
    "sequence-4032-over-cp5-tp2": (_recipe(), Degrees(cp=5, tp=2, sp=True), 10, "borrowed", ("seq_length",), {4032}),
    "depth-12-over-pp5": (_recipe(), Degrees(pp=5), 10, "own-axis", ("pp", "depth"), {5, 12}),
    "batch-72-over-micro3-dp5": (_recipe(), Degrees(tp=2), 10, "borrowed", ("batch.total",), {72}),
}  # fmt: skip


@contract("REC-02", asks="divide", cases=INDIVISIBLE, source="naming; modal")
def what_does_not_divide_is_refused(
    stack: Stack,
    recipe: Recipe,
    degrees: Degrees,
    world: int,
    layout: Layout,
    fields: tuple[str, ...],
    numbers: set[int],
) -> None:
    """TP divides heads, KV groups and SSM groups (or replicates the groups, where the recipe says so), EP divides
    experts, PP divides the depth, CP times TP divides the sequence, and micro batch times DP divides the global batch.
    A stack refuses any other recipe and names the field and both numbers.

    A TP degree larger than the number of KV groups loaded and then failed in the middle of a forward pass. A sequence
    that did not divide left one rank without tokens, and the job hung in a collective.
    """
    needs_layout(stack, layout)
    refused = refusal_of(stack.divide, recipe, degrees, world, layout)
    assert names_field(refused, fields), f"the refusal names {refused.fields}, none of {', '.join(fields)}: {refused}"
    missing = numbers - numbers_in(refused)
    assert not missing, f"the refusal does not name {sorted(missing)}: {refused}"


INTRINSIC = {  # override of NAM56R → fields of which one is named, numbers
    "kv-9-of-56": ({"kv_groups": "9"}, ("kv_groups", "heads"), {9, 56}),
    "heads-48-of-3584": ({"heads": "48"}, ("heads", "hidden"), {48, 3584}),
    "ssm-groups-5-of-56": ({"mamba.groups": "5"}, ("mamba.groups", "mamba.heads"), {5, 56}),
    "micro-3-of-64": ({"batch.micro": "3"}, ("batch.micro", "batch.total"), {3, 64}),
    "top-17-of-16": ({"moe.top_k": "17"}, ("moe.top_k", "moe.experts"), {17, 16}),
    "no-layers": ({"depth": "0"}, ("depth",), {0}),
    "no-experts": ({"moe.experts": "0"}, ("moe.experts",), {0}),
}


@contract("REC-02a", asks=("preset", "launch"), cases=INTRINSIC, source="naming")
def a_recipe_that_contradicts_itself_is_refused(
    stack: Stack, overrides: dict[str, str], fields: tuple[str, ...], numbers: set[int]
) -> None:
    """KV groups divide heads, heads divide hidden, SSM groups divide SSM heads, the micro batch divides the batch, and
    top-k does not exceed the experts. A stack checks this for every machine, and before one is chosen.

    The launcher's own validation accepts top-k 8 of 4 experts.
    """
    refused = refusal_of(stack.launch, stack.preset(FLAGSHIP, ()), Lane(mode="author_dp", overrides=overrides))
    assert names_field(refused, fields), f"the refusal names {refused.fields}, none of {', '.join(fields)}: {refused}"
    missing = numbers - numbers_in(refused)
    assert not missing, f"the refusal does not name {sorted(missing)}: {refused}"


DIVISIBLE = {  # recipe, degrees, world, layout → data-parallel size
    "every-axis": (_recipe(), Degrees(pp=2, tp=3, cp=2, ep=3, etp=1, sp=True), 24, "borrowed", 2),
    "own-axis": (_recipe(), Degrees(pp=3, tp=2, ep=4, sp=True), 72, "own-axis", 3),
    "declared-replication-of-kv": (_recipe(kv_groups=4, replicate_kv=True), Degrees(tp=12), 24, "borrowed", 2),
    "declared-replication-of-ssm": (
        _recipe(mamba=Mamba(heads=36, groups=4), replicate_ssm_groups=True), Degrees(tp=12), 12, "own-axis", 1,
    ),
    "latent-attention-has-no-kv-groups": (_recipe(mla=Mla(), kv_groups=8), Degrees(tp=12), 12, "borrowed", 1),
    "no-state-space-blocks": (
        _recipe(pattern="AE", mamba=Mamba(heads=35, groups=5)), Degrees(tp=12), 24, "own-axis", 2,
    ),
    "unequal-stages-written-out": (_recipe(pattern="AEMAE|MA|EMAEM", batch=Batch(micro=3, total=24)), Degrees(pp=3), 24,
                                   "own-axis", 8),
}  # fmt: skip


@contract("REC-02b", asks="divide", cases=DIVISIBLE, source="naming")
def what_divides_is_accepted(
    stack: Stack, recipe: Recipe, degrees: Degrees, world: int, layout: Layout, expected: int
) -> None:
    """A stack accepts legal recipes: declared replication, latent attention, unequal stages and sequences split over CP
    and TP.

    The fix of a missing check often refuses every second model.
    """
    needs_layout(stack, layout)
    dp = stack.divide(recipe, degrees, world, layout)
    assert dp == expected, f"divide gives dp {dp}, expected {expected}"


TWICE_WRONG = {  # recipe, degrees, world, layout → for each fault the fields of which one is named
    "tensor-expert-sequence": (
        _recipe(seq_length=4033), Degrees(tp=16, ep=8, etp=1, sp=True), 16, "borrowed",
        (("tp", "heads"), ("ep", "moe.experts"), ("seq_length",)),
    ),
    "pipeline-batch": (
        _recipe(batch=Batch(micro=3, total=75)), Degrees(pp=5), 10, "own-axis", (("pp", "depth"), ("batch.total",)),
    ),
}  # fmt: skip


@contract("REC-02c", asks="divide", cases=TWICE_WRONG, source="naming")
def every_indivisible_axis_is_refused_at_once(
    stack: Stack, recipe: Recipe, degrees: Degrees, world: int, layout: Layout, faults: tuple[tuple[str, ...], ...]
) -> None:
    """One refusal names everything that does not divide, so that nobody queues for a machine once per fault."""
    needs_layout(stack, layout)
    refused = refusal_of(stack.divide, recipe, degrees, world, layout)
    silent = [" or ".join(fields) for fields in faults if not names_field(refused, fields)]
    assert not silent, f"the refusal leaves out {', '.join(silent)}: {refused}"


MANY = {
    "three-relations": (
        {"kv_groups": "9", "moe.top_k": "17", "batch.micro": "3"},
        (("kv_groups", "heads"), ("moe.top_k",), ("batch.micro", "batch.total")),
    ),
    "two-types": ({"hidden": "wide", "optim.lr": "[]"}, (("hidden",), ("optim.lr",))),
}


@contract("REC-02d", asks=("preset", "launch"), cases=MANY, source="naming")
def every_contradiction_is_refused_at_once(
    stack: Stack, overrides: dict[str, str], faults: tuple[tuple[str, ...], ...]
) -> None:
    """One refusal names every field that contradicts another or holds a value of the wrong type."""
    refused = refusal_of(stack.launch, stack.preset(FLAGSHIP, ()), Lane(mode="author_dp", overrides=overrides))
    silent = [" or ".join(fields) for fields in faults if not names_field(refused, fields)]
    assert not silent, f"the refusal leaves out {', '.join(silent)}: {refused}"


EMITTED = {  # preset, mode, regime
    "native": (FLAGSHIP, "nemo_native", "megatron"),
    "author": (FLAGSHIP, "author_dp", "megatron"),
    "own-trainer": (FLAGSHIP, "nemo_native", "fsdp2"),
    "sparse": ("nam52r_h200_4full_9sparse_candidate_v1", "author_dp", "megatron"),
}


@contract("REC-03", asks=("preset", "launch"), cases=EMITTED, source="naming")
def emitting_changes_no_recipe(stack: Stack, name: str, mode: Mode, regime: Regime) -> None:
    """A name resolves to the same value each time. A launch, with or without overrides, changes neither its recipe nor
    what the name resolves to, and a second launch equals the first.

    A recipe that one lane edited in place was the starting point of the next lane in the same process.
    """
    recipe = stack.preset(name, ())
    before = deepcopy(recipe)
    first = stack.launch(recipe, Lane(mode=mode, regime=regime))
    stack.launch(recipe, Lane(mode=mode, regime=regime, overrides={"optim.lr": "0.125", "seed": "7"}))
    assert recipe == before, f"launching {name} as {mode} changed the recipe: {recipe}"
    again = stack.preset(name, ())
    assert again == before, f"after a launch {name} resolves to {again}, before the launch to {before}"
    second = stack.launch(again, Lane(mode=mode, regime=regime))
    assert second == first, f"{name} as {mode} launches {second.argv}, but {first.argv} the first time"


TRAVELLED = {
    "shape": {"depth": 48, "hidden": 3136, "vocab": 50_304, "norm_eps": 1e-6, "qk_norm": False, "seed": 0},
    "text": {"data": Data(path="/data/a b/c=d", tokenizer="Null\"Tok'en"), "checkpoint": Checkpoint(save="/ckpt/é")},
    "features": {"moe": None, "mla": Mla(q_lora=96), "mtp": Mtp(depth=2, loss_weight=0.3), "mhc": Mhc(streams=2),
                 "fp8": Fp8(scaling="mxfp8"), "degrees": Degrees(pp=2)},
    "sparse": {"mla": Mla(), "dsa": Dsa(a_ranks=(12, 0, 3), index_heads=4)},
    "numbers": {"optim": Optim(lr=1e-7, min_lr=0.0, beta2=0.9999999), "batch": Batch(micro=2, total=48)},
    "lists": {"dropout": 0.15, "modes": ("nemo_native",), "author_spec": ("a.module", "name with blanks")},
}  # fmt: skip


@contract("REC-03a", asks=("preset", "launch", "read_back"), cases={k: (v,) for k, v in TRAVELLED.items()},
          source="naming")  # fmt: skip
def a_derived_recipe_arrives_whole(stack: Stack, changes: dict[str, object]) -> None:
    """The trainer reads back every field of a recipe derived by `replace` and launched, with the value that was sent.

    A checkpoint's meta file that left out one field of the shape rebuilt another model and loaded into it.
    """
    recipe = replace(stack.preset(FLAGSHIP, ()), **changes)  # type: ignore[arg-type]  # a table of fields
    launch = stack.launch(recipe, Lane(mode="nemo_native", regime="fsdp2"))
    arrived = stack.read_back(launch.argv).recipe
    lost = [name for name in vars(recipe) if getattr(arrived, name) != getattr(recipe, name)]
    told = ", ".join(f"{name} {getattr(recipe, name)!r} as {getattr(arrived, name)!r}" for name in lost)
    assert not lost, f"the trainer reads {told}"

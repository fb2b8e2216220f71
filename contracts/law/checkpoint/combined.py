"""Runs of many features at once: what is done beside the steps changes none of them, in whatever combination."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from contracts.contract import contract
from contracts.law._support.fp8_calls import FP8
from contracts.law._support.multi_rank_saves import first_finding
from contracts.law._support.saved_states import folder, shared_folder
from contracts.law._support.small_models import AHEAD_EXPERTS, GROUPED_EXPERTS, LATENT_EXPERTS, Cell, cell, session
from contracts.law._support.training_run import ROWS_OF_16, Rows, batches, seed_generators
from contracts.law.checkpoint.resume import EVERYTHING, unlike
from contracts.spec import Batch, Dsa, Execution, Fp8, Mhc, Mla, Moe, Mtp, Optim, Recipe, Schedule, Session, Training
from contracts.spec.needs import features

Given = Literal["rows", "packed", "own-data"]

AXES = {
    "attention": ("gqa", "qk-norm", "mla", "dsa"),
    "mlp": ("dense", "softmax", "sigmoid", "top-1", "capacity"),
    "precision": ("fp32", "bf16", "fp16", "fp8"),
    "rule": ("adamw", "muon"),
    "schedule": ("cosine", "linear", "constant", "WSD"),
    "beside": ("alone", "mtp", "mhc", "tied"),
    "activation": ("swiglu", "relu2"),
    "window": ("whole", "accumulated"),
    "given": ("rows", "packed", "own-data"),
    "blocks": ("AE", "AEMR"),
    "passes": ("kept", "recomputed"),
}
"""Every two of what these name meet in a row."""
ROWS = (
    "gqa dense fp32 adamw cosine alone swiglu whole rows AE kept",
    "gqa softmax bf16 muon linear mtp relu2 accumulated packed AEMR recomputed",
    "qk-norm sigmoid fp32 muon constant mhc swiglu accumulated own-data AE recomputed",
    "qk-norm softmax fp16 adamw WSD tied relu2 whole own-data AEMR kept",
    "mla dense fp8 muon WSD alone relu2 accumulated rows AEMR recomputed",
    "dsa top-1 fp16 muon cosine mtp swiglu whole packed AE kept",
    "dsa capacity fp32 adamw linear mhc relu2 whole rows AEMR recomputed",
    "mla capacity bf16 adamw constant mtp swiglu whole packed AE kept",
    "gqa top-1 fp8 adamw linear tied swiglu accumulated own-data AE kept",
    "qk-norm capacity fp8 muon cosine tied relu2 accumulated packed AE recomputed",
    "dsa sigmoid bf16 adamw WSD alone swiglu whole packed AEMR kept",
    "dsa dense fp16 adamw constant tied relu2 accumulated rows AEMR recomputed",
    "qk-norm top-1 bf16 adamw cosine mhc relu2 whole rows AEMR kept",
    "dsa softmax fp8 adamw constant alone swiglu whole own-data AE kept",
    "mla top-1 fp32 adamw WSD mtp swiglu whole own-data AE recomputed",
    "mla sigmoid fp16 adamw linear alone relu2 whole rows AE kept",
    "gqa capacity fp16 adamw WSD mhc swiglu whole packed AE kept",
    "qk-norm dense bf16 adamw linear mtp swiglu whole own-data AE kept",
    "mla softmax fp32 adamw cosine mhc swiglu whole rows AE kept",
    "gqa sigmoid fp8 adamw cosine mtp swiglu whole rows AE kept",
    "gqa top-1 fp32 adamw constant alone swiglu whole packed AE kept",
    "qk-norm capacity fp32 adamw cosine alone swiglu whole own-data AE kept",
    "mla sigmoid fp32 adamw cosine tied swiglu whole rows AE kept",
    "gqa dense fp8 adamw cosine mhc swiglu whole packed AE kept",
    "gqa dense bf16 adamw cosine tied swiglu whole rows AE kept",
)
"""The covering array: `tests_unit/checkpoint` makes it anew from AXES."""
DROPPED = (
    "gqa dense fp32 adamw cosine alone swiglu whole rows AE kept",
    "qk-norm softmax bf16 muon linear mtp relu2 accumulated packed AEMR recomputed",
    "mla sigmoid fp16 adamw constant mhc swiglu whole own-data AE kept",
    "dsa top-1 fp8 adamw WSD tied swiglu whole rows AE kept",
    "gqa capacity fp32 adamw cosine alone swiglu whole rows AE kept",
)
"""With dropout, every level of an axis once."""

PLAIN = replace(
    FP8, name="combined", dtype="fp32", fp8=None, moe=None, activation="swiglu", seq_length=16,
    optim=Optim(lr=1e-2, min_lr=1e-3, warmup=2, steps=4, weight_decay=0.3, clip=0.7), batch=Batch(micro=1, total=4),
)  # fmt: skip
_LATENT = Mla(q_lora=32, kv_lora=16, qk_head=16, qk_rope=16, v_head=16)
_SOFTMAX = Moe(experts=12, top_k=3, expert_hidden=32, shared_hidden=96, aux_loss=0.3, z_loss=0.05)
_SIGMOID = replace(_SOFTMAX, score="sigmoid", selection_bias=True, bias_rate=0.25, route_scale=2.5, aux_loss=0.0)
_EXPERTS = {
    "dense": None,
    "softmax": _SOFTMAX,
    "sigmoid": _SIGMOID,
    "top-1": replace(_SIGMOID, top_k=1, shared_hidden=0, route_scale=1.0),
    "capacity": replace(_SOFTMAX, capacity_factor=1.0),
}
_WHOLE: Rows = (((16,), 13), ((16,), 0), ((16,), 6), ((16,), 0))


def _combined(row: str, dropout: float = 0.0) -> tuple[Recipe, Execution, Given]:
    level: dict[str, Any] = dict(zip(AXES, row.split(), strict=True))  # literals of the table
    attention, beside, precision = level["attention"], level["beside"], level["precision"]
    recipe = replace(
        PLAIN, pattern=level["blocks"], depth=len(level["blocks"]), activation=level["activation"],
        moe=_EXPERTS[level["mlp"]], qk_norm=attention == "qk-norm",
        mla=_LATENT if attention in ("mla", "dsa") else None,
        dsa=Dsa(a_ranks=(0,), index_heads=2, index_head_dim=16, top_k=5) if attention == "dsa" else None,
        dtype="bf16" if precision == "fp8" else precision, fp8=Fp8(scaling="delayed") if precision == "fp8" else None,
        optim=replace(PLAIN.optim, rule=level["rule"], schedule=level["schedule"]),
        mtp=Mtp(depth=1) if beside == "mtp" else None, mhc=Mhc(streams=3) if beside == "mhc" else None,
        untied_embeddings=beside != "tied", dropout=dropout,
    )  # fmt: skip
    execution = Execution(
        microbatches=2 if level["window"] == "accumulated" else 1, recompute=level["passes"] == "recomputed"
    )
    return recipe, execution, level["given"]


COMBINED = {row.replace(" ", "-"): _combined(row) for row in ROWS}
COMBINED |= {f"dropout-{row.replace(' ', '-')}": _combined(row, 0.2) for row in DROPPED}


def _needs() -> Iterator[tuple[str, tuple[str, ...]]]:
    """All that a case has: on fewer features it would be another combination."""
    for case, (recipe, execution, given) in COMBINED.items():
        beside = {"checkpoint", "validation"} | ({given} - {"rows"})
        yield case, tuple(sorted(features(recipe, execution) | beside))


@contract("CKPT-01k", asks="train", cases=COMBINED, needs=dict(_needs()), source="F07 F13; TST-13")
def whatever_a_run_combines(stack: Training, recipe: Recipe, execution: Execution, given: Given) -> None:
    """With any combination of features, a run that is validated after each step, saved and resumed twice, and
    recomputed where the case says so, is bit-identical to the run that only takes the steps.

    The cases are a covering array: every two attentions, experts, precisions, optimizers, schedules, heads and streams,
    windows and kinds of data meet. Each half of such a pair is tested somewhere; state that only both have is not.
    """
    steps = batches(3, "combined", recipe.vocab, ROWS_OF_16 if given == "packed" else _WHOLE, recipe=recipe)
    other = batches(1, "validated", recipe.vocab, _WHOLE, recipe=recipe)
    if given != "packed":
        steps = () if given == "own-data" else tuple(replace(each, documents=None) for each in steps)
        other = tuple(replace(each, documents=None) for each in other)
    seed_generators(recipe.seed)
    plain = Session(recipe=recipe, steps=3, execution=replace(execution, recompute=False), batches=steps,
                    observe=EVERYTHING)  # fmt: skip
    whole = stack.train(plain)
    seed_generators(recipe.seed)
    with folder() as at:
        for number in range(3):
            kept, save_at = (str(at), frozenset({number + 1})) if number < 2 else (None, frozenset[int]())
            asked = replace(
                plain, steps=1, execution=execution, batches=steps[number : number + 1], validation=other,
                validate_at=frozenset({number + 1}), save=kept, save_at=save_at, load=str(at) if number else None,
            )  # fmt: skip
            (got,) = stack.train(asked).steps
            words = unlike(got, whole.steps[number])
            assert not words, f"after {number} loads, step {number + 1}: {words}"


ROUTED = LATENT_EXPERTS.moe or Moe()
ROUTERS = {"bf16": replace(ROUTED, capacity_factor=1.0), "fp16": replace(ROUTED, top_k=1)}
SCHEDULES: dict[str, Schedule] = {"bf16": "linear", "fp16": "WSD"}
SCALED = replace(FP8, fp8=Fp8(scaling="delayed"), pattern="AE", depth=2, seq_length=16, vocab=64, moe=None,
                 activation="swiglu", optim=GROUPED_EXPERTS.optim, batch=GROUPED_EXPERTS.batch)  # fmt: skip


def _half(dtype: str, *words: str) -> Recipe:
    """A transformer in half precision: with experts, tied, under a prediction head, updated by Muon, as `words` say."""
    optim = GROUPED_EXPERTS.optim
    return replace(
        GROUPED_EXPERTS, name=f"combined-{dtype}", dtype=dtype,  # type: ignore[arg-type]  # literals of the table
        moe=ROUTERS[dtype] if "experts" in words else None,
        mtp=AHEAD_EXPERTS.mtp if "ahead" in words else None, untied_embeddings="tied" not in words,
        optim=replace(optim, rule="muon" if "muon" in words else "adamw", schedule=SCHEDULES[dtype], min_lr=1e-4,
                      steps=4),
        pattern="AE" + "|AE" * (words.count("stage")), depth=4 + 4 * (words.count("stage") > 1),
    )  # fmt: skip


COMBINED_ON_RANKS: dict[str, Cell] = {
    "dp2-fp16": cell(_half("fp16", "experts", "tied"), 2, recomputed=True, microbatches=2),
    "fsdp2-bf16": cell(_half("bf16", "experts", "tied"), 2, fsdp=True, microbatches=2, recomputed=True),
    "fsdp2-fp16": cell(_half("fp16", "ahead", "muon"), 2, fsdp=True),
    "tp2-sp-bf16": cell(_half("bf16", "ahead", "muon"), 2, tp=2, sp=True, recomputed=True),
    "tp2-sp-fp16": cell(_half("fp16", "experts", "tied"), 2, tp=2, sp=True, microbatches=2),
    "cp2-bf16": cell(_half("bf16", "experts", "ahead"), 2, cp=2),
    "cp2-fp16": cell(_half("fp16", "tied", "muon"), 2, cp=2, microbatches=2, recomputed=True),
    "ep2-bf16": cell(_half("bf16", "experts", "tied", "muon"), 2, ep=2, fsdp=True, microbatches=2),
    "ep2-fp16": cell(_half("fp16", "experts", "ahead"), 2, ep=2, fsdp=True, recomputed=True),
    "pp2-bf16": cell(_half("bf16", "experts", "ahead", "stage"), 2, pp=2, microbatches=4, recomputed=True),
    "interleaved-bf16": cell(_half("bf16", "tied", "muon", *("stage",) * 3), 2, pp=2, microbatches=2,
                             interleaved=True),
    "fsdp2-fp8": cell(SCALED, 2, fsdp=True, microbatches=2),
    "hsdp-2x2-fp16": cell(_half("fp16", "experts", "tied"), 4, fsdp=True, replicas=2, recomputed=True),
    "interleaved-dp2-bf16": cell(_half("bf16", "experts", *("stage",) * 3), 4, pp=2, microbatches=2,
                                 interleaved=True, recomputed=True),
}  # fmt: skip
"""Each axis of parallelism in each half precision that runs on it; the two rows of an axis differ in all else."""
NEEDS = {case: ("checkpoint", "validation", *sorted(features(recipe, execution)))
         for case, (recipe, execution, _) in COMBINED_ON_RANKS.items()}  # fmt: skip


@contract(
    "CKPT-01p", asks=("built", "train"), cases=COMBINED_ON_RANKS, needs=NEEDS, source="F07 F13; TST-13", tier="dist"
)
def whatever_ranks_combine(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """On every axis of parallelism in half precision, a run that is validated after each step (except with a pipeline),
    saved and resumed twice, and recomputed where the case says so, is bit-identical to the run that only takes the
    steps.

    A step on ranks leaves state in two dtypes, of two owners: weights that are updated and weights that are gathered, a
    loss scale that all follow, scales of FP8 that differ by rank. An event in between finds one of them.
    """
    asked = replace(session(stack, recipe, execution, 3), observe=EVERYTHING)
    other, steps = asked.batches[0], asked.batches
    validated = () if execution.degrees.pp > 1 else (other,)
    seed_generators(recipe.seed)
    plain = replace(asked, execution=replace(asked.execution, recompute=False))
    whole = stack.train(plain).steps
    seed_generators(recipe.seed)
    with shared_folder() as at:
        for number, want in enumerate(whole):
            part = replace(
                asked, steps=1, batches=steps[number : number + 1], validation=validated,
                validate_at=frozenset({number + 1}) if validated else frozenset(),
                save=str(at), save_at=frozenset({number + 1}), load=str(at) if number else None,
                weights={} if number else asked.weights, buffers={} if number else asked.buffers,
            )  # fmt: skip
            (got,) = stack.train(part).steps
            words = first_finding(unlike(got, want))
            assert not words, f"after {number} loads, step {number + 1}: {words}"

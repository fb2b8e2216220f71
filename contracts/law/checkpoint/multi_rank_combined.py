"""Runs of several ranks in half precision: what is done beside the steps changes none of them, on whatever layout."""

from dataclasses import replace

from contracts.contract import contract
from contracts.law._support.folders import shared_folder
from contracts.law._support.fp8_calls import FP8
from contracts.law._support.multi_rank_saves import first_finding
from contracts.law._support.small_models import AHEAD_EXPERTS, GROUPED_EXPERTS, LATENT_EXPERTS, Cell, cell, session
from contracts.law._support.training_run import seed_generators
from contracts.law.checkpoint.resume import EVERYTHING, unlike
from contracts.spec import Execution, Fp8, Moe, Recipe, Schedule, Training
from contracts.spec.needs import features

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


COMBINED: dict[str, Cell] = {
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
         for case, (recipe, execution, _) in COMBINED.items()}  # fmt: skip


@contract("CKPT-01p", asks=("built", "train"), cases=COMBINED, needs=NEEDS, source="F07 F13; TST-13", tier="dist")
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

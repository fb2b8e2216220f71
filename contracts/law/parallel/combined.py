"""Every two features of a recipe on every axis of parallelism: two steps on two ranks equal two on one rank."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from contracts.contract import contract
from contracts.law._support.label_weights import WINDOW
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import borrowed, own_axis
from contracts.law._support.recipes import SMALL_MLA
from contracts.law._support.small_models import Cell, cell
from contracts.law._support.step_comparison import (
    clip_difference,
    gradient_differences,
    on_one_rank_and_many,
    replica_differences,
    state_differences,
)
from contracts.law._support.training_run import IDLE, ROWS_OF_16, batches, drawn_weights, selection_biases
from contracts.law._support.transformer_layouts import PLAIN, G, L
from contracts.law.parallel.layouts import MANY, figure_difference
from contracts.law.parallel.small_models import require_one_rank
from contracts.spec import Biased, Dsa, Execution, Mhc, Moe, Mtp, ParallelSsm, Recipe, Session, Training

LAYOUTS = {
    "dp2": own_axis(2),
    "fsdp2": own_axis(2, fsdp=True),
    "tp2": own_axis(2, tp=2),
    "tp2-sp": own_axis(2, tp=2, sp=True),
    "tp2-sp-etp1": own_axis(2, tp=2, etp=1, sp=True),
    "cp2": borrowed(2, cp=2),
    "ep2": own_axis(2, ep=2),
    "borrowed-ep2": borrowed(2, ep=2),
    "pp2": own_axis(2, pp=2),
    "interleaved": replace(own_axis(2, pp=2), schedule="interleaved"),
}
_SOFTMAX = Moe(experts=16, top_k=3, expert_hidden=20, shared_hidden=28, aux_loss=0.3, z_loss=0.05)
_SIGMOID = replace(_SOFTMAX, score="sigmoid", selection_bias=True, bias_rate=0.25, route_scale=1.5)
EXPERTS = {
    "dense": None,
    "softmax": _SOFTMAX,
    "sigmoid": _SIGMOID,
    "top-1": replace(_SIGMOID, top_k=1, shared_hidden=0),
    "capacity": replace(_SOFTMAX, capacity_factor=0.7),
    "by-gate": replace(_SOFTMAX, capacity_factor=0.7, drop_policy="probs"),
    "groups": replace(_SIGMOID, top_k=4, groups=(4, 2)),
}
AXES = {
    "layout": tuple(LAYOUTS),
    "mlp": tuple(EXPERTS),
    "attention": ("gqa", "qk-norm", "mla", "dsa", "beside-scan"),
    "beside": ("plain", "mtp", "mhc", "tied"),
    "biases": ("none", "all"),
    "window": ("whole", "accumulated"),
    "blocks": ("AE", "AEMR"),
    "rule": ("adamw", "muon"),
    "passes": ("kept", "recomputed"),
    "activation": ("swiglu", "relu2"),
}
"""Every two of what these name meet in a row, except expert parallel without experts. Stages of a pipeline take two
microbatches in either window, and latent attention has no bias."""


def _biases(level: Mapping[str, str]) -> tuple[Biased, ...]:
    """All places of a row's recipe that may have a bias."""
    attention: tuple[Biased, ...] = () if level["attention"] in ("mla", "dsa") else ("attention",)
    mlp: tuple[Biased, ...] = ("mlp",) if level["mlp"] == "dense" else ("experts", "router")
    return (*attention, *mlp)


def combined(row: str) -> tuple[Recipe, Execution, int]:
    """The recipe and the execution of a row of the array."""
    level: dict[str, Any] = dict(zip(AXES, row.split(), strict=True))
    stages = {"pp2": 2, "interleaved": 4}.get(level["layout"], 1)
    attention, beside = level["attention"], level["beside"]
    recipe = replace(
        MANY, name="combined", pattern="|".join([level["blocks"]] * stages), depth=len(level["blocks"]) * stages,
        activation=level["activation"], moe=EXPERTS[level["mlp"]], qk_norm=attention == "qk-norm",
        mla=SMALL_MLA.mla if attention in ("mla", "dsa") else None,
        dsa=Dsa(a_ranks=(0,), index_heads=5, index_head_dim=8, top_k=7) if attention == "dsa" else None,
        mtp=Mtp(depth=2, loss_weight=0.4) if beside == "mtp" else None,
        mhc=Mhc(streams=3) if beside == "mhc" else None, untied_embeddings=beside != "tied",
        optim=replace(MANY.optim, rule=level["rule"]),
        parallel_ssm=ParallelSsm(attention_scale=0.75, ssm_scale=1.5) if attention == "beside-scan" else None,
        biases=_biases(level) if level["biases"] == "all" else (),
    )  # fmt: skip
    execution = replace(
        LAYOUTS[level["layout"]], microbatches=2 if stages > 1 or level["window"] == "accumulated" else 1,
        recompute=level["passes"] == "recomputed", precision="float64",
    )  # fmt: skip
    return recipe, execution, 2


ROWS = (
    "dp2 dense qk-norm plain all whole AEMR muon recomputed relu2",
    "dp2 softmax qk-norm mtp none accumulated AE muon recomputed swiglu",
    "dp2 sigmoid mla mhc all accumulated AEMR muon kept relu2",
    "fsdp2 dense qk-norm mhc all accumulated AEMR muon kept swiglu",
    "dp2 top-1 dsa tied all whole AEMR adamw kept swiglu",
    "tp2 top-1 gqa mtp all accumulated AEMR adamw recomputed relu2",
    "dp2 capacity beside-scan tied all accumulated AEMR adamw kept relu2",
    "fsdp2 by-gate dsa tied none accumulated AE adamw recomputed relu2",
    "tp2 groups qk-norm tied all whole AEMR muon kept swiglu",
    "tp2-sp dense mla mtp all whole AEMR muon recomputed swiglu",
    "tp2-sp-etp1 dense dsa mhc all accumulated AEMR muon recomputed relu2",
    "cp2 dense beside-scan tied all whole AEMR adamw recomputed relu2",
    "ep2 groups gqa mhc all accumulated AEMR muon recomputed relu2",
    "borrowed-ep2 softmax qk-norm mhc all whole AEMR adamw kept relu2",
    "ep2 capacity qk-norm tied all accumulated AE muon kept relu2",
    "tp2-sp-etp1 by-gate qk-norm mtp all whole AEMR adamw kept swiglu",
    "borrowed-ep2 groups mla tied none accumulated AE muon recomputed relu2",
    "cp2 sigmoid beside-scan mhc all accumulated AEMR adamw recomputed swiglu",
    "tp2-sp by-gate dsa mhc none accumulated AEMR adamw recomputed relu2",
    "pp2 sigmoid qk-norm mtp all whole AEMR muon recomputed relu2",
    "pp2 top-1 mla plain all accumulated AEMR adamw recomputed relu2",
    "tp2 capacity mla mhc none whole AE adamw recomputed swiglu",
    "cp2 capacity dsa mtp all whole AE muon kept swiglu",
    "tp2-sp-etp1 top-1 beside-scan mhc all whole AEMR muon kept relu2",
    "interleaved dense gqa mtp all accumulated AE muon kept swiglu",
    "interleaved softmax mla mhc all whole AEMR muon recomputed relu2",
    "fsdp2 groups dsa mtp all accumulated AEMR muon recomputed swiglu",
    "ep2 by-gate mla plain all accumulated AEMR muon recomputed swiglu",
    "tp2 softmax dsa tied all whole AEMR adamw recomputed swiglu",
    "tp2-sp sigmoid beside-scan tied none whole AEMR adamw kept swiglu",
    "ep2 softmax beside-scan mtp all accumulated AE muon kept swiglu",
    "tp2-sp top-1 qk-norm tied all accumulated AE muon kept swiglu",
    "tp2-sp-etp1 capacity gqa tied all whole AE muon recomputed swiglu",
    "borrowed-ep2 sigmoid dsa mtp all accumulated AE adamw kept swiglu",
    "borrowed-ep2 by-gate beside-scan tied none whole AEMR adamw recomputed swiglu",
    "pp2 groups beside-scan mhc none accumulated AE muon kept relu2",
    "fsdp2 softmax mla mhc all whole AEMR muon recomputed swiglu",
    "cp2 softmax qk-norm mtp none accumulated AE muon recomputed swiglu",
    "pp2 dense mla tied none accumulated AEMR muon kept swiglu",
    "interleaved sigmoid qk-norm plain none whole AE adamw kept relu2",
    "interleaved top-1 dsa tied all accumulated AEMR muon recomputed swiglu",
    "fsdp2 sigmoid beside-scan mhc none accumulated AE adamw recomputed swiglu",
    "tp2 dense beside-scan tied none accumulated AE adamw recomputed swiglu",
    "tp2-sp softmax gqa tied none whole AE muon recomputed relu2",
    "tp2-sp-etp1 softmax mla plain all accumulated AE adamw recomputed swiglu",
    "cp2 top-1 mla plain none accumulated AE adamw kept swiglu",
    "ep2 softmax dsa tied none whole AEMR adamw kept swiglu",
    "borrowed-ep2 softmax gqa tied all accumulated AEMR muon recomputed swiglu",
    "pp2 softmax dsa plain none accumulated AE adamw kept relu2",
    "interleaved capacity beside-scan plain all accumulated AEMR muon recomputed swiglu",
    "dp2 by-gate gqa mhc all whole AEMR adamw recomputed relu2",
    "dp2 groups mla mtp none accumulated AE adamw recomputed swiglu",
    "fsdp2 top-1 mla plain all whole AEMR adamw recomputed relu2",
    "fsdp2 capacity gqa plain all whole AEMR muon kept relu2",
    "tp2 sigmoid gqa plain none whole AE adamw recomputed swiglu",
    "tp2 by-gate mla plain none whole AE muon recomputed relu2",
    "tp2-sp capacity dsa mtp none accumulated AE adamw kept swiglu",
    "tp2-sp groups qk-norm plain all accumulated AE muon kept swiglu",
    "tp2-sp-etp1 sigmoid qk-norm plain all whole AE muon recomputed swiglu",
    "tp2-sp-etp1 groups gqa mtp none accumulated AE muon recomputed relu2",
    "cp2 by-gate beside-scan tied all whole AEMR muon kept relu2",
    "cp2 groups gqa tied none accumulated AE adamw recomputed swiglu",
    "ep2 sigmoid beside-scan mtp none accumulated AEMR muon recomputed swiglu",
    "ep2 top-1 beside-scan plain none accumulated AE adamw recomputed relu2",
    "borrowed-ep2 top-1 qk-norm mtp all accumulated AEMR adamw recomputed relu2",
    "borrowed-ep2 capacity beside-scan plain all whole AE adamw recomputed swiglu",
    "pp2 capacity beside-scan mtp all accumulated AEMR muon kept relu2",
    "pp2 by-gate gqa plain none accumulated AE adamw recomputed relu2",
    "interleaved by-gate qk-norm plain all accumulated AEMR muon kept swiglu",
    "interleaved groups beside-scan plain all whole AEMR adamw kept swiglu",
)
CASES = {row.replace(" ", "-"): combined(row) for row in ROWS}


def parts(execution: Execution) -> int:
    """In how many parts a layout's ranks take a batch: experts fill their slots with the tokens of one part."""
    degrees = execution.degrees
    own = degrees.ep if execution.layout == "own-axis" else 1
    return execution.microbatches * execution.world // (degrees.pp * degrees.tp * degrees.cp * own)


@contract("PAR-01k", asks=("built", "train"), cases=CASES, source="F01; TST-13", tier="dist")
def whatever_a_step_combines(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """With any two features of a recipe, on any axis of parallelism, losses, counts, gradients, the norm, weights,
    optimizer state and buffers of two steps equal those of one rank.
    """
    asked = Session(
        recipe=recipe, steps=2, execution=in_a_layout_of(stack, execution),
        batches=batches(2, "combined on ranks", rows=ROWS_OF_16 * (recipe.batch.total // 4)),
        weights=drawn_weights(stack.built(recipe, execution.mode).parameters),
        buffers=selection_biases(stack, recipe, IDLE, -4.0, mode=execution.mode),
        observe=frozenset({"gradients", "weights", "optimizer", "buffers"}),
    )  # fmt: skip
    capped = recipe.moe is not None and recipe.moe.capacity_factor is not None
    for alone, many in on_one_rank_and_many(stack, asked, microbatches=parts(execution) if capped else 1):
        words = (
            figure_difference(alone, many)
            or gradient_differences(alone, many)
            or clip_difference(alone, many)
            or state_differences(alone, many, "weights", "optimizer", "buffers")
            or replica_differences({**many.weights, **many.optimizer, **many.buffers})
        )
        assert not words, words


SHARED_LAYOUTS: dict[str, dict[str, Any]] = {
    "dp2": {},
    "fsdp2": {"fsdp": True},
    "tp2-sp": {"tp": 2, "sp": True},
    "borrowed-ep2": {"ep": 2},
    "borrowed-ep2-fsdp": {"ep": 2, "fsdp": True},
    "borrowed-tp2-sp-ep2-etp1": {"tp": 2, "sp": True, "ep": 2, "etp": 1},
    "cp2": {"cp": 2},
    "pp2": {"pp": 2},
    "interleaved": {"pp": 2, "interleaved": True},
}
SHARED_EXPERTS = {
    "dense": None,
    "softmax": G.moe,
    "sigmoid": L.moe,
    "groups": replace(L.moe or Moe(), top_k=4, groups=(4, 2)),
}
SHARED_AXES = {
    "layout": tuple(SHARED_LAYOUTS),
    "mlp": tuple(SHARED_EXPERTS),
    "attention": ("gqa", "qk-norm", "mla", "biased"),
    "embeddings": ("untied", "tied"),
    "window": ("whole", "accumulated"),
    "passes": ("kept", "recomputed"),
}
"""Every two of what these name, which released stacks have, meet in a row, except expert parallel without experts.
Stages of a pipeline take two microbatches or four."""


def shared(row: str) -> Cell:
    """The recipe and the execution of a row of the array of what released stacks have."""
    level: dict[str, Any] = dict(zip(SHARED_AXES, row.split(), strict=True))
    stages = {"pp2": 2, "interleaved": 4}.get(level["layout"], 1)
    recipe = replace(
        L if level["attention"] == "mla" else PLAIN, name="combined-" + level["mlp"], pattern="|".join(["AE"] * stages),
        depth=2 * max(stages, 2), moe=SHARED_EXPERTS[level["mlp"]], qk_norm=level["attention"] == "qk-norm",
        untied_embeddings=level["embeddings"] == "untied",
        biases=("attention",) if level["attention"] == "biased" else (),
    )  # fmt: skip
    microbatches = (2 if level["window"] == "accumulated" else 1) * min(stages, 2)
    return cell(recipe, 2, microbatches=microbatches, recomputed=level["passes"] == "recomputed",
                **SHARED_LAYOUTS[level["layout"]])  # fmt: skip


SHARED_ROWS = (
    "dp2 dense qk-norm tied whole recomputed",
    "dp2 softmax biased untied whole kept",
    "dp2 sigmoid gqa untied whole recomputed",
    "dp2 groups mla untied accumulated recomputed",
    "fsdp2 dense biased untied whole kept",
    "fsdp2 softmax qk-norm untied accumulated recomputed",
    "fsdp2 sigmoid mla untied whole kept",
    "fsdp2 groups gqa tied accumulated recomputed",
    "tp2-sp dense gqa untied accumulated kept",
    "tp2-sp softmax mla tied whole recomputed",
    "tp2-sp sigmoid biased untied accumulated kept",
    "tp2-sp groups qk-norm untied accumulated kept",
    "borrowed-ep2 softmax gqa tied accumulated kept",
    "borrowed-ep2 sigmoid qk-norm tied whole kept",
    "borrowed-ep2 sigmoid biased untied accumulated kept",
    "borrowed-ep2 groups mla untied accumulated recomputed",
    "borrowed-ep2-fsdp softmax mla tied accumulated recomputed",
    "borrowed-ep2-fsdp softmax biased untied accumulated kept",
    "borrowed-ep2-fsdp sigmoid gqa tied accumulated kept",
    "borrowed-ep2-fsdp groups qk-norm untied whole recomputed",
    "borrowed-tp2-sp-ep2-etp1 softmax qk-norm tied accumulated kept",
    "borrowed-tp2-sp-ep2-etp1 softmax biased tied whole recomputed",
    "borrowed-tp2-sp-ep2-etp1 sigmoid gqa untied whole recomputed",
    "borrowed-tp2-sp-ep2-etp1 groups mla untied whole kept",
    "cp2 dense gqa untied accumulated recomputed",
    "cp2 softmax qk-norm tied accumulated recomputed",
    "cp2 sigmoid biased tied whole kept",
    "cp2 groups mla tied whole kept",
    "pp2 dense mla tied whole kept",
    "pp2 softmax biased tied accumulated recomputed",
    "pp2 sigmoid gqa untied whole recomputed",
    "pp2 groups qk-norm untied whole kept",
    "interleaved dense qk-norm untied accumulated kept",
    "interleaved softmax gqa untied accumulated recomputed",
    "interleaved sigmoid mla tied accumulated kept",
    "interleaved groups biased tied whole recomputed",
)
SHARED = {row.replace(" ", "-"): shared(row) for row in SHARED_ROWS}


@contract("PAR-01l", asks=("built", "train"), cases=SHARED, source="F01; TST-13",
          conventions=WINDOW, tier="dist")  # fmt: skip
def whatever_a_step_of_a_transformer_combines(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """With any two features of a transformer with experts, on any axis of parallelism, losses, gradients by name, the
    norm and selection biases equal those of one rank.
    """
    require_one_rank(stack, recipe, execution)

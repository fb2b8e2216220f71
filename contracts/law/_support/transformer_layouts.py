"""Transformers with experts, by layout: for single steps, for pipeline stages, for saving and loading."""

from collections.abc import Mapping
from dataclasses import replace

from contracts.law._support.small_models import (
    AHEAD_EXPERTS,
    BIASED_DENSE,
    BIASED_EXPERTS,
    DENSE,
    GROUPED_EXPERTS,
    HALF_EXPERTS,
    HYBRID_EXPERTS,
    IN_HALVES,
    IN_QUARTERS,
    LATENT_EXPERTS,
    Cell,
    cell,
)
from contracts.spec import Execution, ParallelSsm, Recipe
from contracts.spec.needs import features

L, G, H = LATENT_EXPERTS, GROUPED_EXPERTS, HYBRID_EXPERTS
PLAIN = replace(DENSE, name="plain", qk_norm=False)
LATENT = replace(L, name="latent-dense", moe=None)
SIDE_BY_SIDE = replace(
    PLAIN, name="side-by-side", mamba=H.mamba, parallel_ssm=ParallelSsm(attention_scale=0.75, ssm_scale=1.5)
)
MUON_EXPERTS, MUON_HYBRID, MUON_BIASED = (
    replace(each, name=f"{each.name}-muon", optim=replace(each.optim, rule="muon"))
    for each in (G, H, replace(BIASED_EXPERTS, dtype="bf16"))
)


CELLS: dict[str, Cell] = {
    "dense-dp2": cell(DENSE, 2),
    "dense-fsdp2": cell(DENSE, 2, fsdp=True),
    "dense-tp2-sp": cell(DENSE, 2, tp=2, sp=True),
    "dense-tp2": cell(DENSE, 2, tp=2),
    "latent-tp2": cell(LATENT, 2, tp=2),
    "plain-tp2": cell(PLAIN, 2, tp=2),
    "plain-tp2-dp2": cell(PLAIN, 4, tp=2),
    "side-by-side-dp2": cell(SIDE_BY_SIDE, 2),
    "side-by-side-fsdp2": cell(SIDE_BY_SIDE, 2, fsdp=True),
    "side-by-side-tp2-sp": cell(SIDE_BY_SIDE, 2, tp=2, sp=True),
    "dp2": cell(L, 2),
    "fsdp2": cell(G, 2, fsdp=True),
    "hsdp-2x2": cell(L, 4, fsdp=True, replicas=2),
    "tp2-sp": cell(L, 2, tp=2, sp=True),
    "tp2-sp-grouped": cell(G, 2, tp=2, sp=True),
    "tp2-sp-etp1": cell(G, 2, tp=2, etp=1, sp=True),
    "tp2": cell(G, 2, tp=2),
    "tp2-sp-fsdp2": cell(L, 4, tp=2, sp=True, fsdp=True),
    "ep2": cell(L, 2, layout="own-axis", ep=2),
    "ep4": cell(G, 4, layout="own-axis", ep=4),
    "ep2-fsdp2": cell(L, 4, layout="own-axis", ep=2, fsdp=True),
    "tp2-sp-ep2-etp1": cell(L, 4, layout="own-axis", tp=2, ep=2, etp=1, sp=True),
    "borrowed-ep2": cell(L, 2, ep=2),
    "borrowed-ep2-fsdp": cell(L, 2, ep=2, fsdp=True),
    "borrowed-ep2-fsdp4": cell(G, 4, ep=2, fsdp=True),
    "borrowed-ep4-fsdp": cell(L, 4, ep=4, fsdp=True),
    "borrowed-hsdp-2x2-ep2": cell(L, 4, ep=2, fsdp=True, replicas=2),
    "borrowed-ep2-dp4": cell(L, 4, ep=2),
    "borrowed-ep4": cell(L, 4, ep=4),
    "borrowed-tp2-sp-ep4-etp1": cell(G, 4, tp=2, ep=4, etp=1, sp=True),
    "borrowed-tp2-sp-ep2-etp1": cell(G, 2, tp=2, ep=2, etp=1, sp=True),
    "borrowed-tp2-sp-ep2-etp1-fsdp": cell(G, 4, tp=2, ep=2, etp=1, sp=True, fsdp=True),
    "borrowed-tp2-sp-ep4-etp1-fsdp": cell(L, 4, tp=2, ep=4, etp=1, sp=True, fsdp=True),
    "borrowed-tp2-sp-ep2-etp2-fsdp": cell(G, 4, tp=2, ep=2, etp=2, sp=True, fsdp=True),
    "hybrid-dp2": cell(H, 2),
    "hybrid-tp2-sp": cell(H, 2, tp=2, sp=True),
    "hybrid-borrowed-tp2-sp-ep2-etp1": cell(H, 2, tp=2, ep=2, etp=1, sp=True),
    "ahead-dp2": cell(AHEAD_EXPERTS, 2),
    "ahead-tp2-sp": cell(AHEAD_EXPERTS, 2, tp=2, sp=True),
    "ahead-borrowed-tp2-sp-ep2-etp1": cell(AHEAD_EXPERTS, 2, tp=2, ep=2, etp=1, sp=True),
    "biased-tp2": cell(BIASED_DENSE, 2, tp=2),
    "biased-tp2-sp": cell(BIASED_DENSE, 2, tp=2, sp=True),
    "biased-tp2-sp-experts": cell(BIASED_EXPERTS, 2, tp=2, sp=True),
    "biased-fsdp2": cell(BIASED_EXPERTS, 2, fsdp=True),
    "biased-borrowed-tp2-sp-ep2-etp1": cell(BIASED_EXPERTS, 2, tp=2, ep=2, etp=1, sp=True),
}  # fmt: skip


def cells_named(*names: str) -> dict[str, Cell]:
    return {name: CELLS[name] for name in names}


STEPPED = cells_named("dense-dp2", "dense-fsdp2", "plain-tp2", "dp2", "fsdp2", "hsdp-2x2", "tp2-sp", "tp2-sp-etp1",
               "ep2", "tp2-sp-ep2-etp1", "borrowed-ep2", "borrowed-ep4", "borrowed-tp2-sp-ep4-etp1",
               "borrowed-ep2-fsdp", "borrowed-tp2-sp-ep4-etp1-fsdp", "hybrid-tp2-sp", "biased-tp2-sp")  # fmt: skip


BY_MUON: dict[str, Cell] = {
    "muon-tp2-sp": cell(MUON_EXPERTS, 2, tp=2, sp=True),
    "muon-borrowed-ep2": cell(MUON_EXPERTS, 2, ep=2),
    "muon-borrowed-tp2-sp-ep2-etp1": cell(MUON_EXPERTS, 2, tp=2, ep=2, etp=1, sp=True),
    "muon-hybrid-tp2-sp": cell(MUON_HYBRID, 2, tp=2, sp=True),
}
"""Without shards and without data-parallel ranks: few stacks have Muon beside those."""


HALF_DENSE = replace(HALF_EXPERTS, name="dense-bf16", moe=None)
HALF: dict[str, Cell] = {
    "bf16-dense-fsdp2": cell(HALF_DENSE, 2, fsdp=True),
    "bf16-dense-tp2-sp": cell(HALF_DENSE, 2, tp=2, sp=True),
    "bf16-dp2": cell(HALF_EXPERTS, 2),
    "bf16-fsdp2": cell(HALF_EXPERTS, 2, fsdp=True),
    "bf16-tp2-sp-fsdp2": cell(HALF_EXPERTS, 4, tp=2, etp=1, sp=True, fsdp=True),
    "bf16-borrowed-ep2-fsdp4": cell(HALF_EXPERTS, 4, ep=2, fsdp=True),
}
"""As they are trained, where what a checkpoint holds is not what the model computes with."""


def needs_of(cells: Mapping[str, Cell]) -> dict[str, tuple[str, ...]]:
    """The features that each layout is about: experts, and a scan, prediction heads or biases where there are some."""
    hybrid, ahead = ("experts", "mamba"), ("experts", "prediction-heads")
    about = ((DENSE, ()), (PLAIN, ()), (LATENT, ("mla",)), (SIDE_BY_SIDE, ("parallel-ssm",)), (H, hybrid),
             (MUON_HYBRID, hybrid), (AHEAD_EXPERTS, ahead))  # fmt: skip
    return {
        name: of_biases(recipe) or next((needs for one, needs in about if recipe is one), ("experts",))
        for name, (recipe, _, _) in cells.items()
    }


def of_biases(recipe: Recipe) -> tuple[str, ...]:
    """The features of a recipe with biases; empty for one without."""
    found = sorted(each for each in features(recipe) if each.endswith("-bias") and each != "selection-bias")
    return ("experts", *found) if found and recipe.moe is not None else tuple(found)


UPDATE = 5e-3
"""Relative L2 error of the movement over one update or three: Adam turns gradients that are only rounding into full
steps. Two stacks showed at most 5e-4; half of the decay is 1e-2."""


AHEAD = replace(AHEAD_EXPERTS, **IN_HALVES)  # type: ignore[arg-type]  # as below
HALVES, QUARTERS = replace(L, **IN_HALVES), replace(G, **IN_QUARTERS)  # type: ignore[arg-type]  # a table of both


STAGES: dict[str, Cell] = {
    "1f1b": cell(HALVES, 2, pp=2, microbatches=4),
    "interleaved": cell(QUARTERS, 2, pp=2, microbatches=4, interleaved=True),
    "interleaved-beside-dp2": cell(QUARTERS, 4, pp=2, microbatches=2, interleaved=True),
    "beside-fsdp2": cell(HALVES, 4, pp=2, fsdp=True, microbatches=2),
    "hybrid-1f1b": cell(replace(H, pattern="AE|ME"), 2, pp=2, microbatches=4),
    "ahead-1f1b": cell(AHEAD, 2, pp=2, microbatches=4),
    "ahead-tied-1f1b": cell(replace(AHEAD, untied_embeddings=False), 2, pp=2, microbatches=4),
    "ahead-beside-tp2-sp": cell(AHEAD, 4, pp=2, tp=2, sp=True, microbatches=4),
    "beside-tp2-sp": cell(replace(G, **IN_HALVES), 4, pp=2, tp=2, sp=True, microbatches=4),  # type: ignore[arg-type]
    "beside-ep2": cell(HALVES, 4, layout="own-axis", pp=2, ep=2, microbatches=2),
    "beside-borrowed-ep2-fsdp": cell(HALVES, 4, pp=2, ep=2, fsdp=True, microbatches=2),
}


def _recomputed(recipe: Recipe, **said: int) -> Cell:
    return cell(recipe, 4, recomputed=True, **said)  # type: ignore[arg-type]  # switches


MET: dict[str, Cell] = {
    "tp2-sp-ep4-etp1-fsdp2": _recomputed(L, tp=2, sp=True, ep=4, etp=1, fsdp=True, microbatches=2),
    "hsdp-2x2-ep2": _recomputed(L, ep=2, fsdp=True, replicas=2),
    "cp2-tp2-sp-ep2-etp1": _recomputed(G, cp=2, tp=2, sp=True, ep=2, etp=1, microbatches=4),
    "cp2-ep2-fsdp4": _recomputed(G, cp=2, ep=2, fsdp=True, microbatches=2),
    "interleaved-tp2-sp-ep2-etp1": _recomputed(
        QUARTERS, pp=2, tp=2, sp=True, ep=2, etp=1, microbatches=4, interleaved=True
    ),
    "interleaved-ep2-fsdp2": _recomputed(QUARTERS, pp=2, ep=2, fsdp=True, microbatches=2, interleaved=True),
    "interleaved-cp2-ep2-fsdp2": _recomputed(QUARTERS, pp=2, cp=2, ep=2, fsdp=True, microbatches=4, interleaved=True),
}
"""Layouts of four ranks in which as many axes as can be stand together, with microbatches and recomputation: most of
the triples that `rankproof coverage --pairs` counts over the axes of parallelism, in seven runs."""


def saved_and_loaded(saves: Cell, *loads: Cell) -> tuple[Recipe, Execution, int, tuple[Execution, ...]]:
    """Recipe, the layout that saves, ranks, and the layouts that load."""
    return (*saves, tuple(execution for _, execution, _ in loads))


SAVED = {
    name: saved_and_loaded(*cells_named(name, *others).values())
    for name, others in {
        "fsdp2": ("tp2-sp-grouped", "borrowed-tp2-sp-ep2-etp1"),
        "ep2": ("fsdp2", "tp2-sp"),
        "borrowed-ep2-fsdp": ("fsdp2", "tp2-sp"),
        "borrowed-tp2-sp-ep4-etp1-fsdp": ("hsdp-2x2", "borrowed-ep4-fsdp"),
        "tp2-sp": ("dp2",),
        "borrowed-ep2": ("borrowed-tp2-sp-ep2-etp1",),
        "borrowed-tp2-sp-ep4-etp1": ("borrowed-ep4", "borrowed-ep2-dp4"),
        "hybrid-tp2-sp": ("hybrid-dp2",),
    }.items()
} | {
    "dp2-to-borrowed-ep2": saved_and_loaded(CELLS["dp2"], CELLS["borrowed-ep2"]),
    "borrowed-ep2-to-tp2-sp": saved_and_loaded(CELLS["borrowed-ep2"], CELLS["tp2-sp"]),
    "tp2-sp-to-etp1": saved_and_loaded(CELLS["tp2-sp"], cell(L, 2, tp=2, etp=1, sp=True)),
    "1f1b": saved_and_loaded(STAGES["1f1b"], CELLS["dp2"], cell(L, 1)),
    "interleaved": saved_and_loaded(STAGES["interleaved"], CELLS["tp2-sp-grouped"]),
    "biased": saved_and_loaded(*cells_named("biased-borrowed-tp2-sp-ep2-etp1", "biased-fsdp2").values()),
    "hybrid-1f1b": saved_and_loaded(STAGES["hybrid-1f1b"], CELLS["hybrid-tp2-sp"]),
    "ahead-1f1b": saved_and_loaded(STAGES["ahead-1f1b"], CELLS["ahead-tp2-sp"]),
    "bf16-dense-tp2-sp": saved_and_loaded(HALF["bf16-dense-tp2-sp"], cell(HALF_DENSE, 2)),
    "bf16-hsdp-2x2": saved_and_loaded(cell(HALF_EXPERTS, 4, fsdp=True, replicas=2), cell(HALF_EXPERTS, 4, fsdp=True)),
    "bf16-fsdp4-to-tp2-sp": saved_and_loaded(
        cell(HALF_EXPERTS, 4, fsdp=True), HALF["bf16-tp2-sp-fsdp2"], HALF["bf16-borrowed-ep2-fsdp4"]
    ),
    "tp2-sp-to-interleaved": saved_and_loaded(cell(QUARTERS, 2, tp=2, sp=True), STAGES["interleaved"]),
}

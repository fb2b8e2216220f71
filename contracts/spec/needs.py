"""What a stack must have to be asked about a recipe under an execution, as features (`contracts.spec.abilities`)."""

from collections.abc import Iterator

from contracts.spec import pattern as patterns
from contracts.spec.recipe import Biased, Moe, Recipe
from contracts.spec.training import Execution


def features(recipe: Recipe, execution: Execution | None = None, *, trains: bool = True) -> frozenset[str]:
    """The features that a recipe under an execution needs; `trains` is whether steps are taken.

    The layout is a need only if ep exceeds 1: below, both layouts are the same ranks.
    """
    found = {*_of_model(recipe), *(_of_steps(recipe) if trains else ())}
    return frozenset(found | {*(_of_execution(recipe, execution) if execution else ())})


def _of_model(recipe: Recipe) -> Iterator[str]:
    order = patterns.parse(recipe.pattern, recipe.depth).letters
    letters = {*order}
    mixers = {"A": "attention", "M": "mamba", "R": "recurrent", "E": "mlp" if recipe.moe is None else "experts"}
    yield from (mixers[letter] for letter in letters)
    whole = all(len(stage) % 2 == 0 for stage in recipe.pattern.split("|")[:-1])
    paired = whole and len(order) % 2 == 0 and "E" not in order[::2] and {*order[1::2]} == {"E"}
    yield from _chosen(("unpaired", not paired))
    if "A" in letters:
        yield from _chosen(
            ("mla", recipe.mla is not None),
            ("gqa", recipe.mla is None and recipe.kv_groups < recipe.heads),
            ("dsa", recipe.dsa is not None),
            ("qk-norm", recipe.qk_norm),
            ("parallel-ssm", recipe.parallel_ssm is not None),
        )
    if "M" in letters:
        yield from _chosen(("narrow-scan", recipe.mamba.heads * recipe.mamba.head_dim % recipe.hidden != 0))
    if "E" in letters:
        yield recipe.activation
        yield from _of_router(recipe.moe) if recipe.moe is not None else ()
    yield from _chosen(*((f"{place.removesuffix('s')}-bias", place in recipe.biases) for place in bias_places(recipe)))
    yield from _chosen(
        ("prediction-heads", recipe.mtp is not None),
        ("hyper-connections", recipe.mhc is not None),
        ("tied", not recipe.untied_embeddings),
        ("dropout", recipe.dropout > 0),
        (recipe.dtype, recipe.dtype != "fp32"),
        ("fp8", recipe.fp8 is not None),
        ("recompute", recipe.recompute != "none"),
    )


def bias_places(recipe: Recipe) -> tuple[Biased, ...]:
    """Where the model of a recipe has linear layers that may have a bias."""
    letters = {*patterns.parse(recipe.pattern, recipe.depth).letters}
    dense = ("E" in letters and recipe.moe is None) or recipe.mtp is not None
    there: dict[Biased, bool] = {
        "attention": recipe.mla is None and ("A" in letters or recipe.mtp is not None),
        "mlp": dense,
        "experts": "E" in letters and recipe.moe is not None,
        "router": "E" in letters and recipe.moe is not None,
    }
    return tuple(place for place, held in there.items() if held)


def _of_router(moe: Moe) -> Iterator[str]:
    yield moe.score
    yield from _chosen(
        ("top-1", moe.top_k == 1),
        ("selection-bias", moe.selection_bias),
        ("group-limited", moe.groups is not None),
        ("shared-expert", moe.shared_hidden > 0),
        ("route-scale", moe.route_scale != 1.0),
        ("balance-loss", moe.aux_loss > 0),
        ("z-loss", moe.z_loss > 0),
        ("capacity", moe.capacity_factor is not None),
        ("capacity-by-gate", moe.capacity_factor is not None and moe.drop_policy == "probs"),
    )


def _of_steps(recipe: Recipe) -> Iterator[str]:
    yield recipe.optim.rule
    yield recipe.optim.schedule
    yield from _chosen(("changing-decay", recipe.optim.end_weight_decay is not None))


def _of_execution(recipe: Recipe, execution: Execution) -> Iterator[str]:
    degrees = execution.degrees
    ranks = execution.world // (degrees.pp * degrees.tp * degrees.cp)
    data = ranks // degrees.ep if execution.layout == "own-axis" else ranks
    return _chosen(
        ("dp", data > 1),
        ("fsdp", execution.fsdp),
        ("replicas", execution.replicas > 1),
        ("tp", degrees.tp > 1),
        ("sp", degrees.sp),
        ("tp-without-sp", degrees.tp > 1 and not degrees.sp),
        ("tp-without-fsdp", degrees.tp > 1 and not execution.fsdp and data > 1),
        ("uneven-kv", recipe.mla is None and recipe.kv_groups % degrees.tp != 0),
        ("uneven-vocab", recipe.vocab % degrees.tp != 0),
        ("ep-with-etp", degrees.ep > 1 and degrees.expert_tp > 1),
        ("cp", degrees.cp > 1),
        ("pp", degrees.pp > 1),
        ("ep", degrees.ep > 1),
        ("ep-without-fsdp", degrees.ep > 1 and not execution.fsdp and ranks > 1),
        (execution.layout, degrees.ep > 1),
        ("etp", degrees.expert_tp != degrees.tp),
        ("cut-expert-bias", "experts" in recipe.biases and degrees.expert_tp > 1),
        ("etp-without-ep", degrees.expert_tp != degrees.tp and degrees.ep == 1),
        ("interleaved", execution.schedule == "interleaved"),
        ("microbatches", execution.microbatches > 1),
        ("recompute", execution.recompute),
        ("compile", execution.compile != "none"),
        ("compiled-blocks", execution.compile == "blocks"),
        ("author-dp", execution.mode == "author_dp"),
    )


def _chosen(*pairs: tuple[str, bool]) -> Iterator[str]:
    return (feature for feature, needed in pairs if needed)

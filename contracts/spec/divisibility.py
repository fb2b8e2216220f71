"""How a recipe divides over ranks: heads, groups, experts, tokens and layers, and the widths that FP8 takes."""

from contracts.spec import pattern as patterns
from contracts.spec.errors import Refusals, Refused
from contracts.spec.recipe import Fp8, Recipe
from contracts.spec.topology import Degrees


def refusals_on(recipe: Recipe, degrees: Degrees, dp: int) -> Refusals:
    """Every reason why a recipe does not divide over the given degrees and data-parallel size.

    KV groups and SSM groups smaller than TP are legal only where the recipe declares that they are replicated.
    """
    found = Refusals()

    def divides(field_name: str, degree: int, over: str, size: int, remedy: str = "choose a divisor") -> None:
        found.unless(size % degree == 0, field_name, degree, f"must divide {over} ({size})", remedy)

    divides("tp", degrees.tp, "heads", recipe.heads)
    if recipe.mla is None:  # MLA has no KV groups to shard
        replicated = recipe.replicate_kv and degrees.tp % recipe.kv_groups == 0
        if not replicated:
            divides("tp", degrees.tp, "kv_groups", recipe.kv_groups, "choose a divisor, or declare replicate_kv")
    if recipe.mixers & {"M", "R"}:
        divides("tp", degrees.tp, "mamba.heads", recipe.mamba.heads)
        replicated = recipe.replicate_ssm_groups and degrees.tp % recipe.mamba.groups == 0
        if not replicated:
            remedy = "choose a divisor, or declare replicate_ssm_groups"
            divides("tp", degrees.tp, "mamba.groups", recipe.mamba.groups, remedy)
    divides("tp", degrees.tp, "ffn_hidden", recipe.ffn_hidden)
    if recipe.moe is not None:
        divides("ep", degrees.ep, "moe.experts", recipe.moe.experts)
        divides("etp", degrees.expert_tp, "moe.expert_hidden", recipe.moe.expert_hidden)
    else:
        found.unless(degrees.ep == 1, "ep", degrees.ep, "needs experts, and moe is off", "set ep 1 or turn moe on")
    shards = degrees.cp * (degrees.tp if degrees.sp else 1)
    found.unless(
        recipe.seq_length % shards == 0,
        "seq_length",
        recipe.seq_length,
        f"must be a multiple of cp * tp ({shards})",
        "choose a multiple, so that no rank is left without tokens",
    )
    try:
        patterns.stages(patterns.parse(recipe.pattern, recipe.depth), degrees.pp)
    except Refused as refused:
        found.extend(refused)
    per_pass = recipe.batch.micro * dp
    found.unless(
        recipe.batch.total % per_pass == 0,
        "batch.total",
        recipe.batch.total,
        f"must be a multiple of batch.micro * dp ({per_pass})",
        "choose a multiple, so that every rank steps as often",
    )
    if recipe.fp8 is not None:
        _alignment(recipe, recipe.fp8, degrees, found)
    return found


def _alignment(recipe: Recipe, fp8: Fp8, degrees: Degrees, found: Refusals) -> None:
    """FP8 alignment: on one rank, matrix widths must be a multiple of 16 (mxfp8: 32).

    The tokens of one pass must be a multiple of 8 (mxfp8: 32, because its blocks lie along them in the backward pass).
    The dispatcher pads the rows of experts. Transformer Engine has the same rule and reports it at the first step.
    """
    width, rows = (32, 32) if fp8.scaling == "mxfp8" else (16, 8)
    remedy = "choose a multiple, or turn fp8 off"
    for name, value, what, elements, degree in _fp8_widths(recipe, degrees):
        on_one = f"{what} ({elements})" if degree == 1 else f"{what} / {degree} ({elements // degree})"
        problem = f"{on_one} must be a multiple of {width} for fp8 ({fp8.scaling})"
        found.unless(elements // degree % width == 0, name, value, problem, remedy)
    tokens = recipe.batch.micro * recipe.seq_length // degrees.cp
    problem = f"tokens of a pass ({tokens}) must be a multiple of {rows} for fp8 ({fp8.scaling})"
    found.unless(tokens % rows == 0, "seq_length", recipe.seq_length, problem, remedy)


def _fp8_widths(recipe: Recipe, degrees: Degrees) -> list[tuple[str, object, str, int, int]]:
    """Every width of an FP8 matrix: field, value, name, elements, and the number of ranks that share it."""
    letters = recipe.mixers
    tp, heads, mamba = degrees.tp, recipe.heads, recipe.mamba
    found: list[tuple[str, object, str, int, int]] = [("hidden", recipe.hidden, "hidden", recipe.hidden, 1)]
    if "A" in letters and recipe.mla is None:
        groups, dim = recipe.kv_groups, recipe.head_dim
        if tp > 1:  # on one rank it is hidden
            found.append(("heads", heads, "heads * head_dim", heads * dim, tp))
        kept = groups if tp > groups else tp  # more ranks than groups hold one each
        found.append(("kv_groups", groups, "kv_groups * head_dim", groups * dim, kept))
    elif "A" in letters and recipe.mla is not None:
        mla = recipe.mla
        found += [
            ("mla.q_lora", mla.q_lora, "q_lora", mla.q_lora, 1),
            ("mla.qk_head", mla.qk_head, "heads * (qk_head + qk_rope)", heads * (mla.qk_head + mla.qk_rope), tp),
            ("mla.kv_lora", mla.kv_lora, "kv_lora", mla.kv_lora, 1),
            ("mla.qk_rope", mla.qk_rope, "kv_lora + qk_rope", mla.kv_lora + mla.qk_rope, 1),
            ("mla.v_head", mla.v_head, "heads * v_head", heads * mla.v_head, tp),
        ]
        found.append(("mla.v_head", mla.v_head, "heads * (qk_head + v_head)", heads * (mla.qk_head + mla.v_head), tp))
    if "E" in letters and recipe.moe is None:
        found.append(("ffn_hidden", recipe.ffn_hidden, "ffn_hidden", recipe.ffn_hidden, tp))
    elif "E" in letters and recipe.moe is not None:
        inner, shared = recipe.moe.expert_hidden, recipe.moe.shared_hidden
        found.append(("moe.expert_hidden", inner, "expert_hidden", inner, degrees.expert_tp))
        found.append(("moe.shared_hidden", shared, "shared_hidden", shared, tp))
    if letters & {"M", "R"}:
        found.append(("mamba.head_dim", mamba.head_dim, "heads * head_dim", mamba.heads * mamba.head_dim, tp))
    if "M" in letters:
        kept = mamba.groups if tp > mamba.groups else tp
        found.append(("mamba.groups", mamba.groups, "groups * state", mamba.groups * mamba.state, kept))
    if "R" in letters:
        found.append(("mamba.state", mamba.state, "heads * state", mamba.heads * mamba.state, tp))
    return found

"""Presets: every name of a recipe, and its meaning.

A preset is a recipe under its own name. An alias is another name of the same configuration. A deprecated name says
something untrue, and resolves only for callers who acknowledge it. A label describes a moment (`current`, `head`, a
lineage tag) and never resolves.

The sources state NAM56R's sizes in full. For NAM52 and NAM52R they state pattern, depth, features and placement but no
sizes; those presets take NAM56R's.
"""

import difflib
import re
from dataclasses import dataclass, replace

from contracts.spec.errors import refuse
from contracts.spec.recipe import Batch, Dsa, Fp8, Mamba, Mhc, Mla, Moe, Mtp, Optim, Recipe
from contracts.spec.topology import Degrees

NAM56R = Recipe(
    name="nam56r_h200_bf16_v1",
    family="nam56r",
    pattern="AEMEAEMEAEMR",
    depth=52,
    hidden=3584,
    ffn_hidden=18944,
    heads=56,
    kv_groups=8,
    seq_length=4096,
    rope_theta=500_000,
    moe=Moe(experts=16, top_k=4, expert_hidden=896, shared_hidden=1024),
    degrees=Degrees(ep=4, etp=1),
)

NAM52_DENSE = replace(NAM56R, name="nam52_h200_dense_ref_v1", family="nam52-dense", pattern="AEME", mhc=Mhc(streams=4),
                      modes=("author_dp",))  # fmt: skip

NAM52_SPARSE = replace(
    NAM56R,
    name="nam52_h200_9full_4sparse_pinned_v1",
    family="nam52-sparse",
    pattern="AEME",
    mla=Mla(),
    dsa=Dsa(a_ranks=(8, 9, 10, 11)),
    modes=("author_dp",),
)

NAM52R = replace(
    NAM56R,
    name="nam52r_h200_4full_9sparse_candidate_v1",
    family="nam52r",
    mla=Mla(),
    dsa=Dsa(a_ranks=(1, 2, 3, 5, 6, 7, 9, 10, 11)),
    modes=("author_dp",),
)

# Small enough for a laptop. Every ratio that would hide a bug if it were 1 is above 1: GQA 4:2, top-k 2 of 12
# experts (more than ten, so that keys order by number), 4 SSM heads in 2 groups, a depth that the pattern's length
# does not divide.
_TINY_SIZES = {
    "hidden": 64,
    "ffn_hidden": 96,
    "heads": 4,
    "kv_groups": 2,
    "seq_length": 128,
    "vocab": 256,
    "mamba": Mamba(heads=4, head_dim=16, state=16, groups=2),
    "optim": Optim(lr=3e-3, min_lr=3e-4, warmup=5, steps=50),
    "batch": Batch(micro=2, total=16),
    "degrees": Degrees(ep=2, etp=1),
    "hbm_gb": 2,
}
_TINY_MOE = Moe(experts=12, top_k=2, expert_hidden=32, shared_hidden=48)


def _tiny(recipe: Recipe, name: str, depth: int) -> Recipe:
    small = replace(recipe, name=name, depth=depth, moe=_TINY_MOE, **_TINY_SIZES)  # type: ignore[arg-type]  # one table
    return (
        small
        if recipe.mla is None
        else replace(small, mla=Mla(q_lora=16, kv_lora=16, qk_head=16, qk_rope=8, v_head=16))
    )


def _table(*recipes: Recipe) -> dict[str, Recipe]:
    return {recipe.name: recipe for recipe in recipes}


PRESETS: dict[str, Recipe] = _table(
    NAM56R,
    replace(NAM56R, name="nam56r_h200_fp8_v1", fp8=Fp8()),
    replace(NAM56R, name="nam56r_h200_mla_mtp1_bf16_v1", mla=Mla(), mtp=Mtp(depth=1)),
    replace(NAM56R, name="nam56r_h200_nemo_native_tp2_bf16_v1", modes=("nemo_native",)),
    replace(NAM56R, name="nam56r_h200_author_dp_tp1_bf16_v1", modes=("author_dp",)),
    NAM52_DENSE,
    replace(NAM52_DENSE, name="nam52_h200_dense_no_mhc_recovery_v1", mhc=None),
    NAM52_SPARSE,
    NAM52R,
    _tiny(NAM56R, "tiny-nam56r", 14),
    _tiny(replace(NAM52_DENSE, modes=NAM56R.modes, mhc=None), "tiny-nam52", 6),
    _tiny(replace(NAM52R, dsa=Dsa(a_ranks=(1, 2), index_heads=2, index_head_dim=16, top_k=16)), "tiny-nam52r", 14),
)

ALIASES = {
    "nam52_h200_moe_no_dsa_ref_v1": "nam52_h200_dense_ref_v1",
    "nam52r_h200_prod_candidate_v1": "nam52r_h200_4full_9sparse_candidate_v1",
}


@dataclass(frozen=True, kw_only=True)
class Deprecated:
    """A name that still resolves, and why it should not be used."""

    means: str
    why: str


DEPRECATED = {
    "nam52_h200_dense_pinned_v1": Deprecated(
        means="nam52_h200_9full_4sparse_pinned_v1", why="says dense, and four of its thirteen A-ranks are sparse"
    ),
    "nam52r_h200_dense_candidate_v1": Deprecated(
        means="nam52r_h200_4full_9sparse_candidate_v1", why="says dense, and nine of its thirteen A-ranks are sparse"
    ),
}

LABELS = {
    "current": "the baseline recipe of one wave of runs; --kernel=current is another word",
    "head": "launched from the repository's HEAD on that host",
}
_LINEAGE = re.compile(r"v\d+[a-z]")  # v19c: the wave of 19 March; v1 in a preset's name is its version


def resolve(name: str, acknowledge: tuple[str, ...] = ()) -> Recipe:
    """The recipe of a preset, an alias, or an acknowledged deprecated name.

    An alias resolves to the preset's value, including the preset's name: one configuration has one identity.

    Raises:
        Refused: for a label, an unacknowledged deprecated name, or an unknown one with the nearest known names.
    """
    if name in LABELS or _LINEAGE.fullmatch(name):
        meaning = LABELS.get(name, "operator shorthand for one wave of runs")
        raise refuse("preset", name, f"is a label ({meaning}), not a preset", "name the preset that was run")
    if name in DEPRECATED:
        entry = DEPRECATED[name]
        if name not in acknowledge:
            remedy = f"ask for {entry.means}, or acknowledge {name}"
            raise refuse("preset", name, f"is deprecated: it {entry.why}", remedy)
        return PRESETS[entry.means]
    known = PRESETS.get(ALIASES.get(name, name))
    if known is None:
        near = difflib.get_close_matches(name, [*PRESETS, *ALIASES], n=3, cutoff=0.4) or sorted(PRESETS)
        raise refuse("preset", name, "is not a preset", f"the nearest are {', '.join(near)}")
    return known


def names() -> tuple[str, ...]:
    """Every name that resolves without an acknowledgement: presets, then aliases."""
    return (*PRESETS, *ALIASES)

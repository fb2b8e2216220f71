"""Recipes for the checks on numbers: small, with every ratio that would hide a bug at 1 kept above 1.

GQA 4:2 heads, top-k 3 of 12 experts, 4 SSM heads in 2 groups of 16 states against heads of 8, a depth that the
pattern's length does not divide, widths that are no powers of two.
"""

from dataclasses import replace

from contracts.spec import Batch, Dsa, Mamba, Mla, Moe, Optim, ParallelSsm, Recipe

SMALL = Recipe(
    name="small",
    family="small",
    pattern="AEMEAEMEAEMR",
    depth=14,
    hidden=24,
    ffn_hidden=40,
    heads=4,
    kv_groups=2,
    seq_length=32,
    vocab=61,
    moe=Moe(experts=12, top_k=3, expert_hidden=20, shared_hidden=28),
    mamba=Mamba(heads=4, head_dim=8, state=16, groups=2),
    optim=Optim(lr=1e-2, min_lr=1e-3, warmup=2, steps=8),
    batch=Batch(micro=2, total=4),
    dtype="fp32",
    hbm_gb=2,
)
"""Layer 0 is A, 1 E, 2 M, 11 R."""

DENSE = replace(SMALL, name="dense", pattern="AE", depth=4, moe=None, activation="swiglu")
"""Attention and MLPs only, as in a plain transformer: any stack can run these cases."""

SMALL_MLA = replace(SMALL, name="small-mla", mla=Mla(q_lora=12, kv_lora=10, qk_head=6, qk_rope=4, v_head=8))
SMALL_DSA = replace(SMALL_MLA, name="small-dsa", dsa=Dsa(a_ranks=(0, 2), index_heads=5, index_head_dim=8, top_k=5))
"""A-ranks 0 and 2 are sparse: layers 0 and 8."""

PARALLEL = replace(
    SMALL, name="parallel", pattern="AE", depth=3, parallel_ssm=ParallelSsm(attention_scale=0.75, ssm_scale=1.5)
)
"""A E A, attention beside a scan in both."""

A_LAYER, E_LAYER, M_LAYER, R_LAYER = 0, 1, 2, 11

"""The loss of a whole model: a float32 mean over the labels that count, and a weighted sum with the auxiliary losses.

Cross entropy is in nats. Labels of -100 are ignored.
"""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics, oracles
from contracts.law._support.late import torch
from contracts.law._support.model_passes import (
    EVERYTHING,
    PACKED,
    WHOLE,
    Lengths,
    batch,
    drawn_weights,
    one_pass,
    tensor,
)
from contracts.law._support.recipes import DENSE
from contracts.spec import (
    FLOAT32,
    FLOAT64,
    Element,
    Mhc,
    Moe,
    Precision,
    Recipe,
    Tokens,
    Tolerance,
    Training,
    chosen,
    here,
    stepped_down,
    within,
)

_SMALLEST = replace(WHOLE, pattern="AE", depth=2)

AVERAGED: dict[str, tuple[Recipe, Precision, Lengths, Tolerance]] = {  # recipe, precision, documents of each row
    "unequal-rows": (WHOLE, "float64", PACKED, FLOAT64),
    "dense": (DENSE, "float64", PACKED, FLOAT64),
    "one-row": (_SMALLEST, "float64", ((4, 6),), FLOAT64),
    "float32": (WHOLE, "float32", PACKED, FLOAT32),
    "bf16": (replace(WHOLE, dtype="bf16", vocab=509), "declared", PACKED, FLOAT32),
    "bf16-tied-streams": (
        replace(WHOLE, dtype="bf16", untied_embeddings=False, mhc=Mhc(streams=2)),
        "declared",
        PACKED,
        FLOAT32,
    ),
}


@contract(
    "BLK-06s",
    asks=("initial", "run_model"),
    cases=AVERAGED,
    needs=(),
    sheds=("packed",),
    source="naming; DPS: unequal valid tokens",
)
def the_loss_is_the_mean_over_labels_that_count(
    stack: Training, recipe: Recipe, precision: Precision, lengths: Lengths, tolerance: Tolerance
) -> None:
    """`lm` is the mean cross entropy over all labels of the batch that are not -100, computed in float32 or wider.

    With 11, 1 and 7 labels in three rows, a mean of row means gives the single label eleven times the weight of a label
    in the first row. A loss in bfloat16 has two decimals, and so has its gradient.
    """
    tokens = batch(recipe, lengths) if len(lengths) > 1 else _row(recipe, lengths)
    run = one_pass(stack, recipe, drawn_weights(stack, recipe), tokens, precision=precision)
    want = float(oracles.model.mean_loss(tensor(run.logits).double(), tensor(tokens.labels)))
    off = abs(run.losses["lm"] - want)
    assert off <= here(tolerance).bound * want, (
        f"lm loss is {run.losses['lm']:.9g}, the mean over valid labels is {want:.9g}"
    )


def _row(recipe: Recipe, lengths: Lengths) -> Tokens:
    """One row whose last position has a label too."""
    tokens = batch(recipe, lengths, masked=False)
    labels = tensor(tokens.labels)
    labels[0, -1] = 7
    return replace(tokens, labels=numerics.array(labels))


HELD: dict[str, tuple[Recipe, Element]] = {
    dtype: (replace(EVERYTHING, dtype=dtype), "float32") for dtype in ("bf16", "fp32")
}


@contract(
    "BLK-06t", asks=("initial", "run_model"), cases=HELD, needs=(), sheds=("packed",), source="naming; MXP-07",
    conventions=("logits-dtype",),
)  # fmt: skip
def logits_are_handed_over_in_float32(stack: Training, recipe: Recipe, held: Element) -> None:
    """A model returns logits and gradients in float32, including the logits of its multi-token prediction heads.

    A stack may declare that its logits have the dtype of the activations and that its loss widens them (BLK-06s).
    """
    run = one_pass(stack, recipe, {}, batch(recipe), backward=True, precision="declared")
    narrow = recipe.dtype == "bf16" and chosen(stack, "logits-dtype") == "activations"
    wanted = "bfloat16" if narrow else held
    for name, each in {"the logits": run.logits, **{f"mtp {k}": x for k, x in enumerate(run.mtp_logits)}}.items():
        assert each.dtype == wanted, f"{name} are {each.dtype}, expected {wanted}"
    other = {name: each.dtype for name, each in run.gradients.items() if each.dtype != held}
    assert not other, f"gradients are in another dtype than {held}: {other}"


_Z = Moe(experts=12, top_k=3, expert_hidden=20, shared_hidden=28, aux_loss=0.05, z_loss=0.004)
SHARES: dict[str, tuple[Recipe, dict[str, float]]] = {  # recipe, weight of each loss
    "all-four": (replace(EVERYTHING, moe=_Z), {"lm": 1.0, "mtp": 0.3, "aux": 0.05, "z": 0.004}),
    "no-depths": (replace(WHOLE, moe=_Z), {"lm": 1.0, "aux": 0.05, "z": 0.004}),
    "no-depths@pairs": (
        stepped_down(replace(WHOLE, moe=_Z), "pairs", frozenset({"balance-loss"})),
        {"lm": 1.0, "aux": 0.05},
    ),
    "dense": (replace(EVERYTHING, moe=None), {"lm": 1.0, "mtp": 0.3}),
    "dense@dense": (stepped_down(replace(EVERYTHING, moe=None), "dense"), {"lm": 1.0}),
}


@contract(
    "BLK-06v",
    asks=("initial", "run_model"),
    cases=SHARES,
    needs=(),
    sheds=("packed",),
    source="spec: the objective of a step",
)
def the_total_is_the_weighed_sum(stack: Training, recipe: Recipe, shares: dict[str, float]) -> None:
    """`total`, the loss that is differentiated, is lm plus each auxiliary loss once, times its weight in the recipe."""
    run = one_pass(stack, recipe, drawn_weights(stack, recipe), batch(recipe))
    missing = shares.keys() - run.losses.keys()
    assert not missing, f"losses lack {', '.join(sorted(missing))}"
    want = sum(weight * run.losses[name] for name, weight in shares.items())
    sums = " + ".join(f"{weight:g} · {run.losses[name]:.6f} ({name})" for name, weight in shares.items())
    assert abs(run.losses["total"] - want) <= within(1e-12) * want, (
        f"total is {run.losses['total']:.6f}, expected {sums}"
    )


MANY = {"a-token-above-two-to-the-sixteen": (2**16,), "above-two-to-the-eight": (2**8,)}


@contract("BLK-06x", asks=("built", "initial", "run_model"), cases=MANY, source="F12; DSP-17; DAT-13")
def a_large_vocabulary_keeps_its_tokens_apart(stack: Training, least: int) -> None:
    """Tokens and labels that differ by 2^8 or by 2^16 are not confused: each token has the gradient of its own row of
    the embedding, and `lm` is the cross entropy of each label's own logit.

    A loader, a kernel or a cache that holds tokens in 8 or 16 bits wraps around at the end of its range. Vocabularies
    of this decade have 128 000 to 256 000 tokens; those of tests have some dozens.
    """
    recipe = replace(DENSE, name="many-tokens", depth=2, hidden=8, heads=2, kv_groups=1, ffn_hidden=8, vocab=least + 40)
    array = numerics.array
    low_T = torch.arange(7)
    tokens_BT, labels_BT = torch.stack([low_T, least + 9 + low_T]), torch.stack([least + 20 + low_T, 30 + low_T])
    given = Tokens(tokens=array(tokens_BT), labels=array(labels_BT))
    run = one_pass(stack, recipe, drawn_weights(stack, recipe), given, backward=True)
    (name,) = (row.name for row in stack.built(recipe, "nemo_native").parameters if row.role == "embedding")
    reached = tensor(run.gradients[name]).any(-1).nonzero().flatten().tolist()
    asked = sorted(tokens_BT.flatten().tolist())
    assert reached == asked, f"tokens {asked} train rows {reached} of {name}"
    want = float(oracles.model.mean_loss(tensor(run.logits).double(), labels_BT))
    found = run.losses["lm"]
    assert abs(found - want) <= within(1e-11) * want, f"lm is {found:.9g}, the mean over these labels is {want:.9g}"
